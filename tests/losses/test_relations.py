"""Losses from relations: with the relation of labels they are the losses themselves."""

from __future__ import annotations

import pytest
import torch

import nearfar.losses as losses
from nearfar.losses.pair_loss import GRADED_LOSSES, PairLoss
from nearfar.losses.relations import RelationLoss, relation_of_pairs
from nearfar.ops.pairs import Pairs
from oracles import CASES, Case, make_batch, value_and_grads

DEFAULT = PairLoss.graded_cost
UNCLASSED = [case for case in CASES if not case.ordered and not {"classes", "weighting", "levels"} & set(case.options)]


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


@pytest.mark.parametrize("case", UNCLASSED, ids=str)
@pytest.mark.parametrize("kind", ["unbalanced", "weighted-references"])
def test_every_pair_loss_takes_relation_in_place_of_labels(case: Case, kind: str) -> None:
    loss = losses.create(case.name, **case.options).double()
    batch = make_batch(case, kind)
    value, grads = value_and_grads(loss, batch)
    refs = batch.pop("ref_labels", batch["labels"])
    relation = (batch["labels"][:, None] == refs).double()
    found, found_grads = value_and_grads(loss, batch | {"labels": None, "relation": relation})
    torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found_grads, grads, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["contrastive", "triplet", "multi-similarity", "supcon", "nca", "hap"])
def test_a_list_of_pairs_is_its_matrix(name: str) -> None:
    x = torch.randn(6, 4, dtype=torch.float64)
    pairs = ([0, 2, 0, 3], [1, 3, 2, 1], [1, 1, -1, 0])
    loss = losses.create(name)
    assert loss(x, relation=pairs) == loss(x, relation=relation_of_pairs(*pairs, 6))
    y = torch.randn(4, 4, dtype=torch.float64)
    assert loss(x, relation=pairs, ref_emb=y) == loss(x, relation=relation_of_pairs(*pairs, 6, 4), ref_emb=y)


@pytest.mark.parametrize("name", GRADED_LOSSES)
def test_grades_need_no_wrapper(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x, grade = torch.randn(8, 3, generator=generator, dtype=torch.float64), grades(generator)
    loss = losses.create(name)
    assert loss(x, relation=grade) == RelationLoss(loss, graded=True)(x, grade)


def test_miners_select_among_known_pairs() -> None:
    x = torch.randn(6, 4, dtype=torch.float64)
    relation = relation_of_pairs([0, 0, 0, 2], [1, 2, 3, 3], [1, -1, -1, 1], 6)
    seen: list[Pairs] = []

    def watch(pairs: Pairs) -> Pairs:
        seen.append(pairs)
        return pairs

    loss = losses.create("contrastive")
    loss.mine = watch
    assert loss(x, relation=relation) > 0
    assert torch.equal(seen[0].same, relation == 1)
    assert torch.equal(seen[0].diff, relation == 0)
    with pytest.raises(ValueError, match=r"must be 0, 1 or NaN, got 0\.5: round graded relations, or use"):
        loss(x, relation=torch.full((6, 6), 0.5))


def test_hap_with_a_miner_learns_from_relations() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    relation = (labels[:, None] == labels).double()
    loss = losses.create("hap", mine={"name": "hardest", "k": 2})
    gradients = []
    for arguments in ({"labels": labels}, {"relation": relation}):
        rows = x.clone().requires_grad_()
        loss(rows, **arguments).backward()
        gradients.append(rows.grad)
    assert gradients[0].abs().sum() > 0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"relation": None}, "labels is missing: pass labels, or relation instead"),
        ({"relation": torch.eye(3), "labels": torch.arange(3)}, "cannot be combined with labels: remove labels"),
        ({"relation": torch.eye(3), "representatives": 1}, "cannot be combined with representatives"),
        ({"relation": [[1, 0, 0]] * 3}, r"relation must be a tensor \[3, 3\] or a tuple \(i, j, sign\), got list"),
        ({"relation": ([0], [1])}, "three sequences"),
        ({"relation": ([0], [1, 2], [1])}, r"of equal length, got \[1\], \[2\], \[1\]"),
        ({"relation": ([0], [3], [1])}, r"second must be in 0..2, got 3"),
        ({"relation": ([-1], [2], [1])}, r"first must be in 0..2, got -1"),
        ({"relation": ([0], [1], [2])}, r"sign must be \+1, -1 or 0, got 2"),
        ({"relation": ([0.5], [1], [1])}, "first must be integer indices, got torch.float32"),
        ({"relation": ([1], [1], [1])}, r"the pair \(1, 1\) relates a sample to itself"),
        ({"relation": ([0, 1], [1, 0], [1, -1])}, r"is listed as positive and as negative"),
    ],
)
def test_bad_relations_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        losses.create("supcon")(torch.randn(3, 4), **arguments)


def test_bad_arguments_of_aligned_pairs_and_other_losses_are_named() -> None:
    x = torch.randn(3, 4)
    loss = losses.create("nt-xent")
    for arguments, message in (
        ((x[0], x[1]), r"anchors must have shape \[N, d\], got shape \[4\]"),
        (([1.0], [2.0]), r"anchors must be a tensor of shape \[N, d\], got list"),
        ((x, x, torch.randn(2, 5)), r"negatives must have 4 columns, got shape \[2, 5\]"),
    ):
        with pytest.raises(ValueError, match=message):
            loss.pairs(*arguments)
    with pytest.raises(ValueError, match="relation is not supported: proxy losses need class labels"):
        losses.create("arcface", classes=2, dim=4)(x, relation=torch.eye(3))
    with pytest.raises(ValueError, match="labels is missing: pass class ids"):
        losses.create("arcface", classes=2, dim=4)(x)
    with pytest.raises(ValueError, match="the same number of ancestors for every class"):
        losses.create("hap", levels=[[0], [0, 1]])


def test_matryoshka_and_several_losses_take_relation() -> None:
    x, pairs = torch.randn(4, 4), ([0, 1], [1, 2], [1, -1])
    one, other = losses.create("supcon"), losses.create("triplet")
    nested = losses.create("supcon", matryoshka=[2, 4])
    torch.testing.assert_close(nested(x, relation=pairs), one(x[:, :2], relation=pairs) + one(x, relation=pairs))
    both = losses.CombinedLoss([one, other])
    torch.testing.assert_close(both(x, relation=pairs), one(x, relation=pairs) + other(x, relation=pairs))


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
    plain = losses.create("nt-xent", temperature=0.2)
    torch.testing.assert_close(plain.pairs(x, y, n), torch.nn.functional.cross_entropy(logits, torch.arange(5)))
    with pytest.raises(ValueError, match=r"positive_ids must be a tensor of shape \[5\]"):
        plain.pairs(x, y, positive_ids=torch.arange(4))
    # a positive that occurs twice is no negative of the other anchor
    y[1] = y[0]
    ids = torch.tensor([7, 7, 1, 2, 3])
    logits = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(y).T / 0.2
    logits[0, 1] = logits[1, 0] = -torch.inf
    masked = loss.aligned(x, y, positive_ids=ids)
    torch.testing.assert_close(masked, torch.nn.functional.cross_entropy(logits, torch.arange(5)))


def grades(generator: torch.Generator) -> torch.Tensor:
    """Return symmetric grades of 8 samples: 0, 1, other values, and unknown ones."""
    grade = torch.rand(8, 8, generator=generator, dtype=torch.float64)
    grade = torch.where(grade < 0.3, 0.0, torch.where(grade > 0.8, 1.0, grade)).triu(1)
    grade[0, 3] = grade[2, 5] = torch.nan
    return grade + grade.T


@pytest.mark.parametrize("name", ["contrastive", "binomial", "pair-margin", "supcon", "hap"])
def test_graded_losses_against_loops(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    grade = grades(generator)
    u = x / x.norm(dim=1, keepdim=True)
    loss = losses.create(name)
    pairs = [(i, j) for i in range(8) for j in range(8) if i != j and not torch.isnan(grade[i, j])]

    def as_kind(i: int, j: int, positive: bool) -> torch.Tensor:
        s = u[i] @ u[j]
        d = (u[i] - u[j]).norm()
        if name == "contrastive":
            return d**2 if positive else (1 - d).relu() ** 2
        if name == "pair-margin":
            return (0.2 + 0.5 - s).relu() if positive else (0.2 + s - 0.5).relu()
        return torch.log1p(torch.exp(-2 * (s - 0.5))) if positive else torch.log1p(torch.exp(40 * (s - 0.5))) / 20

    if name == "hap":
        expected = torch.zeros(())
    elif name == "supcon":
        terms = []
        for i in range(8):
            row = [j for a, j in pairs if a == i]
            log_p = torch.log_softmax(torch.stack([u[i] @ u[j] for j in row]) / 0.1, 0)
            target = grade[i][row]
            if target.sum() > 0:
                terms.append(-(target * log_p).sum() / target.sum())
        expected = torch.stack(terms).mean()
    else:
        terms = [grade[i, j] * as_kind(i, j, True) + (1 - grade[i, j]) * as_kind(i, j, False) for i, j in pairs]
        expected = torch.stack(terms).mean()
    value = RelationLoss(loss, graded=True)(x, grade)
    if name == "hap":  # three levels are the grades 1, 2/3, 1/3 and 0, which test_oracle.py compares with a loop
        levels = [[0, 0], [0, 0], [1, 0], [2, 1]]
        labels = torch.tensor([0, 0, 1, 2, 3, 1, 2, 0])
        table = torch.tensor([[c, *levels[c]] for c in labels])
        grade = (table[:, None] == table[None]).double().mean(2)
        value = RelationLoss(loss, graded=True)(x, grade)
        expected = losses.create(name, levels=levels)(x, labels)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    found, wanted = (torch.autograd.grad(each, x, retain_graph=True)[0] for each in (value, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9)
    binary = (grade.nan_to_num(0) >= 0.5).double()
    torch.testing.assert_close(RelationLoss(loss, graded=True)(x, binary), RelationLoss(loss)(x, binary))


def test_graded_relations_are_refused_where_the_formula_has_no_such_form() -> None:
    with pytest.raises(
        ValueError, match="TripletMarginLoss does not support grades between 0 and 1: use one of binomial, contrastive"
    ):
        RelationLoss(losses.create("triplet"), graded=True)
    with pytest.raises(ValueError, match="need form='squared'"):
        RelationLoss(losses.create("contrastive", form="cosine"), graded=True)(torch.eye(2), torch.full((2, 2), 0.5))
    with pytest.raises(ValueError, match="graded=True cannot be combined with a miner"):
        RelationLoss(losses.create("contrastive", mine="semi-hard"), graded=True)
    with pytest.raises(ValueError, match="between 0 and 1, or NaN"):
        RelationLoss(losses.create("supcon"), graded=True)(torch.eye(2), torch.full((2, 2), 1.5))
    graded = {case.name for case in CASES if type(losses.create(case.name, **case.options)).graded_cost is not DEFAULT}
    assert graded == set(GRADED_LOSSES)


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
        ("hap", {"levels": [[0], [0]]}, "without levels"),
    ):
        with pytest.raises(ValueError, match=f"needs class labels: .*{cure}"):
            RelationLoss(losses.create(name, **options))
    with pytest.raises(ValueError, match="proxy losses need class labels"):
        RelationLoss(losses.create("arcface", classes=2, dim=2))  # type: ignore[arg-type]
