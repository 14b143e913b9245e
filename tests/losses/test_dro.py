"""DRO beyond what every loss is tested for: its p and F, the recoveries, sampling, and the options."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

import nearfar.losses as losses
from nearfar.losses import DROLoss
from nearfar.losses.binomial import BinomialDevianceLoss
from nearfar.losses.contrastive import ContrastiveLoss
from nearfar.losses.dro import KL, ChiSquare, GroupedKL, Max, Mean, TopK, TopKPN, UncertaintySet, register
from nearfar.losses.dro import names as set_names
from nearfar.losses.dro.uncertainty import UNCERTAINTY_SETS
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_margin import PairMarginLoss
from nearfar.mining import hardest
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs, pair_masks
from oracle_dro import SET_OPTIONS, create_dro, nest
from tests.oracles import KINDS, case, make_batch, oracle, value_and_grads

SETS: dict[str, dict[str, Any]] = {
    "mean": {},
    "max": {},
    "topk": {"k": 5},
    "topk-pn": {"k": 6},
    "kl": {"gamma": 0.4},
    "kl-g": {"gamma": 0.4, "gamma_neg": 0.2},
    "chi2": {"rho": 3.0},
}
PAIRS: dict[str, dict[str, Any]] = {
    "pair-margin": {"m": 0.3, "threshold": 0.4},
    "binomial": {"scale_pos": 3.0, "scale_neg": 10.0},
    "contrastive": {"form": "cosine"},
}
EVERY_SET = pytest.mark.parametrize("uncertainty", SETS)


def batch_of(n: int = 12, classes: int = 4, dim: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centers = torch.randn(classes, dim, generator=g, dtype=torch.float64)
    x = centers[labels] + torch.randn(n, dim, generator=g, dtype=torch.float64)
    return x.requires_grad_(), labels


def gradient(value: Tensor, x: Tensor) -> Tensor:
    (grad,) = torch.autograd.grad(value, x)
    return grad


def make(uncertainty: str, pair: str = "pair-margin", **options: Any) -> DROLoss:
    loss = create_dro(pair=pair, uncertainty=uncertainty, **(SETS[uncertainty] | options))
    assert isinstance(loss, DROLoss)
    return loss


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pair", PAIRS)
@EVERY_SET
def test_every_set_and_pair_loss_against_the_loop(uncertainty: str, pair: str, kind: str) -> None:
    options = nest(pair=pair, pair_options=PAIRS[pair], uncertainty=uncertainty, **SETS[uncertainty])
    loss = losses.create("dro", **options)
    batch = make_batch(case("dro"), kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a k above the number of pairs is a case too
        value, grads = value_and_grads(loss, batch)
    wanted, wanted_grads = value_and_grads(oracle("dro", options), batch)
    torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(grads, wanted_grads, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["balanced", "weighted", "zero-weights", "weighted-references", "representatives"])
@EVERY_SET
def test_p_is_a_distribution_and_the_loss_is_its_mean(uncertainty: str, kind: str) -> None:
    loss = make(uncertainty)
    batch = make_batch(case("dro"), kind)
    value = loss(**batch)
    p = loss.weights_of(**batch)
    assert not p.requires_grad
    assert (p >= 0).all()
    if uncertainty != "kl-g":
        assert p.sum() == pytest.approx(1)
    pairs: list[Tensor] = []
    spy = DROLoss(lambda sim, same: pairs.append(loss.pair.elementwise(Pairs(sim, same, ~same))) or pairs[-1], Mean())
    spy(**batch)
    assert (p * pairs[0]).sum().item() == pytest.approx(value.item())


@pytest.mark.parametrize("pair", PAIRS)
@EVERY_SET
def test_gradient_is_that_of_the_robust_value(uncertainty: str, pair: str) -> None:
    """Danskin; and F itself is differentiated rightly."""
    loss = make(uncertainty, pair)
    for kind in ("unbalanced", "weighted", "weighted-references"):
        batch = make_batch(case("dro"), kind)
        _, grads = value_and_grads(loss, batch)
        _, robust = value_and_grads(loss.robust_value, batch)
        torch.testing.assert_close(grads, robust, rtol=1e-10, atol=1e-13)
        x = batch.pop("embeddings").requires_grad_()
        assert torch.autograd.gradcheck(lambda e, batch=batch: loss.robust_value(e, **batch), (x,))


@pytest.mark.parametrize("uncertainty", ["max", "topk", "chi2"])
def test_no_other_p_of_the_set_does_better(uncertainty: str) -> None:
    """Random p of the set: mixtures of p of other losses, which the set allows as well, since it is convex."""
    loss = make(uncertainty)
    x, labels = batch_of()
    best = loss.robust_value(x, labels).item()
    values = PairMarginLoss().elementwise(PairMarginLoss().compare(PairBatch(x, labels))).detach()
    for seed in range(20):
        elsewhere = [loss.weights_of(batch_of(seed=seed + n)[0], labels) for n in (1, 2)]
        assert ((0.3 * elsewhere[0] + 0.7 * elsewhere[1]) * values).sum() <= best + 1e-12


@EVERY_SET
def test_compiles_to_one_graph(uncertainty: str) -> None:
    torch._dynamo.reset()
    for options in ({}, {"sampling": True}):
        loss = make(uncertainty, **options)
        x, labels = batch_of()
        wanted = copy.deepcopy(loss)(x, labels)
        compiled = torch.compile(loss, fullgraph=True, backend="eager")
        value = compiled(x, labels)
        torch.testing.assert_close(value, wanted)
        torch.testing.assert_close(gradient(value, x), gradient(wanted, x))


def test_truncated_kl_with_weights_compiles_to_one_graph() -> None:
    torch._dynamo.reset()
    loss = make("kl", truncate=6)
    x, labels = batch_of()
    weights = torch.rand(len(x), generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    expected = loss(x, labels, weights=weights)
    value = torch.compile(loss, fullgraph=True, backend="eager")(x, labels, weights=weights)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient(value, x), gradient(expected, x))


@pytest.mark.parametrize("few", [0, 1, 16])
@pytest.mark.parametrize("kind", ["balanced", "weighted", "references", "weighted-references", "representatives"])
@EVERY_SET
def test_sparse_gradient_is_the_dense_one(
    uncertainty: str, kind: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(case("dro"), kind)
    for pair in PAIRS:
        loss = make(uncertainty, pair)
        monkeypatch.setattr("nearfar.losses.dro.loss.SPARSE_FROM", math.inf)
        wanted, wanted_grads = value_and_grads(loss, batch)
        monkeypatch.setattr("nearfar.losses.dro.loss.SPARSE_FROM", 0)
        monkeypatch.setattr("nearfar.losses.dro.loss.FEW", few)
        value, grads = value_and_grads(loss, batch)
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(grads, wanted_grads, rtol=1e-11, atol=1e-14)


def test_sparse_gradient_of_no_pair_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.losses.dro.loss.SPARSE_FROM", 0)
    x = torch.eye(4, dtype=torch.float64).requires_grad_()
    for uncertainty in SETS:
        for n in (1, 4):
            value = make(uncertainty)(x[:n], torch.arange(n))
            assert value.item() == 0
            assert (gradient(value, x) == 0).all()


@pytest.mark.parametrize("weight", [1e-3, 1.0, 1e4])
@EVERY_SET
def test_extreme_weights_and_empty_groups_in_float32(uncertainty: str, weight: float) -> None:
    x, _ = batch_of()
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8])  # seven anchors without positives
    single = x.detach().float().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for options in ({}, {"dummy": True}) if uncertainty == "kl-g" else ({},):
            value = make(uncertainty, **options)(single, labels, weights=torch.full((12,), weight))
            assert value.isfinite()
            assert gradient(value, single).isfinite().all()
            alone = make(uncertainty, **options)(single, torch.arange(12), weights=torch.full((12,), weight))
            assert gradient(alone, single).isfinite().all()


@EVERY_SET
def test_all_losses_zero_is_zero_with_a_graph(uncertainty: str) -> None:
    x = torch.eye(4, dtype=torch.float64).repeat_interleave(2, 0).requires_grad_()
    labels = torch.arange(4).repeat_interleave(2)
    for options in ({}, {"sampling": True, "num_draws": 3}):
        loss = create_dro(uncertainty=uncertainty, pair_options={"m": 0.0}, **options)
        value = loss(x, labels)
        assert value.item() == 0
        assert (gradient(value, x) == 0).all()
        assert loss.robust_value(x, labels).item() == 0  # type: ignore[operator]


# --- recoveries (methods.md 2.4), exact in float64


def grouped(x: Tensor, labels: Tensor, m: float, **options: Any) -> Tensor:
    loss = create_dro(pair_options={"m": m}, uncertainty="kl-g", reduction="sum", **options)
    return gradient(loss(x, labels), x)


@pytest.mark.parametrize("seed", range(3))
def test_lifted_structure_out_of_grouped_kl(seed: int) -> None:
    x, labels = batch_of(16, 4, seed=seed)  # |P||N| = 3 x 12 > e^2: no hinge is at rest
    lifted = losses.create("lifted", form="anchor", threshold=0.3)(x, labels)
    assert (grouped(x, labels, 4.0, gamma=1.0) - gradient(lifted, x)).abs().max() < 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_two_threshold_multi_similarity_out_of_grouped_kl(seed: int) -> None:
    x, labels = batch_of(seed=seed)
    ms = losses.create("multi-similarity", alpha=2.0, beta=10.0, threshold=2.5, neg_threshold=-1.5, epsilon=None)
    wanted = gradient(len(x) * ms(x, labels), x)
    ours = grouped(x, labels, 2.0, gamma=1 / 2, gamma_neg=1 / 10, dummy=True)
    assert (ours - wanted).abs().max() < 1e-12
    loss = create_dro(
        pair_options={"m": 2.0}, uncertainty="kl-g", gamma=0.5, gamma_neg=0.1, dummy=True, reduction="sum"
    )
    assert (gradient(loss.robust_value(x, labels), x) - wanted).abs().max() < 1e-12  # type: ignore[operator]


@pytest.mark.parametrize("gamma", [0.1, 0.3, 1.0])
def test_hap2s_out_of_grouped_kl(gamma: float) -> None:
    x, labels = batch_of()
    hap2s = losses.create("hap2s", gamma=gamma, margin=4.0)(x, labels)
    assert (grouped(x, labels, 4.0, gamma=gamma) - len(x) * gradient(hap2s, x)).abs().max() < 1e-12


# --- identities (methods.md section 10)


@pytest.mark.parametrize("pair", PAIRS)
def test_topk_limits(pair: str) -> None:
    x, labels = batch_of()
    n = len(x) * (len(x) - 1) // 2
    assert make("topk", pair, k=1)(x, labels).item() == pytest.approx(make("max", pair)(x, labels).item(), rel=1e-14)
    assert make("topk", pair, k=n)(x, labels).item() == pytest.approx(make("mean", pair)(x, labels).item(), rel=1e-14)


def test_unordered_pairs_are_half_of_the_ordered() -> None:
    """The same rows as references: every entry is a pair, twice as many; the self pairs are taken out by a mask."""
    x, labels = batch_of()
    values = PairMarginLoss().elementwise(PairMarginLoss().compare(PairBatch(x.detach(), labels)))
    off = ~torch.eye(len(x), dtype=torch.bool)
    assert make("topk", k=7)(x, labels).item() == pytest.approx(values[off].topk(14).values.mean().item(), rel=1e-14)
    p = (values[off] / 0.4).where(values[off] > 0, -torch.inf).softmax(0)
    assert make("kl")(x, labels).item() == pytest.approx((p * values[off]).sum().item(), rel=1e-13)


def test_kl_is_monotone_between_mean_and_max() -> None:
    x, labels = batch_of()
    values = [make("kl", "binomial", gamma=g).robust_value(x, labels).item() for g in (1e-3, 0.1, 0.5, 1.0, 1e5)]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(make("max", "binomial")(x, labels).item(), abs=1e-3 * math.log(66))
    assert values[-1] == pytest.approx(make("mean", "binomial")(x, labels).item(), abs=1e-4)


def test_kl_survives_a_tiny_gamma_in_float32() -> None:
    x, labels = batch_of()
    single = x.detach().float().requires_grad_()
    for uncertainty in ("kl", "kl-g"):
        for gamma in (1e-3, 1e-6):
            value = make(
                uncertainty, "binomial", gamma=gamma, **({"gamma_neg": gamma} if uncertainty == "kl-g" else {})
            )
            assert value(single, labels).item() == pytest.approx(value(x, labels).item(), rel=1e-4)
            assert gradient(value(single, labels), single).isfinite().all()


def test_p_is_zero_outside_of_the_pairs() -> None:
    x, labels = batch_of()
    for uncertainty in SETS:
        assert (make(uncertainty).weights_of(x, labels).diagonal() == 0).all()


# --- top K


def test_2b_is_twice_the_anchors() -> None:
    x, labels = batch_of()
    for uncertainty in ("topk", "topk-pn"):
        for pairs in ({}, {"ref_emb": x[:10] + 0.1, "ref_labels": labels[:10]}):
            named = create_dro(uncertainty=uncertainty)(x, labels, **pairs)
            assert create_dro(uncertainty=uncertainty).options["uncertainty"]["k"] == "2B"
            assert named.item() == create_dro(uncertainty=uncertainty, k=2 * len(x))(x, labels, **pairs).item()


def test_more_than_all_pairs_is_their_mean_and_warns() -> None:
    x, labels = batch_of()
    with pytest.warns(UserWarning, match=r"k=67 needs 67 pairs but the batch has 66"):
        value = make("topk", k=67)(x, labels)
    assert value.item() == pytest.approx(make("mean")(x, labels).item(), rel=1e-14)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make("topk", k=66)(x, labels)
        make("topk-pn", k=1000)(x, labels)  # kk = min(K/2, positives, negatives) is its definition
        make("topk", k=3)(x[:1], labels[:1])  # no pair at all


def test_topk_divides_by_k_when_fewer_losses_are_above_zero() -> None:
    x = torch.eye(6, dtype=torch.float64).requires_grad_()
    labels = torch.tensor([0, 0, 1, 2, 3, 4])  # one positive pair of loss 0.7, all other losses 0
    assert make("topk", k=4)(x, labels).item() == pytest.approx(0.7 / 4)


def test_pn_takes_as_many_of_both_kinds() -> None:
    x, labels = batch_of()
    same = (labels[:, None] == labels).fill_diagonal_(False)
    for k, each in ((2, 1), (7, 3), (8, 4), (500, 12)):
        p = make("topk-pn", k=k).weights_of(x, labels)
        assert (p[same] > 0).sum() == (p[~same] > 0).sum() == 2 * each
        torch.testing.assert_close(p[p > 0], torch.full_like(p[p > 0], 1 / (4 * each)))


def test_integer_weights_are_twins() -> None:
    """Weighted top K against references, where a twin makes no new pair with its twin."""
    x, labels = batch_of()
    refs, ref_labels = batch_of(8, seed=5)
    times, ref_times = torch.tensor([1, 2, 1, 3] * 3), torch.tensor([2, 1, 0, 1] * 2)
    many = {
        "embeddings": x.repeat_interleave(times, 0),
        "labels": labels.repeat_interleave(times),
        "ref_emb": refs.repeat_interleave(ref_times, 0),
        "ref_labels": ref_labels.repeat_interleave(ref_times),
    }
    for uncertainty in SETS:
        loss = make(uncertainty)
        few = loss(
            x, labels, ref_emb=refs, ref_labels=ref_labels, weights=times.double(), ref_weights=ref_times.double()
        )
        assert few.item() == pytest.approx(loss(**many).item(), rel=1e-12)


def test_weighted_topk_takes_the_last_pair_in_part() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    refs = torch.tensor([[0.6, 0.8], [1.0, 0.0]], dtype=torch.float64)
    call = {"ref_emb": refs, "ref_labels": torch.tensor([0, 0]), "ref_weights": torch.tensor([0.5, 4.0]).double()}
    p = make("topk", k=1).weights_of(x[:1], torch.tensor([0]), **call)  # losses 0.1 (weight 0.5) and 0
    torch.testing.assert_close(p, torch.tensor([[0.5, 0.5]]).double())


# --- chi square


@pytest.mark.parametrize("pair", PAIRS)
def test_chi2_is_mean_plus_deviation_where_the_ball_is_inside(pair: str) -> None:
    x, labels = batch_of()
    off = torch.triu(torch.ones(len(x), len(x)), 1).bool()
    make_pair = losses.create(pair)
    values = make_pair.elementwise(make_pair.compare(PairBatch(x.detach(), labels)))[off]  # type: ignore[operator]
    n, mean, variance = len(values), values.mean(), values.var(correction=0)
    largest_rho = n * variance / (2 * (mean - values.min()) ** 2)  # here the smallest p becomes 0
    for share in (0.01, 0.5, 0.999):
        rho = float(share * largest_rho)
        loss = create_dro(pair=pair, uncertainty="chi2", rho=rho)
        wanted = mean + (2 * rho * variance / n).sqrt()
        assert loss(x, labels).item() == pytest.approx(wanted.item(), rel=1e-12)
        assert (loss.weights_of(x, labels)[off] > 0).all()  # type: ignore[operator]
    beyond = create_dro(pair=pair, uncertainty="chi2", rho=float(2 * largest_rho))
    assert (beyond.weights_of(x, labels)[off] == 0).any()  # type: ignore[operator]
    assert beyond(x, labels) < mean + (4 * largest_rho * variance / n).sqrt()


@pytest.mark.parametrize("rho", [1e-6, 0.1, 1.0, 10.0, 100.0, 1e3, 2e3, 1e9])
@pytest.mark.parametrize("weighted", [False, True])
def test_chi2_is_in_the_ball_and_optimal(rho: float, weighted: bool) -> None:
    """KKT: on the boundary (or a vertex), and l - eta proportional to p/q where p is above 0, at most 0 elsewhere."""
    x, labels = batch_of()
    call = {"weights": torch.rand(len(x), dtype=torch.float64) + 0.1} if weighted else {}
    w = call.get("weights", torch.ones(len(x), dtype=torch.float64))
    off = torch.triu(torch.ones(len(x), len(x)), 1).bool()
    each = (w[:, None] * w)[off]
    n = each.sum()
    loss = create_dro(pair="binomial", uncertainty="chi2", rho=rho)
    p = 2 * loss.weights_of(x, labels, **call)[off]  # type: ignore[operator]
    values = BinomialDevianceLoss().elementwise(BinomialDevianceLoss().compare(PairBatch(x.detach(), labels)))[off]
    assert p.sum().item() == pytest.approx(1, rel=1e-12)
    ball = (each / n * (p / (each / n) - 1).square()).sum() / 2
    if (p > 0).sum() == 1:
        assert p[values.argmax()] == 1
        assert ball <= rho / n
        return
    assert ball.item() == pytest.approx(rho / n.item(), rel=1e-6)
    inside = p > 0
    line = torch.stack([p[inside] / each[inside], torch.ones(int(inside.sum()), dtype=torch.float64)], 1)
    slope, eta = torch.linalg.lstsq(line, values[inside, None]).solution
    assert slope > 0
    torch.testing.assert_close(line @ torch.stack([slope, eta]), values[inside, None], rtol=0, atol=1e-8)
    assert (values[~inside] <= eta + 1e-9).all()


def test_chi2_of_equal_losses_is_uniform() -> None:
    for rho in (1e-3, 1.0, 1e3):
        p = create_dro(uncertainty="chi2", rho=rho).weights_of(  # type: ignore[operator]
            torch.ones(5, 3), torch.tensor([0, 0, 0, 0, 0])
        )
        off = ~torch.eye(5, dtype=torch.bool)
        torch.testing.assert_close(p[off], torch.full((20,), 1 / 20))


# --- sampling


def test_sampled_loss_is_unbiased() -> None:
    x, labels = batch_of()
    for options in (
        {"uncertainty": "kl", "gamma": 0.4},
        {"uncertainty": "kl", "weights": "expm1", "truncate": 6},
        {"uncertainty": "kl-g", "gamma": 1.0, "reduction": "sum"},
        {"uncertainty": "chi2"},
    ):
        exact, loss = create_dro(**options), create_dro(**options, sampling=True, num_draws=16)
        draws = [loss(x, labels) for _ in range(600)]
        values, gradients = torch.stack(draws).detach(), torch.stack([gradient(value, x) for value in draws])
        root = math.sqrt(len(draws))
        assert (values.mean() - exact(x, labels)).abs() < 5 * values.std() / root
        far = (gradients.mean(0) - gradient(exact(x, labels), x)).abs() / (gradients.std(0) / root + 1e-12)
        assert far.max() < 6


def test_draws_never_leave_the_support() -> None:
    x, labels = batch_of()
    loss = create_dro(uncertainty="topk", k=3, sampling=True, num_draws=5000)
    p = loss.weights_of(x, labels)  # type: ignore[operator]
    index, share = loss.draw(p)  # type: ignore[operator]
    assert (p.flatten()[index] > 0).all()
    assert set(index.tolist()) == set((p.flatten() > 0).nonzero().flatten().tolist())
    assert share.sum().item() == pytest.approx(1)


def test_draws_are_reproducible_and_in_the_state() -> None:
    x, labels = batch_of()

    def new(seed: int = 3) -> torch.nn.Module:
        return create_dro(uncertainty="kl", gamma=1.0, sampling=True, num_draws=4, seed=seed)

    first, second, other = new(), new(), new(seed=4)
    run = [first(x, labels).item() for _ in range(4)]
    assert len(set(run)) > 1
    torch.rand(7)  # the global generator has no part in it
    assert [second(x, labels).item() for _ in range(4)] == run
    assert [other(x, labels).item() for _ in range(4)] != run
    resumed = new()
    resumed.load_state_dict(first.state_dict())
    assert resumed(x, labels).item() == first(x, labels).item()
    first.eval()
    calls = first.calls.item()  # type: ignore[union-attr, operator]
    assert first(x, labels).item() == first(x, labels).item()
    assert first.calls.item() == calls  # type: ignore[union-attr, operator]


def test_number_of_draws() -> None:
    x, labels = batch_of()
    p = make("kl").weights_of(x, labels)
    assert len(make("kl", sampling=True).draw(p)[0]) == 4 * len(x)  # 2K ordered, K = 2B
    assert len(make("kl", truncate=6, sampling=True).draw(p)[0]) == 12
    assert len(make("kl", num_draws=7, sampling=True).draw(p)[0]) == 7


# --- how it is made


def test_objects_and_names_are_the_same() -> None:
    x, labels = batch_of()
    made = {
        "mean": Mean(),
        "max": Max(),
        "topk": TopK(5),
        "topk-pn": TopKPN(6),
        "kl": KL(0.4),
        "kl-g": GroupedKL(0.4, 0.2),
        "chi2": ChiSquare(3.0),
    }
    assert set(made) == set(SETS) == set(set_names())
    for name, uncertainty in made.items():
        for pair in (PairMarginLoss(m=0.3), BinomialDevianceLoss(scale_neg=10.0), ContrastiveLoss(form="distance")):
            loss = DROLoss(pair, uncertainty)
            again = losses.create("dro", **yaml.safe_load(yaml.safe_dump(loss.options)))
            assert again.options == loss.options
            assert loss.options["uncertainty"]["name"] == name
            assert again(x, labels).item() == loss(x, labels).item()


def test_own_function() -> None:
    """Also one that is not finite where there is no pair: the diagonal has a cosine of 1."""
    x, labels = batch_of()

    def log_loss(sim: Tensor, same: Tensor) -> Tensor:
        return -torch.where(same, 1 + sim, 1 - sim).log() + 1

    for uncertainty in SETS:
        for call in ({}, {"weights": torch.rand(len(x), dtype=torch.float64)}):
            value = DROLoss(log_loss, make(uncertainty).uncertainty)(x, labels, **call)
            assert value.isfinite()
            assert gradient(value, x).isfinite().all()
    with pytest.raises(ValueError, match=r"pair must return losses of shape \[12, 12\], one per pair, got shape \[\]"):
        DROLoss(lambda sim, same: sim.sum(), Mean())(x, labels)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"uncertainty": "topk", "k": 0}, "k must be an integer of at least 1"),
        ({"uncertainty": "topk", "k": -3}, "-3"),
        ({"uncertainty": "topk", "k": 2.5}, "2.5"),
        ({"uncertainty": "topk", "k": "3B"}, "'3B'"),
        ({"uncertainty": "topk", "k": True}, "True"),
        ({"uncertainty": "topk-pn", "k": 1}, "k must be an integer of at least 2"),
        ({"uncertainty": "kl", "gamma": 0}, "gamma must be a finite number above 0, got 0"),
        ({"uncertainty": "kl", "gamma": -0.1}, "-0.1"),
        ({"uncertainty": "kl-g", "gamma": 0.0}, "gamma"),
        ({"uncertainty": "kl-g", "gamma_neg": -1.0}, "gamma_neg"),
        ({"uncertainty": "kl", "gamma": math.nan}, "gamma"),
        ({"uncertainty": "kl", "truncate": 0}, "truncate"),
        ({"uncertainty": "chi2", "rho": 0.0}, "rho"),
        ({"uncertainty": "kl", "weights": "softmax"}, "weights must be one of"),
        ({"uncertainty": "kl-g", "reduction": "none"}, "reduction"),
        ({"uncertainty": "top"}, "did you mean 'topk'"),
        ({"uncertainty": "kl", "k": 5}, "uncertainty set 'kl' has no option 'k'"),
        ({"uncertainty": "mean", "gamma": 1.0}, "uncertainty set 'mean' has no option 'gamma'"),
        ({"uncertainty": {"k": 5}}, "uncertainty={'k': 5} has no name"),
        ({"pair": "binomail"}, "did you mean 'binomial'"),
        ({"pair": "triplet"}, "pair must be one of"),
        ({"pair": PairMarginLoss(), "pair_options": {"m": 1}}, "pair_options"),
        ({"pair": losses.TripletMarginLoss()}, "elementwise"),
        ({"pair": 3}, "pair must be"),
        ({"pair_options": {"margin": 1}}, "'margin'"),
        ({"num_draws": 5}, "num_draws"),
        ({"sampling": True, "num_draws": 0}, "num_draws"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011, the words follow
        create_dro(**options)
    assert words in str(error.value)


@pytest.mark.parametrize("option", SET_OPTIONS)
def test_old_flat_options_are_answered_with_the_new_place(option: str) -> None:
    with pytest.raises(ValueError, match=rf"is now 'uncertainty\.{option}': set loss\.uncertainty\.{option}=5"):
        losses.create("dro", **{option: 5})


def test_users_register_their_own_uncertainty_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UNCERTAINTY_SETS, "_entries", dict(UNCERTAINTY_SETS._entries))

    @register("mean-of-positives")
    @dataclass(frozen=True)
    class MeanOfPositives(UncertaintySet):
        scale: float = 1.0

        def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
            return pairs.same * self.scale / pairs.same.sum()

    x, labels = batch_of()
    loss = losses.create("dro", uncertainty={"name": "mean-of-positives", "scale": 2.0})
    assert loss.options["uncertainty"] == {"name": "mean-of-positives", "scale": 2.0}
    same = pair_masks(labels)[0]
    values = PairMarginLoss().elementwise(PairMarginLoss().compare(PairBatch(x, labels)))[same]
    torch.testing.assert_close(loss(x, labels), 2 * values.mean())


def test_expm1_has_no_robust_value() -> None:
    with pytest.raises(ValueError, match="expm1"):
        make("kl", weights="expm1").robust_value(*batch_of())


def test_weights_and_robust_value_are_those_of_the_mined_pairs() -> None:
    x, labels = batch_of()
    loss = make("kl", gamma=0.3)
    loss.mine = partial(hardest, k=1)
    p = loss.weights_of(x, labels)
    kept = hardest(Pairs(cosine_matrix(x), *pair_masks(labels)), k=1)
    assert (p[~(kept.same | kept.diff | kept.same.T | kept.diff.T)] == 0).all()
    assert p.sum().item() == pytest.approx(1)
    assert (gradient(loss(x, labels), x) - gradient(loss.robust_value(x, labels), x)).abs().max() < 1e-12
