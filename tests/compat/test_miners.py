"""The miners of nearfar.compat choose what pytorch-metric-learning's choose, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nearfar.compat import distances, losses, miners

pytest.importorskip(
    "pytorch_metric_learning", reason="pytorch-metric-learning is not installed: pip install -e '.[peers]'"
)
import pytorch_metric_learning.distances as peer_distances
import pytorch_metric_learning.miners as peer_miners

SAME: dict[str, Callable[[Any, Any], Any]] = {
    "multi-similarity": lambda m, d: m.MultiSimilarityMiner(),
    "multi-similarity distance": lambda m, d: m.MultiSimilarityMiner(epsilon=0.2, distance=d.LpDistance()),
    "hard": lambda m, d: m.BatchHardMiner(),
    "hard cosine": lambda m, d: m.BatchHardMiner(distance=d.CosineSimilarity()),
    "angles": lambda m, d: m.AngularMiner(30),
    "easy": lambda m, d: m.BatchEasyHardMiner(),
    "easy and hard": lambda m, d: m.BatchEasyHardMiner("hard", "easy", distance=d.CosineSimilarity()),
    "semi-hard positives": lambda m, d: m.BatchEasyHardMiner("semihard", "hard"),
    "all positives": lambda m, d: m.BatchEasyHardMiner("all", "hard", allowed_neg_range=(0.3, 1.2)),
    "hardest share": lambda m, d: m.HDCMiner(0.2),
    "pairs": lambda m, d: m.PairMarginMiner(1.2, 1.3),
    "pairs cosine": lambda m, d: m.PairMarginMiner(0.4, 0.1, distance=d.CosineSimilarity()),
    "triplets": lambda m, d: m.TripletMarginMiner(),
    "triplets hard": lambda m, d: m.TripletMarginMiner(type_of_triplets="hard"),
    "triplets semi-hard": lambda m, d: m.TripletMarginMiner(0.1, "semihard", distance=d.CosineSimilarity()),
    "triplets easy": lambda m, d: m.TripletMarginMiner(0.3, "easy"),
}


def batch(seed: int, rows: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(6, (rows,), generator=generator)
    labels[0] = 6  # without a positive
    centers = torch.randn(7, 8, generator=generator)
    return (centers[labels] + torch.randn(rows, 8, generator=generator)).double(), labels


def as_sets(found: tuple[Tensor, ...]) -> list[set[tuple[int, ...]]]:
    parts = [found] if len(found) == 3 else [found[:2], found[2:]]
    sets = [set(zip(*(each.tolist() for each in part), strict=True)) for part in parts]
    assert [len(each) for each in sets] == [len(part[0]) for part in parts], "something was chosen twice"
    return sets


@pytest.mark.parametrize("name", SAME)
def test_the_same_is_chosen(name: str) -> None:
    ours, theirs = SAME[name](miners, distances), SAME[name](peer_miners, peer_distances)
    x, labels = batch(0)
    found = as_sets(ours(x, labels))
    assert any(found)
    assert found == as_sets(theirs(x, labels))
    refs = batch(1, rows=15)
    assert as_sets(ours(x, labels, *refs)) == as_sets(theirs(x, labels, *refs))
    if not name.startswith("multi-similarity"):  # there, two views of a sample are a positive and a negative pair
        assert as_sets(ours(x, labels, x.flip(1), labels)) == as_sets(theirs(x, labels, x.flip(1), labels))


@pytest.mark.parametrize("name", SAME)
def test_nothing_to_choose(name: str) -> None:
    x, _ = batch(0)
    found = as_sets(SAME[name](miners, distances)(x, torch.arange(len(x))))
    assert not any(found[:1] if name in ("pairs", "pairs cosine", "all positives", "hardest share") else found)


def test_distance_weighted_triplets_are_legal_and_near() -> None:
    x, labels = batch(0, rows=60)
    torch.manual_seed(0)
    a, p, n = miners.DistanceWeightedMiner()(x, labels)
    assert (labels[a] == labels[p]).all()
    assert (a != p).all()
    assert (labels[a] != labels[n]).all()
    # an anchor has a triplet for each of its positives
    positives = (labels[:, None] == labels).sum(1) - 1
    torch.testing.assert_close(torch.bincount(a, minlength=60), positives)
    apart = distances.LpDistance()(x)
    assert apart[a, n].mean() < apart[labels[:, None] != labels].mean() - 0.05
    assert torch.isfinite(losses.MarginLoss()(x, labels, (a, p, n)))


def test_no_gradient_is_kept() -> None:
    x, labels = batch(0)
    for chosen in miners.TripletMarginMiner()(x.requires_grad_(), labels):
        assert not chosen.requires_grad


def test_errors() -> None:
    with pytest.raises(ValueError, match="DistanceWeightedMiner: distance=CosineSimilarity"):
        miners.DistanceWeightedMiner(distance=distances.CosineSimilarity())
    with pytest.raises(ValueError, match="type_of_triplets must be one of"):
        miners.TripletMarginMiner(type_of_triplets="harder")
    with pytest.raises(AttributeError, match="no 'HDCMine'; did you mean 'HDCMiner'"):
        _ = miners.HDCMine  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="cannot be combined with"):
        miners.BatchEasyHardMiner("all", "semihard")


def test_distance_weighted_negatives_are_below_the_cutoff() -> None:
    """In two dimensions, without a lower cutoff, and for anchors with fewer negatives than positives."""
    angles = torch.arange(0, 256) * torch.pi / 180
    x = torch.stack([angles.cos(), angles.sin()], 1).double()
    labels = torch.randint(2, (256,), generator=torch.Generator().manual_seed(0))
    a, _, n = miners.DistanceWeightedMiner(0, 0.9)(x, labels)
    assert (x[a] - x[n]).norm(dim=1).max() < 0.9
    assert len(a.unique()) == 256
    few = torch.zeros(128, dtype=torch.int64)
    few[:2] = 1
    a, _, _ = miners.DistanceWeightedMiner(0.1, 3.0)(torch.randn(128, 8), few)
    assert len(a.unique()) == 128


@pytest.mark.parametrize("name", SAME)
def test_statistics_are_the_peers(name: str) -> None:
    ours, theirs = SAME[name](miners, distances), SAME[name](peer_miners, peer_distances)
    for miner in (ours, theirs):
        miner.collect_stats = True
    for rows in (24, 1):  # then a batch without pairs, in which all statistics of nearfar are 0
        x, labels = batch(5, rows)
        ours(x, labels)
        found = {n: getattr(ours, n) for n in ("num_pos_pairs", "num_neg_pairs", "num_triplets", *ours.statistics)}
        if rows == 1:
            assert not any(found.values())
            continue
        theirs(x, labels)
        assert found == pytest.approx({n: getattr(theirs, n, 0) for n in found}, rel=1e-9, abs=1e-9)
        assert found["num_triplets"] or found["num_neg_pairs"]


def test_statistics_are_off_by_default() -> None:
    miner = miners.BatchHardMiner()
    miner(*batch(0))
    assert not hasattr(miner, "hardest_pos_pair")
    assert miners.BatchHardMiner(collect_stats=True).hardest_pos_pair == 0
