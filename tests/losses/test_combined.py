"""The weighted sum of several losses."""

from __future__ import annotations

import pytest
import torch

from nearfar.losses import CombinedLoss, create

PARTS = [{"name": "mpa"}, {"name": "contrastive", "weight": 0.5, "mine": "semi-hard"}, {"name": "contrastive"}]


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    return x, torch.arange(12) // 3, torch.rand(12, generator=generator, dtype=torch.float64)


def test_value_and_gradient_are_the_weighted_sum(
    batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    x, labels, weights = batch
    loss = create(PARTS, classes=4, dim=5)
    single = [create("mpa", classes=4, dim=5), create("contrastive", mine="semi-hard"), create("contrastive")]
    single[0].load_state_dict(loss.losses[0].state_dict())
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    value = loss(one, labels, weights=weights)
    values = [part(other, labels, weights=weights) for part in single]
    expected = values[0] + 0.5 * values[1] + values[2]
    assert value.item() == pytest.approx(expected.item(), abs=1e-12)
    value.backward()
    expected.backward()
    assert torch.allclose(one.grad, other.grad, atol=1e-12, rtol=0)
    assert torch.allclose(loss.values, torch.stack(values).detach(), atol=1e-12, rtol=0)
    assert loss.names == ["mpa", "contrastive", "contrastive-2"]
    assert {name.split(".")[1] for name in loss.state_dict()} == {"0"}  # only mpa has a state


def test_epochs_reach_every_loss() -> None:
    loss = create([{"name": "supcon"}, {"name": "proxy-isa"}], classes=4, dim=5)
    alone = create("proxy-isa", classes=4, dim=5)
    assert loss.warmup_epochs == alone.warmup_epochs > 0
    loss.start_epoch(3)
    alone.start_epoch(3)
    states = loss.losses[1].state_dict(), alone.state_dict()
    assert states[0].keys() == states[1].keys()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "one or more losses"),
        (["supcon"], "mapping with the key"),
        ([{"name": "supcn"}], "did you mean 'supcon'"),
        ([{"name": "supcon", "weight": -1}], "weights must be finite and not negative, got -1"),
        ([{"name": "supcon", "margn": 1}], "no option 'margn'"),
    ],
)
def test_errors_name_the_problem(parts: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create(parts)  # type: ignore[arg-type]


def test_weights_must_fit() -> None:
    with pytest.raises(ValueError, match="one number for each of the 1 losses"):
        CombinedLoss([create("supcon")], weights=[1, 2])
    with pytest.raises(ValueError, match="move it into the mapping of one loss"):
        create([{"name": "supcon"}], mine="semi-hard")
