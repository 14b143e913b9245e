"""Class names as labels: pair losses number them, proxy losses know them by classes=[names]."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nearfar.losses as losses
from nearfar.losses import PairLoss, ProxyLoss

NAMES = ["dog", "cat", "owl"]
IDS = torch.tensor([2, 0, 1, 2, 0, 1])
LABELS = [NAMES[i] for i in IDS]
PAIR_LOSSES = [name for name in losses.names() if issubclass(losses.loss_class(name), PairLoss)]
PROXY_LOSSES = [name for name in losses.names() if issubclass(losses.loss_class(name), ProxyLoss)]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_pair_losses_take_class_names(name: str, x: torch.Tensor) -> None:
    loss = losses.create(name)
    expected = loss(x, IDS)
    for labels in (LABELS, np.array(LABELS), IDS.tolist(), IDS.numpy()):
        torch.testing.assert_close(loss(x, labels), expected)
    half = loss(x[:3], IDS[:3], ref_emb=x[3:5], ref_labels=IDS[3:5])
    torch.testing.assert_close(loss(x[:3], LABELS[:3], ref_emb=x[3:5], ref_labels=LABELS[3:5]), half)


def test_names_and_ids_do_not_mix(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="labels and ref_labels must both be class names or both class ids"):
        losses.create("triplet")(x, LABELS, ref_emb=x, ref_labels=IDS)


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_proxy_losses_take_the_names_they_were_created_with(name: str, x: torch.Tensor) -> None:
    torch.manual_seed(0)
    by_id = losses.create(name, classes=3, dim=4)
    torch.manual_seed(0)
    by_name = losses.create(name, classes=NAMES, dim=4)
    assert by_name.options == by_id.options | {"classes": NAMES}
    torch.testing.assert_close(by_name(x, LABELS), by_id(x, IDS))
    torch.testing.assert_close(by_name(x, IDS), by_id(x, IDS))
    words = r"labels are class names, but \w+ was created without names: .*classes=\[names\]"
    with pytest.raises(ValueError, match=words):
        by_id(x, LABELS)
    with pytest.raises(ValueError, match="unknown class 'cow'"):
        by_name(x, ["cow", *LABELS[1:]])


def test_margin_has_a_boundary_per_name(x: torch.Tensor) -> None:
    by_id, by_name = losses.create("margin", classes=3), losses.create("margin", classes=NAMES)
    for loss in (by_id, by_name):
        loss.beta.data += torch.arange(3) / 10
    torch.testing.assert_close(by_name(x, LABELS), by_id(x, IDS))
    with pytest.raises(ValueError, match="was created without names"):
        by_id(x, LABELS)


@pytest.mark.parametrize("classes", [[], ["cat", "cat"], [1, 2]])
def test_bad_class_names(classes: list[str]) -> None:
    with pytest.raises(ValueError, match="classes must be a number or a list of different names"):
        losses.create("proxy-anchor", classes=classes, dim=4)


def test_memory_keeps_names_over_batches(x: torch.Tensor) -> None:
    by_id, by_name = (losses.CrossBatchMemory(losses.create("supcon"), size=6, dim=4) for _ in range(2))
    for part in (slice(0, 2), slice(2, 4), slice(4, 6)):
        torch.testing.assert_close(by_name(x[part], LABELS[part]), by_id(x[part], IDS[part]))
