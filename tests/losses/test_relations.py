"""Losses from relations: with the relation of labels they are the losses themselves."""

from __future__ import annotations

import pytest
import torch

import nearfar.losses as losses
from nearfar.losses.relations import RelationLoss, relation_of_pairs
from oracles import CASES, Case, make_batch, value_and_grads

UNCLASSED = [
    case for case in CASES if not case.ordered and "classes" not in case.options and "weighting" not in case.options
]


@pytest.mark.parametrize("case", UNCLASSED, ids=str)
@pytest.mark.parametrize("kind", ["unbalanced", "weighted-references"])
def test_the_relation_of_labels_is_the_loss_itself(case: Case, kind: str) -> None:
    loss = losses.create(case.name, **case.options).double()
    batch = make_batch(case, kind)
    value, grads = value_and_grads(loss, batch)
    refs = batch.pop("ref_labels", batch["labels"])
    relation = (batch["labels"][:, None] == refs).double()
    found, found_grads = value_and_grads(RelationLoss(loss), batch | {"labels": relation})
    torch.testing.assert_close(found, value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found_grads, grads, rtol=1e-12, atol=1e-12)


def test_unknown_pairs_have_no_effect() -> None:
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    relation = relation_of_pairs([0, 0, 2], [1, 2, 3], [1, -1, 1], 6)
    value = RelationLoss(losses.create("contrastive"))(x, relation)
    u = torch.nn.functional.normalize(x.detach())
    apart = [float((u[i] - u[j]).norm()) for i, j in ((0, 1), (2, 3), (0, 2))]
    assert value.item() == pytest.approx((apart[0] ** 2 + apart[1] ** 2 + max(0, 1 - apart[2]) ** 2) / 3)
    (grad,) = torch.autograd.grad(value, x)
    assert not grad[4:].any()
    assert grad[0].any()


def test_aligned_pairs_are_info_nce() -> None:
    x, y, n = (torch.randn(k, 4, dtype=torch.float64) for k in (5, 5, 3))
    loss = RelationLoss(losses.create("nt-xent", temperature=0.2))
    refs = torch.nn.functional.normalize(torch.cat([y, n]))
    logits = torch.nn.functional.normalize(x) @ refs.T / 0.2
    torch.testing.assert_close(loss.aligned(x, y, n), torch.nn.functional.cross_entropy(logits, torch.arange(5)))
    # a positive that occurs twice is no negative of the other anchor
    y[1] = y[0]
    ids = torch.tensor([7, 7, 1, 2, 3])
    logits = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(y).T / 0.2
    logits[0, 1] = logits[1, 0] = -torch.inf
    masked = loss.aligned(x, y, positive_ids=ids)
    torch.testing.assert_close(masked, torch.nn.functional.cross_entropy(logits, torch.arange(5)))


def test_errors() -> None:
    x = torch.randn(3, 4)
    loss = RelationLoss(losses.create("supcon"))
    with pytest.raises(ValueError, match=r"relation must have shape \[3, 3\], got \[3, 2\]"):
        loss(x, torch.zeros(3, 2))
    with pytest.raises(ValueError, match="must be 0, 1 or NaN"):
        loss(x, torch.full((3, 3), 0.5))
    with pytest.raises(ValueError, match=r"relation\[0, 1\] and relation\[1, 0\]"):
        loss(x, torch.tensor([[0.0, 1, 0], [0, 0, 0], [0, 0, 0]]))
    with pytest.raises(ValueError, match="must have the same shape"):
        loss.aligned(x, x[:2])
    for name, options, cure in (
        ("margin", {"classes": 3}, "without classes"),
        ("n-pair", {}, "all_pairs=True"),
        ("angular", {"batch": "n-pair"}, "batch='full'"),
    ):
        with pytest.raises(ValueError, match=f"needs class labels: .*{cure}"):
            RelationLoss(losses.create(name, **options))
    with pytest.raises(ValueError, match="proxy losses need class labels"):
        RelationLoss(losses.create("arcface", classes=2, dim=2))  # type: ignore[arg-type]
