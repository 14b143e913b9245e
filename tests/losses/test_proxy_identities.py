"""What the papers prove of the multi-proxy losses, and what other libraries compute."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from losses.proxy_oracles import CLASSES, DIM, LABELS, PER_CLASS
from nearfar.losses import create
from nearfar.losses.arcface import add_angle
from nearfar.losses.proxies.cosines import cosines, cosines_and_gram
from nearfar.losses.proxies.multi_proxy import pool_similarities, regularizer
from nearfar.ops.geometry import unit

Y = torch.tensor(LABELS)
SIZE = {"classes": CLASSES, "dim": DIM}


def rows(n: int = len(LABELS), dim: int = DIM) -> Tensor:
    return torch.randn(n, dim, dtype=torch.float64)


def with_proxies(name: str, proxies: Tensor, **options: Any) -> Any:
    if proxies.ndim == 3:
        options["proxies_per_class"] = proxies.shape[1]
    loss = create(name, classes=len(proxies), dim=proxies.shape[-1], **options).double()
    with torch.no_grad():
        loss.proxies.copy_(proxies)
    return loss


def grads(loss: Any, x: Tensor, labels: Tensor = Y, **more: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = loss(x, labels, **more)
    by_x, by_proxies = torch.autograd.grad(value, [x, loss.proxies])
    return value.detach(), by_x, by_proxies


def test_mpa_with_one_proxy_a_class_is_proxy_anchor() -> None:
    x, proxies = rows(), rows(CLASSES)
    weights = 0.1 + torch.rand(len(x), dtype=torch.float64)
    for more in ({}, {"weights": weights}):
        value, by_x, by_proxies = grads(with_proxies("mpa", proxies[:, None]), x, **more)
        wanted, wanted_by_x, wanted_by_proxies = grads(with_proxies("proxy-anchor", proxies), x, **more)
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(by_x, wanted_by_x, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(by_proxies[:, 0], wanted_by_proxies, rtol=1e-12, atol=1e-12)


def test_a_batch_of_one_class_divides_by_the_other_classes_in_mpa_and_by_all_in_proxy_anchor() -> None:
    x, proxies, labels = rows(3), rows(CLASSES), torch.tensor([2, 2, 2])
    sim = proxies.div(proxies.norm(dim=1, keepdim=True)) @ unit(x).T
    pos = torch.exp(-32 * (sim[2] - 0.1)).sum().log1p()
    neg = torch.exp(32 * (sim + 0.1)).sum(1).log1p()
    neg = neg.sum() - neg[2]
    torch.testing.assert_close(with_proxies("mpa", proxies[:, None])(x, labels), pos + neg / (CLASSES - 1))
    torch.testing.assert_close(with_proxies("proxy-anchor", proxies)(x, labels), pos + neg / CLASSES)


@pytest.mark.parametrize("similarity", ["softmax", "max", "mean"])
def test_identical_proxies_are_one_proxy(similarity: str) -> None:
    x, proxies = rows(), rows(CLASSES)
    loss = with_proxies("mpa", proxies[:, None].repeat(1, 3, 1), similarity=similarity, reg_eps=0.0)
    value, by_x, by_proxies = grads(loss, x)
    wanted, wanted_by_x, wanted_by_proxies = grads(with_proxies("proxy-anchor", proxies), x)
    torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-7)  # R is a root of rounding errors
    torch.testing.assert_close(by_x, wanted_by_x)
    torch.testing.assert_close(by_proxies.sum(1), wanted_by_proxies, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_mpa_ap_is_at_most_mpa_dw(seed: int) -> None:
    torch.manual_seed(seed)
    x, proxies = rows(), rows(CLASSES * PER_CLASS).view(CLASSES, PER_CLASS, DIM)
    for alpha in (1.0, 32.0):
        ap, dw = (with_proxies(name, proxies, alpha=alpha) for name in ("mpa-ap", "mpa-dw"))
        assert (ap.per_sample(x, Y) <= dw.per_sample(x, Y)).all()
        assert ap(x, Y) <= dw(x, Y)


def test_gamma_goes_from_the_largest_to_the_mean() -> None:
    sim = torch.rand(4, 3, 7, dtype=torch.float64) * 2 - 1
    torch.testing.assert_close(pool_similarities(sim, gamma=1e-4), pool_similarities(sim, "max"), rtol=0, atol=1e-6)
    torch.testing.assert_close(pool_similarities(sim, gamma=1e6), pool_similarities(sim, "mean"), rtol=0, atol=1e-5)
    torch.testing.assert_close(pool_similarities(sim, "max"), sim.amax(1))
    torch.testing.assert_close(pool_similarities(sim, "mean"), sim.mean(1))
    middle = pool_similarities(sim, gamma=0.1)
    assert (middle <= sim.amax(1)).all()
    assert (middle >= sim.mean(1)).all()
    for strategy in ("softmax", "max", "mean"):
        assert torch.equal(pool_similarities(sim[:, :1], strategy), sim[:, 0])


def test_regularizer_of_coincident_proxies_is_zero_and_order_does_not_matter() -> None:
    proxies = rows(CLASSES * 4).view(CLASSES, 4, DIM)
    _, gram = cosines_and_gram(unit(rows()), proxies)
    _, turned = cosines_and_gram(unit(rows()), proxies[:, torch.tensor([2, 0, 3, 1])])
    torch.testing.assert_close(regularizer(gram), regularizer(turned))
    ones = torch.ones(CLASSES, 4, 4, dtype=torch.float64)
    assert regularizer(ones, eps=0.0) == 0
    assert regularizer(ones, eps=1e-5) == pytest.approx(math.sqrt(1e-5) / 2)
    assert regularizer(ones[:, :1, :1], eps=1e-5) == 0
    same = proxies[:, :1].repeat(1, 4, 1).requires_grad_()
    _, gram = cosines_and_gram(unit(rows()), same)
    value = regularizer(gram, eps=0.0)
    assert float(value.detach()) < 1e-7
    (gradient,) = torch.autograd.grad(value, same)
    assert gradient.isfinite().all()


def test_gradient_of_mpa_is_eq_9_and_of_its_data_wise_kin_eqs_14_and_18() -> None:
    """dL/dS through sums of exponentials of differences of similarities, as the paper writes them."""
    alpha, delta = 4.0, 0.1
    x = rows()
    proxies = rows(CLASSES * PER_CLASS).view(CLASSES, PER_CLASS, DIM)
    for name in ("mpa", "mpa-dw", "mpa-ap"):
        loss = with_proxies(name, proxies, alpha=alpha, delta=delta)
        sims = loss.class_similarities(x, Y)
        sim = sims.matrix.detach().requires_grad_()
        object.__setattr__(sims, "matrix", sim)
        (got,) = torch.autograd.grad(loss.cost(sims), sim)
        s = sim.detach()
        wanted = torch.zeros_like(s)
        for c in range(CLASSES):
            for i, y in enumerate(LABELS):
                own, sign = y == c, -1 if y == c else 1
                # the exponent of a tie, and the sum that it belongs to
                z = alpha * torch.where(Y[None, :] == torch.arange(CLASSES)[:, None], delta - s, delta + s)
                if name == "mpa":
                    group = z[c, own == (c == Y)]
                    share = 1 / len(set(LABELS)) if own else 1 / CLASSES
                else:
                    share = 1 / len(LABELS)
                    group = z[:, i]
                    if name == "mpa-dw":
                        group = group[own == (torch.arange(CLASSES) == y)]
                wanted[c, i] = sign * share * alpha / (torch.exp(-z[c, i]) + torch.exp(group - z[c, i]).sum())
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def test_cosines_are_those_of_normalized_rows() -> None:
    x, proxies = unit(rows()), rows(CLASSES)
    torch.testing.assert_close(cosines(x, proxies), unit(proxies) @ x.T)
    sim, gram = cosines_and_gram(x, proxies.view(2, 3, DIM))
    torch.testing.assert_close(sim.view(CLASSES, -1), unit(proxies) @ x.T)
    w = unit(proxies).view(2, 3, DIM)
    torch.testing.assert_close(gram, w @ w.mT)
    assert torch.autograd.gradcheck(cosines_and_gram, (x.requires_grad_(), proxies.view(2, 3, DIM).requires_grad_()))


@pytest.mark.parametrize(("classes", "samples", "dim"), [(3, 4, 6), (8, 9, 2)])  # long and short vectors
@pytest.mark.parametrize("normalize", [False, True])
def test_gradients_of_cosines(classes: int, samples: int, dim: int, normalize: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, proxies = (
        torch.randn(n, dim, generator=generator, dtype=torch.float64).requires_grad_() for n in (samples, classes)
    )
    assert torch.autograd.gradcheck(lambda *vectors: cosines(*vectors, normalize=normalize), (x, proxies))
    several = proxies.detach()[: classes // 2 * 2].view(classes // 2, 2, dim).requires_grad_()
    assert torch.autograd.gradcheck(lambda *vectors: cosines(*vectors, normalize=normalize), (x, several))


def test_the_gradient_of_equal_maxima_is_shared() -> None:
    sim = torch.tensor([[[0.5, 0.1], [0.5, 0.3], [0.2, 0.2]]]).requires_grad_()
    (gradient,) = torch.autograd.grad(pool_similarities(sim, "max"), sim, torch.tensor([[2.0, 3.0]]))
    assert gradient.tolist() == [[[1, 0], [1, 3], [0, 0]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("angle", [0.0, 28.6, 60.0])
def test_added_angle_is_monotone_and_has_finite_gradients(angle: float, dtype: torch.dtype) -> None:
    cos = torch.linspace(-1, 1, 4001, dtype=dtype)
    turned, slope = add_angle(cos, angle)
    assert (turned.diff() >= 0).all()
    assert slope.isfinite().all()
    if dtype == torch.float64:  # away from the ends and from the start of the straight part
        h, smooth = 1e-6, (cos.abs() < 0.999) & ((cos + math.cos(math.radians(angle))).abs() > 1e-3)
        numeric = (add_angle(cos + h, angle)[0] - add_angle(cos - h, angle)[0]) / (2 * h)
        torch.testing.assert_close(slope[smooth], numeric[smooth], rtol=1e-6, atol=1e-6)
    theta = torch.arccos(cos)
    inside = theta < math.pi - math.radians(angle) - 1e-3
    wanted = torch.cos(theta + math.radians(angle))
    torch.testing.assert_close(turned[inside], wanted[inside], rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-12)
    for edge in (1.0, -1.0, 1.0000001, -1.0000001):
        value, slope = add_angle(torch.tensor(edge, dtype=dtype), angle)
        assert value.isfinite()
        assert slope.isfinite()


def test_softmax_family_without_margin_is_normalized_softmax() -> None:
    x, proxies = rows(), rows(CLASSES)
    wanted = with_proxies("normalized-softmax", proxies, temperature=0.1)(x, Y)
    same = [
        with_proxies("cosface", proxies, margin=0.0, scale=10.0),
        with_proxies("arcface", proxies, angle=0.0, scale=10.0),
        with_proxies("subcenter-arcface", proxies[:, None], angle=0.0, scale=10.0),
        with_proxies("soft-triple", proxies[:, None], delta=0.0, scale=10.0),
        with_proxies("proxy-nca", proxies, form="cosine", scale=10.0, positive_in_denominator=True),
        with_proxies("proxy-nca", proxies, scale=5.0, positive_in_denominator=True),
    ]
    for loss in same:
        torch.testing.assert_close(loss(x, Y), wanted, rtol=1e-12, atol=1e-12)


PEERS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "proxy-anchor": ({}, "ProxyAnchorLoss", {"margin": 0.1, "alpha": 32}),
    "proxy-nca": ({"positive_in_denominator": True, "scale": 3.0}, "ProxyNCALoss", {"softmax_scale": 3}),
    "soft-triple": ({"tau": 0.0, "proxies_per_class": 3}, "SoftTripleLoss", {"centers_per_class": 3}),
    "normalized-softmax": ({}, "NormalizedSoftmaxLoss", {}),
    "cosface": ({}, "CosFaceLoss", {}),
    "arcface": ({}, "ArcFaceLoss", {}),
    "subcenter-arcface": ({}, "SubCenterArcFaceLoss", {}),
}


@pytest.mark.parametrize("name", PEERS)
def test_values_are_those_of_pytorch_metric_learning(name: str) -> None:
    peers = pytest.importorskip("pytorch_metric_learning.losses")
    options, peer_name, peer_options = PEERS[name]
    loss = create(name, classes=CLASSES, dim=16, **options).double()
    peer = getattr(peers, peer_name)(num_classes=CLASSES, embedding_size=16, **peer_options).double()
    x = rows(dim=16)
    flat = loss.proxies.detach().reshape(-1, 16)
    with torch.no_grad():
        for theirs in peer.parameters():
            theirs.copy_(flat if theirs.shape == flat.shape else flat.T)
    torch.testing.assert_close(loss(x, Y), peer(x, Y), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["mpa", "mpa-dw", "mpa-ap", "soft-triple"])
def test_the_largest_data_set_runs(name: str) -> None:
    """SOP's 11,318 classes with two proxies each and a batch of 512."""
    loss = create(name, classes=11_318, dim=32, proxies_per_class=2)
    x = torch.randn(512, 32, requires_grad=True)
    value = loss(x, torch.randint(11_318, (512,)))
    value.backward()
    assert value.isfinite()
    assert loss.proxies.grad is not None
    assert loss.proxies.grad.isfinite().all()


@pytest.mark.parametrize("weighted", [False, True])
def test_proxy_anchor_with_several_labels_is_its_formula(weighted: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, DIM, generator=generator, dtype=torch.float64, requires_grad=True)
    hot = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 0], [0, 0, 1, 0]])
    w = torch.tensor([1.0, 2.0, 0.5, 0.0, 1.0, 3.0], dtype=torch.float64) if weighted else torch.ones(6).double()
    loss = create("proxy-anchor", classes=4, dim=DIM, alpha=8.0, delta=0.2).double()
    u, p = unit(x), unit(loss.proxies)
    nothing = torch.zeros((), dtype=torch.float64)
    pos, neg, seen = nothing, nothing, 0
    for c in range(4):
        own = [i for i in range(6) if hot[i, c]]
        seen += any(w[i] > 0 for i in own)
        pos = pos + torch.log1p(sum((w[i] * torch.exp(-8 * (u[i] @ p[c] - 0.2)) for i in own), nothing))
        neg = neg + torch.log1p(sum(w[i] * torch.exp(8 * (u[i] @ p[c] + 0.2)) for i in range(6) if not hot[i, c]))
    wanted = pos / seen + neg / 4
    found = loss(x, hot, weights=w if weighted else None)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    for parameter in (x, loss.proxies):
        one, other = (torch.autograd.grad(value, parameter, retain_graph=True)[0] for value in (found, wanted))
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    one_hot = torch.nn.functional.one_hot(torch.tensor([0, 1, 1, 2, 0, 2]), 4)
    torch.testing.assert_close(loss(x, one_hot), loss(x, one_hot.argmax(1)), rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match=r"labels must have shape \[N, 4\] if multi-hot, got shape \[6, 3\]"):
        loss(x, hot[:, :3])
