"""What a sample weight means: 0 is removal, 1 is nothing, and 2 is twice where the formula allows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import nearfar.losses as losses
from oracles import CASES, Case, make_batch, value_and_grads

OUTSIDE = [c for c in CASES if c.options.get("weighting") == "outside"]
INSIDE = [c for c in CASES if c not in OUTSIDE]
SIDES = {
    "embeddings": ("embeddings", "labels", "weights"),
    "ref_emb": ("ref_emb", "ref_labels", "ref_weights"),
}


def weighted(case: Case, kind: str, seed: int = 0) -> dict[str, Any]:
    """A batch with a positive weight on every row of both sides."""
    batch = make_batch(case, kind, seed)
    for rows, _, weights in SIDES.values():
        if rows in batch:
            batch[weights] = 0.2 + 2 * torch.rand(len(batch[rows]), dtype=torch.float64)
    return batch


def keep(batch: dict[str, Any], side: str, index: Tensor) -> dict[str, Any]:
    return batch | {key: batch[key][index] for key in SIDES[side] if key in batch}


def assert_same(
    got: tuple[Tensor, dict[str, Tensor]], wanted: tuple[Tensor, dict[str, Tensor]], rtol: float = 1e-9
) -> None:
    torch.testing.assert_close(got[0], wanted[0], rtol=rtol, atol=1e-10)
    torch.testing.assert_close(got[1], wanted[1], rtol=rtol, atol=1e-10)


# multi-similarity(weighting="outside") is left out: there a sample of weight 0 still takes part in the mining
# and counts in the divisor (BSPML, Eq. 7).
@pytest.mark.parametrize("case", INSIDE, ids=str)
@pytest.mark.parametrize("kind", ["unbalanced", "references", "representatives", "uneven-representatives"])
def test_weight_zero_is_removal(case: Case, kind: str) -> None:
    loss = losses.create(case.name, **case.options).double()
    batch = weighted(case, kind)
    for side in ("embeddings", "ref_emb"):
        if side not in batch:
            continue
        n = len(batch[side])
        for gone in range(0, n, 2 if kind == "uneven-representatives" else 3):
            zeroed = dict(batch)
            key = SIDES[side][2]
            zeroed[key] = batch[key].clone()
            zeroed[key][gone] = 0
            rest = torch.tensor([i for i in range(n) if i != gone])
            removed = keep(batch, side, rest)
            if "representatives" in batch and gone < batch["representatives"]:
                removed["representatives"] = batch["representatives"] - 1

            value, grads = value_and_grads(loss, zeroed)
            wanted, wanted_grads = value_and_grads(loss, removed)

            torch.testing.assert_close(grads[side][gone], torch.zeros_like(grads[side][gone]), rtol=0, atol=1e-12)
            grads[side] = grads[side][rest]
            assert_same((value, grads), (wanted, wanted_grads))


@pytest.mark.parametrize("case", INSIDE, ids=str)
def test_weight_zero_removes_the_hardest_sample_before_mining(case: Case) -> None:
    """A duplicate under another label would be everybody's hardest negative, were it not removed."""
    loss = losses.create(case.name, **case.options).double()
    batch = make_batch(case, "balanced")
    wanted, wanted_grads = value_and_grads(loss, batch)
    n = len(batch["labels"])
    batch["embeddings"] = torch.cat([batch["embeddings"], batch["embeddings"][:2]])
    batch["labels"] = torch.cat([batch["labels"], batch["labels"].flip(0)[:2]])
    if case.ordered:  # a class of its own, because a third sample would be an error
        batch["labels"][n:] = torch.tensor([5, 5])
    batch["weights"] = torch.ones(n + 2, dtype=torch.float64)
    batch["weights"][n:] = 0

    value, grads = value_and_grads(loss, batch)

    assert (grads["embeddings"][n:] == 0).all()
    grads["embeddings"] = grads["embeddings"][:n]
    assert_same((value, grads), (wanted, wanted_grads))


@pytest.mark.parametrize("case", [c for c in INSIDE if c.ordered], ids=str)
def test_weight_zero_makes_room_for_a_third_sample(case: Case) -> None:
    """A removed sample is neither the first of its class nor the third."""
    loss = losses.create(case.name, **case.options).double()
    batch = make_batch(case, "balanced")
    wanted, _ = value_and_grads(loss, batch)
    for place in (0, 4, 8):
        batch_with = {
            "embeddings": torch.cat(
                [
                    batch["embeddings"][:place],
                    torch.randn(1, batch["embeddings"].shape[1], dtype=torch.float64),
                    batch["embeddings"][place:],
                ]
            ),
            "labels": torch.cat([batch["labels"][:place], torch.tensor([1]), batch["labels"][place:]]),
            "weights": torch.ones(9, dtype=torch.float64),
        }
        batch_with["weights"][place] = 0
        value, _ = value_and_grads(loss, batch_with)
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", ["unbalanced", "references", "representatives"])
def test_weights_of_one_are_no_weights(case: Case, kind: str) -> None:
    loss = losses.create(case.name, **case.options).double()
    batch = make_batch(case, kind)
    wanted = value_and_grads(loss, batch)
    batch["weights"] = torch.ones(len(batch["labels"]), dtype=torch.float64)
    assert_same(value_and_grads(loss, batch), wanted)
    if "ref_emb" in batch:
        batch["ref_weights"] = torch.ones(len(batch["ref_labels"]), dtype=torch.float64)
        assert_same(value_and_grads(loss, batch), wanted)
        del batch["weights"]
        assert_same(value_and_grads(loss, batch), wanted)


# Without references a doubled sample would be its own positive, so this is about anchors against references.
# Doubling an anchor doubles its terms and its share of every divisor, whatever the loss and its mining; only
# Eq. 7's divisor counts anchors.
@pytest.mark.parametrize("case", INSIDE, ids=str)
def test_anchor_of_weight_two_is_two_anchors(case: Case) -> None:
    loss = losses.create(case.name, **case.options).double()
    batch = weighted(case, "references")
    n = len(batch["labels"])
    for twin in range(0, n, 3):
        heavy = batch | {"weights": batch["weights"].clone()}
        heavy["weights"][twin] *= 2
        twice = keep(batch, "embeddings", torch.tensor([*range(n), twin]))

        value, grads = value_and_grads(loss, heavy)
        wanted, wanted_grads = value_and_grads(loss, twice)

        both = wanted_grads["embeddings"]
        wanted_grads["embeddings"] = both[:n].index_add(0, torch.tensor([twin]), both[n:])
        assert_same((value, grads), (wanted, wanted_grads))


# A doubled reference doubles its terms and its exponentials. Not where one negative is picked (hard and
# semi-hard: of two equal ones the second does not count), nor for the positives of smooth-ap, whose twin takes
# a rank of its own while the leading 1 of the rank has no weight.
@pytest.mark.parametrize("case", [c for c in CASES if c.twice != "none"], ids=str)
def test_reference_of_weight_two_is_two_references(case: Case) -> None:
    loss = losses.create(case.name, **case.options).double()
    batch = weighted(case, "references")
    n = len(batch["ref_labels"])
    anchor_labels = batch["labels"].tolist()
    for twin in range(n):
        if case.twice == "negatives" and batch["ref_labels"][twin].item() in anchor_labels:
            continue
        heavy = batch | {"ref_weights": batch["ref_weights"].clone()}
        heavy["ref_weights"][twin] *= 2
        twice = keep(batch, "ref_emb", torch.tensor([*range(n), twin]))

        value, grads = value_and_grads(loss, heavy)
        wanted, wanted_grads = value_and_grads(loss, twice)

        both = wanted_grads["ref_emb"]
        wanted_grads["ref_emb"] = both[:n].index_add(0, torch.tensor([twin]), both[n:])
        assert_same((value, grads), (wanted, wanted_grads))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", ["unbalanced", "references"])
def test_weights_matter(case: Case, kind: str) -> None:
    loss = losses.create(case.name, **case.options).double()
    batch = make_batch(case, kind)
    plain, _ = value_and_grads(loss, batch)
    value, _ = value_and_grads(loss, batch | weighted(case, kind))
    assert (value - plain).abs() > 1e-5


@pytest.mark.parametrize("case", OUTSIDE, ids=str)
def test_outside_is_homogeneous_of_degree_two(case: Case) -> None:
    loss = losses.create(case.name, **case.options).double()
    batch = weighted(case, "unbalanced")
    value, grads = value_and_grads(loss, batch)
    scaled, scaled_grads = value_and_grads(loss, batch | {"weights": 3 * batch["weights"]})
    torch.testing.assert_close(scaled, 9 * value, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(scaled_grads["embeddings"], 9 * grads["embeddings"], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", OUTSIDE, ids=str)
def test_outside_divides_by_all_anchors(case: Case) -> None:
    """Anchors of weight 0 drop out of the sum but not out of its divisor."""
    loss = losses.create(case.name, **case.options).double()
    batch = weighted(case, "references")
    n = len(batch["labels"])
    value, _ = value_and_grads(loss, batch)
    weights = torch.cat([batch["weights"], torch.zeros(3, dtype=torch.float64)])
    padded = keep(batch, "embeddings", torch.tensor([*range(n), 0, 1, 2])) | {"weights": weights}
    torch.testing.assert_close(value_and_grads(loss, padded)[0], value * n / (n + 3), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float32_weights_with_float64_rows(case: Case) -> None:
    loss = losses.create(case.name, **case.options).double()
    batch = weighted(case, "unbalanced")
    single = batch["weights"].float()
    value, _ = value_and_grads(loss, batch | {"weights": single})
    wanted, _ = value_and_grads(loss, batch | {"weights": single.double()})
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-10)


# Means know only the ratios of weights. Left out: losses with a 1 beside a weighted sum (inside a logarithm or a rank),
# a logarithm of a weighted sum, a sum over anchors, and Eq. 7.
RATIOS = [
    c
    for c in CASES
    if c.name in ("binomial", "contrastive", "fastap", "margin", "pair-margin", "snr", "triplet", "rdml")
]


@pytest.mark.parametrize("scale", [1e-30, 1e-16, 1e20, 1e30])
@pytest.mark.parametrize("case", RATIOS, ids=str)
def test_only_the_ratios_of_weights_matter_in_a_mean(case: Case, scale: float) -> None:
    loss = losses.create(case.name, **case.options)
    batch = make_batch(case, "weighted")
    batch = {k: v.float() if v.is_floating_point() else v for k, v in batch.items()}
    value, grads = value_and_grads(loss, batch)
    scaled = batch | {k: batch[k] * scale for k in ("weights", "ref_weights") if k in batch}
    again, grads_again = value_and_grads(loss, scaled)
    torch.testing.assert_close(again, value, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(grads_again["embeddings"], grads["embeddings"], rtol=1e-3, atol=1e-5)
