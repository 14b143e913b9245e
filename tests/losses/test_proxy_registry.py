"""What must hold of every proxy loss, in every form: the same tests run over all of CASES."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import nearfar.losses as losses
from losses.proxy_oracles import CLASSES, DIM, LABELS, PER_CLASS, slow_loss
from nearfar.losses.proxies.proxy_loss import DataWiseLoss, ProxyLoss

K = {"proxies_per_class": PER_CLASS}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("proxy-nca", {}),
    ("proxy-nca", {"positive_in_denominator": True, "scale": 8.0}),
    ("proxy-nca", {"form": "cosine", "scale": 12.0}),
    ("proxy-anchor", {}),
    ("proxy-anchor", {"alpha": 4.0, "delta": 0.3}),
    ("soft-triple", K),
    ("soft-triple", {"scale": 5.0, "gamma": 0.5, "similarity": "max", **K}),
    ("normalized-softmax", {}),
    ("normalized-softmax", {"temperature": 0.5}),
    ("cosface", {}),
    ("cosface", {"margin": 0.2, "scale": 5.0}),
    ("arcface", {}),
    ("arcface", {"angle": 60.0, "scale": 5.0}),
    ("subcenter-arcface", K),
    ("subcenter-arcface", {"proxies_per_class": 1, "angle": 10.0}),
    ("large-margin-softmax", {}),
    ("large-margin-softmax", {"margin": 3, "scale": 0.5}),
    ("sphereface", {}),
    ("sphereface", {"margin": 2, "scale": 2.0}),
    ("p2sgrad", {}),
    *[
        (name, options | K)
        for name in ("mpa", "mpa-dw", "mpa-ap")
        for options in (
            {},
            {"alpha": 4.0, "gamma": 0.5, "delta": 0.2, "tau": 1.0, "reg_eps": 0.0},
            {"similarity": "mean", "tau": 0.0},
            {"similarity": "max"},
        )
    ],
    ("mpa", {"proxies_per_class": 1}),
    ("proxy-isa", {"memory_size": 16}),
    ("proxy-isa", {"memory_size": 16, "base": "proxy-nca"}),
]
ids = [name + "".join(f"-{k}={v}" for k, v in options.items()) for name, options in CASES]
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=ids)
stateless = pytest.mark.parametrize(("name", "options"), CASES[:-2], ids=ids[:-2])
BATCHES = ("plain", "weighted", "zero-weights", "one-class", "one-sample")


def create(name: str, options: dict[str, Any], dtype: torch.dtype = torch.float64, **size: int) -> ProxyLoss:
    loss = losses.create(name, **({"classes": CLASSES, "dim": DIM} | size), **options)
    assert isinstance(loss, ProxyLoss)
    return loss.to(dtype).eval()


def batch(kind: str = "plain", dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor | None]:
    g = torch.Generator().manual_seed(len(kind))
    labels = torch.tensor({"one-class": [3, 3, 3], "one-sample": [2]}.get(kind, LABELS))
    x = torch.randn(len(labels), DIM, generator=g, dtype=torch.float64) * (0.5 + torch.arange(len(labels)))[:, None]
    weights = 0.2 + 2 * torch.rand(len(labels), generator=g, dtype=torch.float64) if "weight" in kind else None
    if weights is not None and kind == "zero-weights":
        weights[[1, 4]] = 0.0  # 4 is the only sample of class 3
    return x.to(dtype), labels, weights


def run(loss: Any, x: Tensor, labels: Tensor, weights: Tensor | None = None, **more: Any) -> tuple[Tensor, ...]:
    """Value, gradient of the embeddings, gradient of the proxies."""
    leaf = x.detach().clone().requires_grad_()
    value = loss(leaf, labels, weights=weights, **more)
    return (value.detach(), *torch.autograd.grad(value, [leaf, getattr(loss, "_orig_mod", loss).proxies]))


def close(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], rtol: float = 1e-9, atol: float = 1e-10) -> None:
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def test_every_proxy_loss_has_a_case() -> None:
    proxy_losses = {name for name in losses.names() if issubclass(losses.loss_class(name), ProxyLoss)}
    assert proxy_losses == {name for name, _ in CASES}


@stateless
@pytest.mark.parametrize("kind", BATCHES)
def test_value_and_gradients_are_those_of_the_slow_loss(name: str, options: dict[str, Any], kind: str) -> None:
    loss = create(name, options)
    x, labels, weights = batch(kind)
    leaf, proxies = x.clone().requires_grad_(), loss.proxies.detach().clone().requires_grad_()
    shown = {k: v for k, v in options.items() if k != "proxies_per_class"}
    wanted = slow_loss(name, shown, leaf, labels, proxies, weights)
    close(run(loss, x, labels, weights), (wanted.detach(), *torch.autograd.grad(wanted, [leaf, proxies])))


@stateless
@pytest.mark.parametrize("kind", ["plain", "weighted", "one-class"])
def test_gradcheck(name: str, options: dict[str, Any], kind: str) -> None:
    loss = create(name, options)
    x, labels, weights = batch(kind)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, _: loss(x, labels, weights=weights), (x, loss.proxies))


@stateless
def test_gradcheck_per_sample(name: str, options: dict[str, Any]) -> None:
    loss = create(name, options)
    if not isinstance(loss, DataWiseLoss):
        assert not hasattr(loss, "per_sample")
        return
    x, labels, weights = batch("weighted")
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, _: loss.per_sample(x, labels), (x, loss.proxies))
    terms = loss.per_sample(x, labels)
    assert terms.shape == (len(x),)
    penalty = loss.penalty(loss.class_similarities(x, labels))
    penalty = torch.zeros_like(terms[0]) if penalty is None else penalty
    torch.testing.assert_close(terms.mean() + penalty, loss(x, labels))
    weighted = loss.per_sample(x, labels, weights=weights)
    torch.testing.assert_close(weighted, terms * weights)
    torch.testing.assert_close(weighted.sum() / weights.sum() + penalty, loss(x, labels, weights=weights))


@every_case
@pytest.mark.parametrize("kind", ["plain", "one-class"])
def test_weight_zero_is_removal(name: str, options: dict[str, Any], kind: str) -> None:
    loss = create(name, options)
    x, labels, _ = batch(kind)
    weights = 0.2 + 2 * torch.rand(len(x), dtype=torch.float64)
    x[0] *= -1e3  # the hardest of all must leave no trace either
    for gone in range(len(x)):
        zeroed = weights.clone()
        zeroed[gone] = 0
        rest = torch.tensor([i for i in range(len(x)) if i != gone])
        value, by_x, by_proxies = run(loss, x, labels, zeroed)
        wanted = run(loss, x[rest], labels[rest], weights[rest])
        assert (by_x[gone] == 0).all()
        close((value, by_x[rest], by_proxies), wanted)


@every_case
def test_weight_two_is_twice_and_one_is_nothing(name: str, options: dict[str, Any]) -> None:
    loss = create(name, options)
    x, labels, _ = batch()
    close(run(loss, x, labels, torch.ones(len(x))), run(loss, x, labels))
    weights = torch.ones(len(x), dtype=torch.float64)
    weights[2] = 2
    twice = torch.tensor([*range(len(x)), 2])
    value, by_x, by_proxies = run(loss, x, labels, weights)
    wanted, twice_by_x, wanted_by_proxies = run(loss, x[twice], labels[twice])
    twice_by_x[2] += twice_by_x[-1]
    close((value, by_x, by_proxies), (wanted, twice_by_x[:-1], wanted_by_proxies))
    assert (value - run(loss, x, labels)[0]).abs() > 1e-6


@every_case
def test_nothing_left_is_a_zero_with_a_graph(name: str, options: dict[str, Any]) -> None:
    loss = create(name, options | ({"tau": 0.0} if "tau" in losses.loss_class(name)(classes=2, dim=2).options else {}))
    x, labels, _ = batch()
    value, by_x, by_proxies = run(loss, x, labels, torch.zeros(len(x)))
    assert value == 0
    assert not by_x.any()
    assert not by_proxies.any()


@every_case
def test_order_of_samples_and_length_of_rows_do_not_matter(name: str, options: dict[str, Any]) -> None:
    loss = create(name, options)
    x, labels, weights = batch("weighted")
    assert weights is not None
    value, by_x, by_proxies = run(loss, x, labels, weights)
    perm = torch.randperm(len(x))
    close(run(loss, x[perm], labels[perm], weights[perm]), (value, by_x[perm], by_proxies))
    scale = 10 ** (4 * torch.rand(len(x), 1, dtype=torch.float64) - 2)
    if name not in ("large-margin-softmax", "sphereface"):  # their logits grow with the norms of the embeddings
        close(run(loss, scale * x, labels, weights), (value, by_x / scale, by_proxies))
        along = (by_x * x).sum(1)
        torch.testing.assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-10)
    if name != "large-margin-softmax":  # its logits grow with the norms of the proxies too
        with torch.no_grad():
            loss.proxies.mul_(7.0)
        close(run(loss, x, labels, weights), (value, by_x, by_proxies / 7))


@every_case
def test_order_of_classes_and_of_their_proxies_does_not_matter(name: str, options: dict[str, Any]) -> None:
    loss = create(name, options)
    x, labels, _ = batch()
    value, by_x, by_proxies = run(loss, x, labels)
    perm = torch.randperm(CLASSES)
    turn = torch.randperm(by_proxies.shape[1]) if by_proxies.ndim == 3 else slice(None)
    with torch.no_grad():
        loss.proxies.copy_(loss.proxies[perm][:, turn])
    close(run(loss, x, perm.argsort()[labels]), (value, by_x, by_proxies[perm][:, turn]))


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    loss = create(name, options, torch.float32)
    x, labels, weights = batch("weighted", dtype)
    value, by_x, by_proxies = run(loss, x, labels, weights)
    wanted = run(loss, x.float(), labels, weights)
    assert value.dtype == by_proxies.dtype == torch.float32
    assert by_x.dtype == dtype
    close((value, by_proxies), (wanted[0], wanted[2]), rtol=1e-5, atol=1e-6)
    close((by_x.float(),), (wanted[1],), rtol=2e-2, atol=2e-2 * float(wanted[1].abs().max()))
    x32 = x.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = run(loss, x32, labels, weights)
    close(cast, wanted, rtol=1e-5, atol=1e-6)


@every_case
def test_float64_rows_are_computed_in_float64_whatever_the_proxies(name: str, options: dict[str, Any]) -> None:
    single = create(name, options, torch.float32)
    double = copy.deepcopy(single).double()
    x, labels, _ = batch()
    value, by_x, by_proxies = run(single, x, labels)
    wanted = run(double, x, labels)
    assert by_proxies.dtype == torch.float32
    close((value, by_x, by_proxies.double()), wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(value, wanted[0], rtol=1e-12, atol=0)


@every_case
def test_compiles_to_one_graph(name: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    loss = create(name, options)
    compiled = torch.compile(loss, fullgraph=True, backend="eager", dynamic=False)
    # weights are parsed before the form matters: once a loss is enough
    first = next(i for i, (other, _) in enumerate(CASES) if other == name)
    x, labels, weights = batch("zero-weights" if CASES[first][1] == options else "plain")
    close(run(compiled, x, labels, weights), run(loss, x, labels, weights))


EDGES: dict[str, tuple[list[list[float]], list[int]]] = {
    "one sample": ([[1, 2, 3, 4, 5]], [0]),
    "one class": ([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]], [4, 4]),
    "zero rows": ([[0] * 5, [0] * 5, [1, 0, 0, 0, 0]], [0, 1, 1]),
    "tiny and huge rows": ([[1e-30] * 5, [1e15, 0, 0, 0, 0]], [0, 1]),
}


@every_case
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges_are_finite(name: str, options: dict[str, Any], edge: str, dtype: torch.dtype) -> None:
    rows, ids = EDGES[edge]
    x, labels = torch.tensor(rows, dtype=dtype), torch.tensor(ids)
    for classes in (CLASSES, 5):
        for part in run(create(name, options, dtype, classes=classes), x, labels):
            assert part.isfinite().all()


@every_case
def test_one_class_in_all_is_finite(name: str, options: dict[str, Any]) -> None:
    loss = create(name, options, classes=1)
    for part in run(loss, batch()[0], torch.zeros(len(LABELS), dtype=torch.int64)):
        assert part.isfinite().all()


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_on_and_opposite_to_proxies_are_finite(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    loss = create(name, options, dtype)
    on = loss.proxies.detach()
    on = on if on.ndim == 2 else on[:, 0]
    for x in (on, -on, 1e4 * on, torch.cat([on, -on])):
        for part in run(loss, x, torch.arange(CLASSES).repeat(len(x) // CLASSES)):
            assert part.isfinite().all()
    with torch.no_grad():
        loss.proxies[0] = 0.0  # a proxy without a direction
        if loss.proxies.ndim == 3:
            loss.proxies[1] = loss.proxies[1, :1]  # proxies that coincide
    value, by_x, by_proxies = run(loss, on, torch.arange(CLASSES))
    assert value.isfinite()
    assert by_x.isfinite().all()
    assert by_proxies.isfinite().all()
    # the logits of large-margin-softmax are dot products, which have a gradient at a zero proxy
    assert name == "large-margin-softmax" or not by_proxies[0].any()


@pytest.mark.parametrize(
    ("name", "option"),
    [(n, o) for n, o in [(n, "alpha") for n in ("proxy-anchor", "mpa", "mpa-dw", "mpa-ap", "proxy-isa")]]
    + [(n, "scale") for n in ("proxy-nca", "soft-triple", "cosface", "arcface", "subcenter-arcface")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scale_of_ten_thousand_is_finite_and_right(name: str, option: str, dtype: torch.dtype) -> None:
    options: dict[str, Any] = {option: 1e4}
    if "proxies_per_class" in losses.loss_class(name)(classes=2, dim=2).options:
        options["proxies_per_class"] = PER_CLASS
    x, labels, weights = batch("weighted")
    exact = create(name, options)
    wanted = run(exact, x, labels, weights)
    got = run(copy.deepcopy(exact).to(dtype), x.to(dtype), labels, weights)
    assert all(part.isfinite().all() for part in (*wanted, *got))
    assert float(got[0]) == pytest.approx(float(wanted[0]), rel=1e-4)
    if name != "proxy-isa":
        shown = {option: 1e4}
        slow = slow_loss(name, shown, x, labels, exact.proxies.detach(), weights)
        assert float(wanted[0]) == pytest.approx(float(slow), rel=1e-9)


@every_case
def test_state_options_and_repr(name: str, options: dict[str, Any]) -> None:
    loss, other = create(name, options), create(name, options)
    x, labels, _ = batch()
    assert not torch.equal(other(x, labels), loss(x, labels))
    other.load_state_dict(loss.state_dict(), strict=True)
    assert torch.equal(other(x, labels), loss(x, labels))
    assert loss.options | options == loss.options
    again = losses.create(name, **loss.options)
    assert again.options == loss.options
    for key, value in loss.options.items():
        assert re.search(rf"\b{key}={re.escape(repr(value))}", repr(loss))
    assert isinstance(loss.proxies, torch.nn.Parameter)
    assert loss.proxies.shape[0] == CLASSES
    assert loss.proxies.shape[-1] == DIM


@every_case
def test_representatives_are_ignored_and_calls_are_pure(name: str, options: dict[str, Any]) -> None:
    loss = create(name, options)
    x, labels, weights = batch("weighted")
    kept = x.clone(), labels.clone(), copy.deepcopy(loss.state_dict())
    first = run(loss, x, labels, weights)
    close(run(loss, x, labels, weights, representatives=3), first, rtol=0, atol=0)
    close(run(loss, x, labels.to(torch.int32), weights), first, rtol=0, atol=0)
    assert torch.equal(x, kept[0])
    assert torch.equal(labels, kept[1])
    for key, value in loss.state_dict().items():
        assert torch.equal(value, kept[2][key]), key


@every_case
def test_training_moves_samples_to_their_proxies(name: str, options: dict[str, Any]) -> None:
    loss = create(name, options)
    x, labels, _ = batch()
    x = torch.nn.functional.normalize(x).requires_grad_()
    adam = torch.optim.Adam([{"params": [x]}, *loss.parameter_groups(1e-2, 2.0)], lr=1e-2)
    assert [group["lr"] for group in adam.param_groups] == pytest.approx([1e-2, 2e-2])
    assert adam.param_groups[1]["params"][0] is loss.proxies
    first = float(loss(x, labels).detach())
    for _ in range(300):
        adam.zero_grad()
        loss(x, labels).backward()
        adam.step()
    assert float(loss(x, labels).detach()) < first
    assert (loss.class_similarities(x, labels).matrix.argmax(0) == labels).all()


X, Y = batch()[0].float(), torch.tensor(LABELS)
BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "embeddings of another dimension": ({"embeddings": X[:, :3]}, ("embeddings", "5", "[10, 3]")),
    "embeddings of rank 1": ({"embeddings": X[0]}, ("embeddings", "[5]")),
    "embeddings not a tensor": ({"embeddings": X.tolist()}, ("embeddings", "list")),
    "embeddings of integers": ({"embeddings": X.long()}, ("embeddings", "int64")),
    "empty batch": ({"embeddings": X[:0], "labels": Y[:0]}, ("embeddings", "[0, 5]")),
    "NaN embedding": ({"embeddings": X / (X[4, 1] != X)}, ("embeddings", "4")),
    "label too large": ({"labels": Y + 4}, ("labels", "0..5 because classes=6", "4..7")),
    "negative label": ({"labels": Y - 1}, ("labels", "0..5 because classes=6", "-1..2")),
    "too few labels": ({"labels": Y[:5]}, ("labels", "5", "10")),
    "float labels": ({"labels": Y.float()}, ("labels", "float32")),
    "multi-hot labels": ({"labels": torch.eye(6).long()[Y][:, :5]}, ("labels", "[10, 5]")),
    "negative weight": ({"weights": -torch.ones(10)}, ("weights", "-1.0")),
    "too few weights": ({"weights": torch.ones(4)}, ("weights", "[4]", "10")),
    "ref_emb": ({"ref_emb": X, "ref_labels": Y}, ("ref_emb", "proxies")),
    "ref_labels": ({"ref_labels": Y}, ("ref_labels", "proxies")),
    "ref_weights": ({"ref_weights": torch.ones(10)}, ("ref_weights", "proxies")),
}


@every_case
@pytest.mark.parametrize("wrong", BAD)
def test_bad_input_is_named(name: str, options: dict[str, Any], wrong: str) -> None:
    change, words = BAD[wrong]
    arguments: dict[str, Any] = {"embeddings": X, "labels": Y} | change
    loss = create(name, options, torch.float32).train()
    state = copy.deepcopy(loss.state_dict())
    with pytest.raises(ValueError, match=words[0]) as error:
        loss(arguments.pop("embeddings"), arguments.pop("labels"), **arguments)
    for word in words:
        assert word in str(error.value)
    assert all(torch.equal(state[key], value) for key, value in loss.state_dict().items())


NOT_POSITIVE = [
    (n, o)
    for n, known in ((name, losses.loss_class(name)(classes=2, dim=2).options) for name in {n for n, _ in CASES})
    for o in ("classes", "dim", "alpha", "scale", "temperature", "gamma", "proxies_per_class", "memory_size")
    if o in known
]


@pytest.mark.parametrize(("name", "option"), sorted(NOT_POSITIVE))
@pytest.mark.parametrize("value", [0, -1])
def test_option_that_must_be_positive(name: str, option: str, value: int) -> None:
    with pytest.raises(ValueError, match=option) as error:
        losses.create(name, **({"classes": 3, "dim": 2} | {option: value}))
    assert str(value) in str(error.value)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("mpa", "tau", -0.1),
        ("mpa", "reg_eps", -1e-5),
        ("soft-triple", "similarity", "softmx"),
        ("proxy-nca", "form", "cosin"),
        ("proxy-isa", "base", "proxy-anchr"),
        ("proxy-isa", "positive_penalty", "sigm"),
        ("proxy-isa", "negative_penalty", "invers"),
        ("proxy-isa", "volume", 1.0),
        ("arcface", "angle", 90.0),
        ("subcenter-arcface", "angle", -1.0),
        ("mpa-ap", "proxies_per_class", 2.5),
    ],
)
def test_bad_option_is_named(name: str, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=option) as error:
        losses.create(name, classes=3, dim=2, **{option: value})
    assert str(value) in str(error.value)


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_classes_and_dim_are_required_and_unknown_options_are_named(name: str) -> None:
    with pytest.raises(ValueError, match="requires dim"):
        losses.create(name, classes=3)
    with pytest.raises(ValueError, match="did you mean 'classes'"):
        losses.create(name, clases=3, dim=2)


def test_parameter_groups_check_their_rates() -> None:
    loss = create("proxy-anchor", {})
    assert loss.parameter_groups(1e-4)[0]["lr"] == pytest.approx(1e-2)
    with pytest.raises(ValueError, match="proxy_lr_multiplier"):
        loss.parameter_groups(1e-4, 0)
