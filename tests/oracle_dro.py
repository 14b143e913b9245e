"""DRO, slowly: the list of unordered pairs with their losses as numbers, and p of each by the definition of its set."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearfar.losses import create

if TYPE_CHECKING:
    from tests.oracles import Batch, Sample


def pair_loss(i: Sample, j: Sample, same: bool, pair: str, options: dict[str, Any]) -> Tensor:
    s = i.unit @ j.unit
    if pair == "pair-margin":
        m, threshold = options.get("m", 0.2), options.get("threshold", 0.5)
        return (m + threshold - s if same else m + s - threshold).clamp(min=0)
    if pair == "binomial":
        scale, t = (
            (-options.get("scale_pos", 2.0) if same else options.get("scale_neg", 40.0)),
            options.get("threshold", 0.5),
        )
        return 2 / abs(scale) * torch.logaddexp(scale * (s - t), torch.zeros_like(s))
    assert pair == "contrastive"
    d = (i.unit - j.unit).norm()
    if options.get("form", "squared") == "squared":
        return d**2 if same else (1 - d).clamp(min=0) ** 2
    assert options["form"] == "cosine"
    return (1 - s if same else s).clamp(min=0)


def unordered(batch: Batch) -> list[tuple[Sample, Sample]]:
    anchors, refs = batch.split()
    if anchors is refs:
        return [(i, j) for a, i in enumerate(anchors) for j in anchors[a + 1 :]]
    return [(i, j) for i in anchors for j in refs]


def take(order: list[int], weights: list[float], budget: float) -> dict[int, float]:
    """How much of each, in this order, until the budget is spent."""
    taken = {}
    for n in order:
        taken[n] = min(weights[n], max(0.0, budget))
        budget -= taken[n]
    return taken


def softmax(values: dict[int, float], weights: list[float], gamma: float, dummy: bool = False) -> dict[int, float]:
    if not values:
        return {}
    top = max([*values.values(), *([0.0] if dummy else [])])
    e = {n: weights[n] * math.exp((v - top) / gamma) for n, v in values.items()}
    total = sum(e.values()) + (math.exp(-top / gamma) if dummy else 0.0)
    return {n: x / total for n, x in e.items()}


def chi2(values: list[float], weights: list[float], rho: float) -> dict[int, float]:
    """p = q [l - eta]_+ / s; eta by bisection on sum q (p/q)^2 = 1 + 2 rho / n, which rises with eta."""
    n = sum(weights)
    q, c = [w / n for w in weights], 1 + 2 * rho / n
    top = max(values)
    mass = sum(x for x, v in zip(q, values, strict=True) if v == top)
    if mass * c >= 1:
        return {i: x / mass for i, (x, v) in enumerate(zip(q, values, strict=True)) if v == top}
    low, high = min(values) - 1e6, top
    for _ in range(300):
        eta = (low + high) / 2
        s = sum(x * max(0, v - eta) for x, v in zip(q, values, strict=True))
        ball = sum(x * max(0, v - eta) ** 2 for x, v in zip(q, values, strict=True))
        if s == 0 or ball > c * s * s:
            high = eta
        else:
            low = eta
    s = sum(x * max(0, v - low) for x, v in zip(q, values, strict=True))
    return {i: x * max(0, v - low) / s for i, (x, v) in enumerate(zip(q, values, strict=True))}


def weights_of(
    batch: Batch,
    losses: list[float],
    pairs: list[tuple[Sample, Sample]],
    uncertainty: str,
    k: int | str = "2B",
    gamma: float = 0.1,
    rho: float = 1.0,
    weights: str = "softmax_nonzero",
    truncate: int | None = None,
) -> dict[int, float]:
    """p of the pairs by their place in the list, of all sets but kl-g."""
    w = [i.weight * j.weight for i, j in pairs]
    same = [bool(i.labels & j.labels) for i, j in pairs]
    everything = range(len(pairs))
    if not pairs:
        return {}
    K = 2 * sum(i.weight for i in batch.split()[0]) if k == "2B" else float(k)
    order = sorted(everything, key=lambda n: -losses[n])
    if uncertainty == "mean":
        return {n: w[n] / sum(w) for n in everything}
    if uncertainty == "max":
        return {order[0]: 1.0}
    if uncertainty == "topk":
        taken = take(order, w, K)
        return {n: x / sum(taken.values()) for n, x in taken.items()}
    if uncertainty == "topk-pn":
        half = K / 2 if k == "2B" else K // 2
        pos, neg = [n for n in order if same[n]], [n for n in order if not same[n]]
        kk = min(half, sum(w[n] for n in pos), sum(w[n] for n in neg))
        return {n: x / (2 * kk) for side in (pos, neg) for n, x in take(side, w, kk).items()} if kk else {}
    if uncertainty == "chi2":
        return chi2(losses, w, rho)
    assert uncertainty == "kl"
    kept = [n for n in order if weights == "softmax_all" or losses[n] > 0]
    if truncate is not None:
        before, short = 0.0, []
        for n in kept:
            if before > truncate and losses[n] < losses[short[-1]]:
                break
            short.append(n)
            before += w[n]
        kept = short
    if weights == "expm1":
        e = {n: w[n] * math.expm1(losses[n] / gamma) for n in kept}
        return {n: x / sum(e.values()) for n, x in e.items()}
    return softmax({n: losses[n] for n in kept}, w, gamma)


def kl_g(
    batch: Batch,
    pair: str,
    pair_options: dict[str, Any],
    *,
    gamma: float = 0.1,
    gamma_neg: float | None = None,
    drop_zero: bool = True,
    dummy: bool = False,
    reduction: str = "mean",
) -> Tensor:
    anchors, refs = batch.split()
    terms = []
    for i in anchors:
        term = batch.zero
        for kind, g in ((True, gamma), (False, gamma_neg or gamma)):
            js = [j for j in refs if j is not i and bool(i.labels & j.labels) == kind]
            losses = [pair_loss(i, j, kind, pair, pair_options) for j in js]
            there = {n: x.item() for n, x in enumerate(losses) if x > 0 or not drop_zero}
            for n, p in softmax(there, [j.weight for j in js], g, dummy).items():
                term = term + p * losses[n]
        terms.append((i.weight, term))
    return batch.mean(terms) if reduction == "mean" else batch.sum(terms)


SET_OPTIONS = ("k", "gamma", "gamma_neg", "rho", "weights", "truncate", "drop_zero", "dummy", "reduction")


def nest(uncertainty: Any = "topk", **options: Any) -> dict[str, Any]:
    """Move the options of the uncertainty set from the options of a DRO loss into uncertainty={name, ...}."""
    of_set = {key: options.pop(key) for key in SET_OPTIONS if key in options}
    return {"uncertainty": {"name": uncertainty, **of_set} if isinstance(uncertainty, str) else uncertainty, **options}


def create_dro(**options: Any) -> Any:
    """Create a DRO loss, with the options of its uncertainty set beside the others."""
    return create("dro", **nest(**options))


def dro(
    batch: Batch,
    *,
    pair: str = "pair-margin",
    uncertainty: str | dict[str, Any] = "topk",
    pair_options: dict[str, Any] | None = None,
) -> Tensor:
    pair_options = pair_options or {}
    options = {"name": uncertainty} if isinstance(uncertainty, str) else dict(uncertainty)
    name = options.pop("name")
    if name == "kl-g":
        return kl_g(batch, pair, pair_options, **options)
    pairs = unordered(batch)
    losses = [pair_loss(i, j, bool(i.labels & j.labels), pair, pair_options) for i, j in pairs]
    p = weights_of(batch, [loss.item() for loss in losses], pairs, name, **options)
    return batch.sum((p[n], losses[n]) for n in p)
