"""Bad input is a ValueError that names the argument and what arrived. Nothing is silently repaired."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

import nearfar.losses as losses
from oracles import CASES, DIM, Case, make_batch

FIRST_CASES = [c for c in CASES if not c.options]

X = torch.arange(6 * DIM, dtype=torch.float32).reshape(6, DIM).sin()
Y = torch.tensor([0, 0, 1, 1, 2, 2])
HOT = torch.nn.functional.one_hot(Y)
W = torch.ones(6)


def with_value(x: torch.Tensor, value: float, *place: int) -> torch.Tensor:
    x = x.clone()
    x[place] = value
    return x


# what is wrong: (keyword arguments, what the message must name)
BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "embeddings of rank 1": ({"embeddings": X[0]}, ("embeddings", f"[{DIM}]")),
    "embeddings of rank 3": ({"embeddings": X[None]}, ("embeddings", f"[1, 6, {DIM}]")),
    "embeddings of integers": ({"embeddings": torch.ones(6, DIM).long()}, ("embeddings", "torch.int64")),
    "empty batch": ({"embeddings": X[:0], "labels": Y[:0]}, ("embeddings", f"[0, {DIM}]")),
    "no features": ({"embeddings": X[:, :0]}, ("embeddings", "[6, 0]")),
    "NaN embedding": ({"embeddings": with_value(X, math.nan, 4, 1)}, ("embeddings", "NaN", "4")),
    "infinite embedding": ({"embeddings": with_value(X, math.inf, 4, 1)}, ("embeddings", "infinite", "4")),
    "minus infinite embedding": ({"embeddings": with_value(X, -math.inf, 4, 1)}, ("embeddings", "4")),
    "too few labels": ({"labels": Y[:5]}, ("labels", "5", "6")),
    "too many labels": ({"labels": torch.cat([Y, Y])}, ("labels", "12", "6")),
    "float labels": ({"labels": Y.float()}, ("labels", "torch.float32")),
    "float multi-hot labels": ({"labels": HOT.float()}, ("labels", "torch.float32")),
    "labels of rank 0": ({"labels": Y[0]}, ("labels", "[]")),
    "labels of rank 3": ({"labels": HOT[None]}, ("labels", "[1, 6, 3]")),
    "negative weight": ({"weights": with_value(W, -0.5, 3)}, ("weights", "-0.5")),
    "NaN weight": ({"weights": with_value(W, math.nan, 3)}, ("weights", "nan")),
    "infinite weight": ({"weights": with_value(W, math.inf, 3)}, ("weights", "inf")),
    "too few weights": ({"weights": W[:5]}, ("weights", "[5]", "6")),
    "weights of rank 2": ({"weights": W[:, None]}, ("weights", "[6, 1]", "6")),
    "ref_emb without ref_labels": ({"ref_emb": X}, ("ref_emb", "ref_labels")),
    "ref_labels without ref_emb": ({"ref_labels": Y}, ("ref_emb", "ref_labels")),
    "ref_weights without ref_emb": ({"ref_weights": W}, ("ref_emb", "ref_weights")),
    "references of another dimension": (
        {"ref_emb": X[:, :3], "ref_labels": Y},
        ("ref_emb", "[6, 3]", str(DIM)),
    ),
    "references of rank 1": ({"ref_emb": X[0], "ref_labels": Y}, ("ref_emb", f"[{DIM}]")),
    "NaN reference": (
        {"ref_emb": with_value(X, math.nan, 2, 0), "ref_labels": Y},
        ("ref_emb", "NaN", "2"),
    ),
    "too few ref_labels": ({"ref_emb": X, "ref_labels": Y[:4]}, ("ref_labels", "4", "6")),
    "float ref_labels": ({"ref_emb": X, "ref_labels": Y.float()}, ("ref_labels", "torch.float32")),
    "negative ref_weight": (
        {"ref_emb": X, "ref_labels": Y, "ref_weights": with_value(W, -2.0, 1)},
        ("ref_weights", "-2.0"),
    ),
    "too few ref_weights": (
        {"ref_emb": X, "ref_labels": Y, "ref_weights": W[:2]},
        ("ref_weights", "[2]", "6"),
    ),
    "integers against multi-hot": ({"ref_emb": X, "ref_labels": HOT}, ("labels", "ref_labels")),
    "multi-hot against integers": (
        {"labels": HOT, "ref_emb": X, "ref_labels": Y},
        ("labels", "ref_labels"),
    ),
    "multi-hot of different widths": (
        {"labels": HOT, "ref_emb": X, "ref_labels": HOT[:, :2]},
        ("labels", "ref_labels", "3", "2"),
    ),
    "multi-hot with a 2": ({"labels": 2 * HOT}, ("labels", "2")),
    "negative representatives": ({"representatives": -1}, ("representatives", "-1")),
    "no representatives": ({"representatives": 0}, ("representatives", "0")),
    "only representatives": ({"representatives": 6}, ("representatives", "6")),
    "more representatives than rows": ({"representatives": 7}, ("representatives", "7")),
    "representatives with references": (
        {"ref_emb": X, "ref_labels": Y, "representatives": 3},
        ("representatives", "ref_emb"),
    ),
}


@pytest.mark.parametrize("case", FIRST_CASES, ids=str)
@pytest.mark.parametrize("wrong", BAD)
def test_bad_input_is_named(case: Case, wrong: str) -> None:
    change, words = BAD[wrong]
    arguments = {"embeddings": X, "labels": Y} | change
    with pytest.raises(ValueError) as error:  # noqa: PT011, the words follow
        losses.create(case.name)(arguments.pop("embeddings"), arguments.pop("labels"), **arguments)
    message = str(error.value)
    for word in words:
        # The whole word: "labels" is not named by "ref_labels", nor 4 by 0.42.
        assert re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.]*\w)", message), f"{word!r} is not in: {message}"


@pytest.mark.parametrize("case", FIRST_CASES, ids=str)
def test_good_input_passes(case: Case) -> None:
    """The batch that the bad ones are made of is legal, so the errors above are about what was changed."""
    loss = losses.create(case.name)
    loss(X, Y, weights=W)
    loss(X, Y, ref_emb=X, ref_labels=Y, ref_weights=W)
    loss(X, Y, representatives=3)
    if "multi-hot" in case.kinds:
        loss(X, HOT, ref_emb=X, ref_labels=HOT)


@pytest.mark.parametrize("case", FIRST_CASES, ids=str)
def test_only_embeddings_and_labels_are_positional(case: Case) -> None:
    with pytest.raises(TypeError):
        losses.create(case.name)(X, Y, X, Y)


def test_huge_finite_rows_are_not_called_infinite() -> None:
    for case in FIRST_CASES:
        batch = make_batch(case, "balanced")
        losses.create(case.name)(1e18 * batch["embeddings"].float(), batch["labels"])


@pytest.mark.parametrize("label", [-1, 3])
def test_margin_names_a_label_outside_its_classes(label: int) -> None:
    with pytest.raises(ValueError, match="labels") as error:
        losses.create("margin", classes=3)(X, torch.tensor([0, 0, 1, 1, 2, label]))
    assert str(label) in str(error.value)


def test_margin_with_classes_takes_no_multi_hot_labels() -> None:
    with pytest.raises(ValueError, match="labels"):
        losses.create("margin", classes=3)(X, HOT)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("supcon", "temperature"),
        ("nt-xent", "temperature"),
        ("smooth-ap", "temperature"),
        ("fastap", "bins"),
        ("hap2s", "gamma"),
        ("circle", "gamma"),
        ("binomial", "scale_pos"),
        ("binomial", "scale_neg"),
        ("multi-similarity", "alpha"),
        ("multi-similarity", "beta"),
    ],
)
@pytest.mark.parametrize("value", [0, -1])
def test_option_that_must_be_positive(name: str, option: str, value: int) -> None:
    with pytest.raises(ValueError, match=option) as error:
        losses.create(name, **{option: value})
    assert str(value) in str(error.value)


@pytest.mark.parametrize(("labels", "wrong"), [([0, 1, 5], 5), ([0, -2, 1], -2)])
def test_hap_names_the_label_without_levels(labels: list[int], wrong: int) -> None:
    loss = losses.create("hap", levels=[[0], [0], [1]])
    with pytest.raises(ValueError, match=rf"labels must be in 0\.\.2 because levels has 3 classes, got {wrong}$"):
        loss(torch.eye(3), torch.tensor(labels))
