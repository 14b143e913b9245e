import pytest
import torch

from nearfar.losses import create
from nearfar.losses.base import LOSSES
from nearfar.losses.pair_loss import PairLoss
from nearfar.training.diagnostics import diagnose, effective_rank, pair_activity


def pair_loss(name: str) -> PairLoss:
    loss = create(name)
    assert isinstance(loss, PairLoss)
    return loss


def test_active_pairs_are_those_with_a_cost() -> None:
    """Orthogonal classes: every positive pair is at D = 0, every negative beyond the margin."""
    x = torch.eye(3).repeat_interleave(2, 0)
    y = torch.arange(3).repeat_interleave(2)
    assert diagnose(pair_loss("contrastive"), x, y).active_pairs == 0
    # one sample moves onto another class: its two negatives there and its one positive become active, both ways
    x[0] = torch.tensor([0.1, 1.0, 0.0])
    assert diagnose(pair_loss("contrastive"), x, y).active_pairs == pytest.approx(6 / 30)


def test_no_pair_is_active_if_mining_keeps_none() -> None:
    x = torch.eye(3).repeat(2, 1)  # positives are equal, negatives orthogonal
    assert pair_activity(create("multi-similarity"), x, torch.arange(3).repeat(2)) == (0.0, 0.0)


def test_anchors_without_positives_and_norms() -> None:
    x = 3 * torch.nn.functional.normalize(torch.randn(4, 5))
    seen = diagnose(pair_loss("supcon"), x, torch.tensor([0, 0, 1, 2]))
    assert seen.anchors_without_positives == 0.5
    assert seen.norm_mean == pytest.approx(3)
    assert seen.norm_std == pytest.approx(0, abs=1e-5)
    assert set(seen.to_dict()) == {
        "active_pairs",
        "anchors_without_positives",
        "norm_mean",
        "norm_std",
        "effective_rank",
    }


@pytest.mark.parametrize("name", ["angular", "triplet", "n-pair", "fastap", "margin"])
def test_with_references_and_without_side_effects(name: str) -> None:
    g = torch.Generator().manual_seed(0)
    x, r = torch.randn(4, 3, generator=g, requires_grad=True), torch.randn(6, 3, generator=g)
    seen = diagnose(pair_loss(name), x, torch.arange(4), ref_emb=r, ref_labels=torch.arange(6) % 4)
    assert 0 <= seen.active_pairs <= 1
    assert x.grad is None


def test_effective_rank_finds_a_collapse() -> None:
    g = torch.Generator().manual_seed(0)
    spread = torch.randn(64, 16, generator=g)
    collapsed = torch.randn(64, 1, generator=g) @ torch.randn(1, 16, generator=g)
    assert effective_rank(spread) > 14
    assert effective_rank(collapsed) == pytest.approx(1, abs=1e-3)
    assert effective_rank(torch.zeros(4, 4)) == 0


@pytest.mark.parametrize("name", [name for name in LOSSES.names() if issubclass(LOSSES.get(name), PairLoss)])
def test_active_pairs_of_a_large_batch(name: str) -> None:
    """Some losses compute large batches in another way."""
    g = torch.Generator().manual_seed(0)
    active, without = pair_activity(pair_loss(name), torch.randn(320, 128, generator=g), torch.arange(160).repeat(2))
    assert 0 < active <= 1
    assert without == 0
