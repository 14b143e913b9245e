"""What must hold of every registered loss, in every form: the same tests run over all of CASES."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nearfar.losses as losses
from nearfar.losses.base import LOSSES
from oracles import CASES, DIM, KINDS, Case, make_batch, oracle, value_and_grads

# Registered losses that this suite does not run over, each with the test file that does.
TESTED_ELSEWHERE: dict[str, str] = {
    "arcface": "test_proxy_registry.py",
    "cosface": "test_proxy_registry.py",
    "large-margin-softmax": "test_proxy_registry.py",
    "mpa": "test_proxy_registry.py",
    "mpa-ap": "test_proxy_registry.py",
    "mpa-dw": "test_proxy_registry.py",
    "normalized-softmax": "test_proxy_registry.py",
    "p2sgrad": "test_proxy_registry.py",
    "proxy-anchor": "test_proxy_registry.py",
    "proxy-isa": "test_proxy_registry.py",
    "proxy-nca": "test_proxy_registry.py",
    "soft-triple": "test_proxy_registry.py",
    "sphereface": "test_proxy_registry.py",
    "subcenter-arcface": "test_proxy_registry.py",
}


every_case = pytest.mark.parametrize("case", CASES, ids=str)


def every_case_and_kind(*kinds: str) -> pytest.MarkDecorator:
    """Each case on those of the kinds of batch that it takes."""
    both = [pytest.param(c, k, id=f"{c}-{k}") for c in CASES for k in kinds if k in c.kinds]
    return pytest.mark.parametrize(("case", "kind"), both)


def create(case: Case, dtype: torch.dtype = torch.float64) -> nn.Module:
    return losses.create(case.name, **case.options).to(dtype)


def as_dtype(batch: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in batch.items()}


def call(loss: nn.Module, batch: dict[str, Any]) -> Tensor:
    batch = dict(batch)
    return loss(batch.pop("embeddings"), batch.pop("labels"), **batch)


def test_every_registered_loss_has_a_case() -> None:
    covered = {case.name for case in CASES} | set(TESTED_ELSEWHERE)
    assert set(losses.names()) == covered, "add a Case and an oracle to tests/oracles.py"


def test_names_are_unique() -> None:
    assert len(set(losses.names())) == len(losses.names())


# A formula of which a part is constant in the gradient is left out: finite differences cannot see that. Its
# gradient is that of the oracle.
@pytest.mark.parametrize("case", [c for c in CASES if not c.detached], ids=str)
@pytest.mark.parametrize("kind", ["unbalanced", "weighted-references"])
def test_gradcheck(case: Case, kind: str) -> None:
    loss = create(case)
    batch = make_batch(case, kind)
    keys = [k for k in ("embeddings", "ref_emb") if k in batch]
    leaves = [batch[k].clone().requires_grad_() for k in keys]

    def f(*x: Tensor) -> Tensor:
        return call(loss, batch | dict(zip(keys, x, strict=False)))

    # One random direction: every single element is compared with the oracle's.
    assert torch.autograd.gradcheck(f, (*leaves, *loss.parameters()), fast_mode=True)


@every_case
def test_gradient_is_linear_in_the_upstream_gradient(case: Case) -> None:
    loss = create(case)
    batch = make_batch(case, "unbalanced")
    _, once = value_and_grads(loss, batch)
    _, thrice = value_and_grads(lambda *a, **k: -3 * loss(*a, **k), batch)
    assert once["embeddings"].abs().max() > 0
    torch.testing.assert_close(thrice["embeddings"], -3 * once["embeddings"])


@every_case_and_kind("unbalanced", "weighted", "multi-hot", "weighted-references")
def test_order_of_samples_does_not_matter(case: Case, kind: str) -> None:
    loss = create(case)
    batch = make_batch(case, kind)
    value, grads = value_and_grads(loss, batch)
    perm = torch.randperm(len(batch["labels"]))
    if case.ordered:
        # The first and the second of a class keep their order; everything else moves.
        for label in batch["labels"].unique():
            places = (batch["labels"][perm] == label).nonzero().flatten()
            perm[places] = perm[places].sort().values
    assert not torch.equal(perm, torch.arange(len(perm)))
    moved = dict(batch)
    for key in ("embeddings", "labels", "weights"):
        if key in batch:
            moved[key] = batch[key][perm]
    if "ref_emb" in batch:
        ref_perm = torch.randperm(len(batch["ref_labels"]))
        for key in ("ref_emb", "ref_labels", "ref_weights"):
            if key in batch:
                moved[key] = batch[key][ref_perm]

    moved_value, moved_grads = value_and_grads(loss, moved)

    torch.testing.assert_close(moved_value, value, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(moved_grads["embeddings"], grads["embeddings"][perm], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("case", [c for c in CASES if "huge-ids" in c.kinds], ids=str)
def test_names_of_classes_do_not_matter(case: Case) -> None:
    loss = create(case)
    batch = make_batch(case, "unbalanced")
    value, grads = value_and_grads(loss, batch)
    # Neighboring ids that float32 (2^24), int32 (2^31), float64 (2^53) cannot tell apart, and negative ones.
    for base in (2**24, 2**31, 2**53, 2**62, -(2**53) - 7, -3):
        renamed, renamed_grads = value_and_grads(loss, batch | {"labels": batch["labels"] + base})
        torch.testing.assert_close(renamed, value, rtol=0, atol=1e-12)
        torch.testing.assert_close(renamed_grads, grads, rtol=0, atol=1e-12)
    swapped = torch.tensor([7, -1, 2**40, 3, 0, 12])[batch["labels"]]
    torch.testing.assert_close(call(loss, batch | {"labels": swapped}), value, rtol=1e-9, atol=1e-10)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        torch.testing.assert_close(call(loss, batch | {"labels": batch["labels"].to(dtype)}), value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", [c for c in CASES if "multi-hot" in c.kinds], ids=str)
def test_one_hot_equals_ids(case: Case) -> None:
    loss = create(case)
    batch = make_batch(case, "unbalanced")
    one_hot = torch.nn.functional.one_hot(batch["labels"], 70)
    value = call(loss, batch)
    for dtype in (torch.int64, torch.bool, torch.uint8):
        hot = call(loss, batch | {"labels": one_hot.to(dtype)})
        torch.testing.assert_close(hot, value, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", [c for c in CASES if c.rotates], ids=str)
def test_rotation_does_not_matter(case: Case) -> None:
    loss = create(case)
    q, _ = torch.linalg.qr(torch.randn(DIM, DIM, dtype=torch.float64))
    for kind in ("unbalanced", "references"):
        batch = make_batch(case, kind)
        rotated = batch | {k: batch[k] @ q for k in ("embeddings", "ref_emb") if k in batch}
        torch.testing.assert_close(call(loss, rotated), call(loss, batch), rtol=1e-9, atol=1e-10)


def test_snr_is_not_rotation_invariant() -> None:
    """Its variance runs over the features; were it invariant, the exception above would be wrong."""
    case = next(c for c in CASES if c.name == "snr")
    batch = make_batch(case, "unbalanced")
    q, _ = torch.linalg.qr(torch.randn(DIM, DIM, dtype=torch.float64))
    turned = call(create(case), batch | {"embeddings": batch["embeddings"] @ q})
    assert (turned - call(create(case), batch)).abs() > 1e-3


@every_case
def test_scale(case: Case) -> None:
    """A loss of unit vectors does not see the length of a row; the others do."""
    loss = create(case)
    batch = make_batch(case, "unbalanced")
    scale = 10 ** (4 * torch.rand(len(batch["labels"]), 1, dtype=torch.float64) - 2)
    value, scaled = call(loss, batch), call(loss, batch | {"embeddings": scale * batch["embeddings"]})
    if case.scales:
        torch.testing.assert_close(scaled, value, rtol=1e-9, atol=1e-10)
        _, grads = value_and_grads(loss, batch)
        along = (grads["embeddings"] * batch["embeddings"]).sum(1)
        torch.testing.assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-10)
    else:
        assert (scaled - value).abs() > 1e-3


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input(case: Case, dtype: torch.dtype) -> None:
    """Half precision rows are computed in float32: the value is that of the rounded rows."""
    loss = create(case, torch.float32)
    for kind in ("unbalanced", "weighted-references"):
        rounded = as_dtype(make_batch(case, kind), dtype)
        value, grads = value_and_grads(loss, rounded)
        wanted, wanted_grads = value_and_grads(loss, as_dtype(rounded, torch.float32))
        assert value.dtype == torch.float32
        assert grads["embeddings"].dtype == dtype
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)
        size = wanted_grads["embeddings"].abs().max().item()
        torch.testing.assert_close(grads["embeddings"].float(), wanted_grads["embeddings"], rtol=2e-2, atol=2e-2 * size)


@every_case
def test_bfloat16_autocast(case: Case) -> None:
    loss = create(case, torch.float32)
    for kind in ("unbalanced", "weighted-references"):
        batch = as_dtype(make_batch(case, kind), torch.float32)
        value, grads = value_and_grads(loss, batch)

        def under_autocast(*args: Tensor, **kwargs: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return loss(*args, **kwargs)

        cast, cast_grads = value_and_grads(under_autocast, batch)
        assert cast.dtype == torch.float32
        torch.testing.assert_close(cast, value, rtol=1e-4, atol=1e-5)
        size = grads["embeddings"].abs().max().item()
        torch.testing.assert_close(cast_grads["embeddings"], grads["embeddings"], rtol=1e-3, atol=1e-3 * size)


@every_case_and_kind(*KINDS)
def test_float32_is_close_to_float64(case: Case, kind: str) -> None:
    batch = as_dtype(as_dtype(make_batch(case, kind), torch.float32), torch.float64)
    value, grads = value_and_grads(create(case), batch)
    single, single_grads = value_and_grads(create(case, torch.float32), as_dtype(batch, torch.float32))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), value, rtol=1e-4, atol=1e-5)
    for key, grad in grads.items():
        size = max(1.0, grad.abs().max().item())
        torch.testing.assert_close(single_grads[key].double(), grad, rtol=1e-3, atol=1e-4 * size)


def edge_batches(case: Case) -> dict[str, dict[str, Any]]:
    g = torch.Generator().manual_seed(3)
    rows = torch.randn(6, DIM, generator=g, dtype=torch.float64)
    pairs, triples = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 0, 0, 1, 1, 1])
    labels = pairs if case.ordered else triples
    one_class = 2 if case.ordered else 6
    zero_row = rows.clone()
    zero_row[[0, 3]] = 0
    zero_first = rows.clone()
    zero_first[labels == 0] = 0
    opposite = rows[:1].repeat(6, 1)
    opposite[3:] *= -1
    return {
        "no positives": {"embeddings": rows, "labels": torch.arange(6)},
        "no negatives": {"embeddings": rows[:one_class], "labels": torch.zeros(one_class, dtype=torch.long)},
        "one sample": {"embeddings": rows[:1], "labels": labels[:1]},
        "one feature": {"embeddings": rows[:, :1], "labels": labels},
        "one sample against references": {
            "embeddings": rows[:1],
            "labels": labels[:1],
            "ref_emb": rows[1:],
            "ref_labels": labels[1:],
        },
        "no positive among the references": {
            "embeddings": rows[:3],
            "labels": labels[:3],
            "ref_emb": rows[3:],
            "ref_labels": labels[3:] + 10,
        },
        "no negative among the references": {
            "embeddings": rows[:3],
            "labels": torch.zeros(3, dtype=torch.long),
            "ref_emb": rows[3:],
            "ref_labels": torch.zeros(3, dtype=torch.long),
        },
        "all duplicates": {"embeddings": rows[:1].repeat(6, 1), "labels": labels},
        "duplicates within a class": {"embeddings": rows[labels], "labels": labels},
        "duplicates as references": {
            "embeddings": rows,
            "labels": labels,
            "ref_emb": rows.clone(),
            "ref_labels": labels,
        },
        "opposite rows": {"embeddings": opposite, "labels": labels},
        "zero rows": {"embeddings": zero_row, "labels": labels},
        "a class of zero rows": {"embeddings": zero_first, "labels": labels},
        "only zero rows": {"embeddings": torch.zeros_like(rows), "labels": labels},
        "constant rows": {"embeddings": torch.ones_like(rows), "labels": labels},
        "huge rows": {"embeddings": 1e4 * rows, "labels": labels},
        "tiny rows": {"embeddings": 1e-12 * rows, "labels": labels},
        "all weights zero": {
            "embeddings": rows,
            "labels": labels,
            "weights": torch.zeros(6, dtype=torch.float64),
        },
        "one representative": {
            "embeddings": rows[:one_class],
            "labels": torch.zeros(one_class, dtype=torch.long),
            "representatives": 1,
        },
    }


EDGES = tuple(edge_batches(CASES[0]))
# Where rows are neither zero nor equal the formula says what the value is, and the oracle knows it.
EDGES_WITH_A_VALUE = (
    "no positives",
    "no negatives",
    "one sample",
    "one sample against references",
    "no positive among the references",
    "no negative among the references",
    "huge rows",
    "all weights zero",
    "one representative",
)


@every_case
@pytest.mark.parametrize("edge", EDGES)
def test_edge_is_finite_and_has_a_graph(case: Case, edge: str) -> None:
    for dtype in (torch.float32, torch.float64):
        loss = create(case, dtype)
        batch = as_dtype(edge_batches(case)[edge], dtype)
        value, grads = value_and_grads(loss, batch)  # fails where the value has no graph
        assert value.isfinite(), f"value {value} in {dtype}"
        assert value.ndim == 0
        for key, grad in grads.items():
            assert grad.isfinite().all(), f"gradient of {key} in {dtype}: {grad}"


@every_case
@pytest.mark.parametrize("edge", EDGES_WITH_A_VALUE)
def test_edge_has_the_value_of_the_formula(case: Case, edge: str) -> None:
    """A zero where the formula has nothing, else its value, with its gradient."""
    batch = edge_batches(case)[edge]
    loss = create(case)
    slow_params = {k: p.detach().clone() for k, p in loss.named_parameters()}
    slow = oracle(case.name, case.options)
    value, grads = value_and_grads(loss, batch)
    wanted, wanted_grads = value_and_grads(lambda *a, **k: slow(*a, params=slow_params, **k), batch)
    torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(grads, wanted_grads, rtol=1e-9, atol=1e-10)


@every_case
def test_two_calls_are_equal(case: Case) -> None:
    loss = create(case)
    for kind in ("unbalanced", "weighted-references"):
        batch = make_batch(case, kind)
        untouched = copy.deepcopy(batch)
        first, first_grads = value_and_grads(loss, batch)
        second, second_grads = value_and_grads(loss, batch)
        assert torch.equal(first, second)
        assert torch.equal(first_grads["embeddings"], second_grads["embeddings"])
        for key, value in untouched.items():
            assert torch.equal(batch[key], value), f"the call changed {key}"
        with torch.no_grad():
            assert torch.equal(call(loss, batch), first)


@every_case
def test_layout_in_memory_does_not_matter(case: Case) -> None:
    loss = create(case)
    batch = make_batch(case, "unbalanced")
    strided = batch["embeddings"].t().contiguous().t()
    assert not strided.is_contiguous()
    value, grads = value_and_grads(loss, batch)
    leaf = strided.detach().requires_grad_()
    other = call(loss, batch | {"embeddings": leaf})
    (grad,) = torch.autograd.grad(other, leaf)
    torch.testing.assert_close(other.detach(), value)
    torch.testing.assert_close(grad, grads["embeddings"])


@every_case
def test_state_dict_round_trip(case: Case) -> None:
    loss, other = create(case), create(case)
    for p in loss.parameters():
        p.data += 0.3
    result = other.load_state_dict(loss.state_dict(), strict=True)
    assert not result.missing_keys
    assert not result.unexpected_keys
    batch = make_batch(case, "unbalanced")
    assert torch.equal(call(other, batch), call(loss, batch))
    if list(loss.parameters()):
        assert not torch.equal(call(create(case), batch), call(loss, batch)), "the parameter has no effect"


@every_case
def test_repr_shows_the_options(case: Case) -> None:
    text = repr(losses.create(case.name, **case.options))
    for key, value in case.options.items():
        if isinstance(value, dict):
            assert f"{key}={{'name': {value['name']!r}" in text
            assert all(f"{option!r}: {chosen!r}" in text for option, chosen in value.items())
            continue
        if isinstance(value, list):
            assert f"{key}={value!r}" in text
            continue
        shown = re.search(rf"\b{key}=('[^']*'|[^,)\s]+)", text)
        assert shown, f"{key} is not in {text}"
        if isinstance(value, float):
            assert float(shown[1]) == pytest.approx(value)
        else:
            assert shown[1] in (repr(value), str(value))


@pytest.mark.parametrize("name", [c.name for c in CASES if not c.options])
def test_unknown_name_suggests_the_nearest(name: str) -> None:
    wrong = name[:2] + name[3:]
    with pytest.raises(ValueError, match=re.escape(repr(name))) as error:
        losses.create(wrong)
    assert wrong in str(error.value)


@pytest.mark.parametrize("case", [c for c in CASES if c.options], ids=str)
def test_unknown_option_suggests_the_nearest(case: Case) -> None:
    key = next(iter(case.options))
    wrong = key[:-1] + "_"
    with pytest.raises(ValueError, match=rf"\b{key}\b") as error:
        losses.create(case.name, **{wrong: case.options[key]})
    assert wrong in str(error.value)


@pytest.mark.parametrize("case", [c for c in CASES if any(isinstance(v, str) for v in c.options.values())], ids=str)
def test_unknown_choice_is_an_error(case: Case) -> None:
    for key, value in case.options.items():
        if isinstance(value, str):
            with pytest.raises(ValueError, match=key) as error:
                losses.create(case.name, **(case.options | {key: value + "x"}))
            assert value in str(error.value)


def test_margin_starts_at_beta() -> None:
    assert losses.create("margin").beta.tolist() == pytest.approx([1.2])
    assert losses.create("margin", beta=0.9, classes=3).beta.tolist() == pytest.approx([0.9] * 3)


def test_trainable_decides_whether_beta_takes_a_gradient() -> None:
    assert losses.create("margin").beta.requires_grad
    assert not losses.create("margin", trainable=False).beta.requires_grad


@pytest.mark.parametrize(
    ("name", "options"), [("n-pair", {}), ("angular", {"batch": "n-pair"})], ids=["n-pair", "angular"]
)
def test_third_sample_of_a_class_is_an_error(name: str, options: dict[str, Any]) -> None:
    x = torch.randn(5, DIM)
    with pytest.raises(ValueError, match="labels"):
        losses.create(name, **options)(x, torch.tensor([4, 7, 4, 7, 4]))


def test_users_register_their_own_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOSSES, "_entries", dict(LOSSES._entries))

    @losses.register("custom")
    class CustomLoss(losses.TripletMarginLoss):
        pass

    assert isinstance(losses.create("custom", margin=0.1), CustomLoss)
    with pytest.raises(ValueError, match=r"loss 'triplet' is already registered by nearfar\.losses\.triplet"):
        losses.register("triplet")(CustomLoss)


def test_a_new_loss_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new_loss.py").write_text(
        "from nearfar.losses import TripletMarginLoss\n"
        "from nearfar.losses.base import register\n"
        '@register("new")\n'
        "class NewLoss(TripletMarginLoss): pass\n"
    )
    monkeypatch.setattr(LOSSES, "_entries", dict(LOSSES._entries))
    monkeypatch.setattr(LOSSES, "_package", "nearfar.losses")
    monkeypatch.setattr(losses, "__path__", [*losses.__path__, str(tmp_path)])
    assert type(losses.create("new")).__name__ == "NewLoss"
    sys.modules.pop("nearfar.losses.new_loss")


def test_no_loss_needs_warm_up_or_epochs_unless_it_says_so() -> None:
    loss = losses.create("triplet")
    loss.start_epoch(3)
    assert loss.warmup_epochs == 0
    assert losses.create("proxy-isa", classes=2, dim=2).warmup_epochs == 2
