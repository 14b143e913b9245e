"""Every loss is finite on extreme batches. The full run: python -m tests.harness.numerics."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nearfar.losses import create, names
from tests.harness.numerics import EVERY, batches, examine, look, title


def test_every_loss_is_there() -> None:
    assert {name for name, _ in EVERY} == set(names())


@pytest.mark.parametrize(("name", "options"), EVERY, ids=[title(*each) for each in EVERY])
def test_extreme_batches_are_finite(name: str, options: dict[str, Any]) -> None:
    found = examine(name, options, 60, seed=1)
    assert found.wrong == []
    assert found.counts["finite"] > 40


class Overflowing(nn.Module):
    def forward(self, x: Tensor, labels: Tensor, **_: Any) -> Tensor:
        return x.float().square().square().square().square().sum()


def test_a_loss_that_overflows_is_found() -> None:
    found = [look(Overflowing(), batch) for batch in batches(40, seed=0)]
    assert any(each.startswith("wrong") for each in found)


def test_snr_of_rows_of_very_different_lengths() -> None:
    """Its gradient, by the variance of a short row, used to overflow float32 long before its value did."""
    from nearfar.losses import create

    rows = torch.tensor([[1e-7, -1e-7, 2e-7], [1e7, 3e7, -2e7]])
    found = []
    for dtype in (torch.float32, torch.float64):
        x = rows.clone().to(dtype).requires_grad_()
        create("snr")(x, torch.tensor([0, 0])).backward()
        assert x.grad is not None
        found.append(x.grad.double())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["contrastive", "lifted"])
def test_large_batches_take_seconds(name: str) -> None:
    # the time grows with the square of the batch size, so this limit is that of 45 s for 10,000 samples
    x = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    start = time.process_time()
    create(name)(x, torch.arange(4000) // 5).backward()
    assert time.process_time() - start < 45 * 0.4**2
