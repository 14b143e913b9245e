"""Slow, obviously correct losses: plain loops over anchors, positives and negatives, a scalar at a time.

Written from the formulas alone, not from the code under test. Everything is float64 torch, so the gradient
of an oracle comes from autograd. `oracle(name, options)` is called like the loss itself.

A new loss needs an entry in ORACLES, which takes a `Batch` and the loss's options, and one `Case` for each of
its forms in CASES. A loss with `classes` and `dim` takes NUM_CLASSES and DIM as their values and reads its
parameters from `batch.params`, which holds the loss's own named parameters: their gradients are compared as
well. `Case.kinds` restricts the batches on which a case makes sense.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.oracle_dro import dro, nest

DIM = 5
NUM_CLASSES = 6


@dataclass(eq=False)
class Sample:
    """One embedding with its labels and its weight. It is itself only as the same object."""

    raw: Tensor
    labels: frozenset[int]
    weight: float

    def __post_init__(self) -> None:
        self.unit = self.raw / self.raw.norm()

    @property
    def label(self) -> int:
        (only,) = self.labels
        return only


@dataclass
class Batch:
    """The call, parsed: samples of weight 0 are gone, unless the loss keeps them."""

    rows: list[Sample]
    refs: list[Sample] | None
    representatives: int | None
    zero: Tensor
    params: dict[str, Tensor] = field(default_factory=dict)

    def split(self) -> tuple[list[Sample], list[Sample]]:
        """Anchors and references of most losses."""
        if self.representatives is not None:
            return self.rows[: self.representatives], self.rows[self.representatives :]
        return self.rows, self.rows if self.refs is None else self.refs

    def split_npair(self, all_pairs: bool) -> tuple[list[Sample], list[Sample]]:
        """Anchors and references of N-pair and angular."""
        if self.representatives is not None:
            return self.rows[self.representatives :], self.rows[: self.representatives]
        if self.refs is not None or all_pairs:
            return self.split()
        by_class: dict[int, list[Sample]] = {}
        for sample in self.rows:
            by_class.setdefault(sample.label, []).append(sample)
        if any(len(members) > 2 for members in by_class.values()):
            raise ValueError("a third sample of a class")
        return [m[0] for m in by_class.values()], [m[1] for m in by_class.values() if len(m) == 2]

    def mean(self, weighted_terms: Iterable[tuple[float, Tensor]]) -> Tensor:
        """Sum of weight * term over the sum of the weights; nothing to average is 0."""
        pairs = list(weighted_terms)
        total = sum(w for w, _ in pairs)
        if total == 0:
            return self.zero
        return self.sum(pairs) / total

    def sum(self, weighted_terms: Iterable[tuple[float, Tensor]]) -> Tensor:
        out = self.zero
        for w, term in weighted_terms:
            out = out + w * term
        return out


def sim(i: Sample, j: Sample) -> Tensor:
    return i.unit @ j.unit


def dist(i: Sample, j: Sample) -> Tensor:
    return (i.unit - j.unit).norm()


def positives(i: Sample, refs: list[Sample]) -> list[Sample]:
    return [j for j in refs if j is not i and i.labels & j.labels]


def negatives(i: Sample, refs: list[Sample]) -> list[Sample]:
    return [j for j in refs if j is not i and not i.labels & j.labels]


def others(i: Sample, refs: list[Sample]) -> list[Sample]:
    return [j for j in refs if j is not i]


def is_same(i: Sample, j: Sample) -> bool:
    return bool(i.labels & j.labels)


def hinge(z: Tensor) -> Tensor:
    return z.clamp(min=0)


def log1pexp(z: Tensor) -> Tensor:
    return torch.logaddexp(z, torch.zeros_like(z))


def logsum(weighted_exponents: list[tuple[float, Tensor]], one: bool = False) -> Tensor:
    """log of sum of weight * e^exponent, or of 1 + that sum."""
    exponents = [e + math.log(w) for w, e in weighted_exponents]
    if one:
        exponents.append(torch.zeros((), dtype=torch.float64))
    return torch.logsumexp(torch.stack(exponents), dim=0)


def closest(i: Sample, candidates: list[Sample]) -> list[Sample]:
    return sorted(candidates, key=lambda j: dist(i, j).item())


def mined_pairs(batch: Batch) -> list[tuple[Sample, Sample]]:
    """All pairs; with representatives only as many negatives of each as it has positives, the closest."""
    anchors, refs = batch.split()
    pairs = []
    for i in anchors:
        pos, neg = positives(i, refs), negatives(i, refs)
        if batch.representatives is not None:
            neg = closest(i, neg)[: len(pos)]
        pairs += [(i, j) for j in pos + neg]
    return pairs


def all_pairs(batch: Batch) -> list[tuple[Sample, Sample]]:
    anchors, refs = batch.split()
    return [(i, j) for i in anchors for j in others(i, refs)]


def mean_of_nonzero(batch: Batch, weighted_terms: Iterable[tuple[float, Tensor]]) -> Tensor:
    return batch.mean((w, t) for w, t in weighted_terms if t > 0)


def contrastive(
    batch: Batch, *, form: str = "squared", pos_margin: float | None = None, neg_margin: float | None = None
) -> Tensor:
    default_pos, default_neg = (1.0, 0.0) if form == "cosine" else (0.0, 1.0)
    pm = default_pos if pos_margin is None else pos_margin
    nm = default_neg if neg_margin is None else neg_margin

    def term(i: Sample, j: Sample) -> Tensor:
        if form == "cosine":
            return hinge(pm - sim(i, j)) if is_same(i, j) else hinge(sim(i, j) - nm)
        return hinge(dist(i, j) - pm) if is_same(i, j) else hinge(nm - dist(i, j))

    pairs = mined_pairs(batch)
    if form == "squared":
        return batch.mean((i.weight * j.weight, term(i, j) ** 2) for i, j in pairs)
    same = [(i.weight * j.weight, term(i, j)) for i, j in pairs if is_same(i, j)]
    diff = [(i.weight * j.weight, term(i, j)) for i, j in pairs if not is_same(i, j)]
    return mean_of_nonzero(batch, same) + mean_of_nonzero(batch, diff)


def margin(
    batch: Batch,
    *,
    beta: float = 1.2,
    delta: float = 0.2,
    average: str = "all",
    trainable: bool = True,
    classes: int | None = None,
    nu: float = 0.0,
) -> Tensor:
    boundary = batch.params.get("beta", torch.tensor(beta, dtype=torch.float64))

    def beta_of(i: Sample) -> Tensor:
        return boundary.squeeze() if boundary.numel() == 1 else boundary[i.label]

    def term(i: Sample, j: Sample) -> Tensor:
        if is_same(i, j):
            return hinge(dist(i, j) - beta_of(i) + delta)
        return hinge(beta_of(i) + delta - dist(i, j))

    terms = [(i.weight * j.weight, term(i, j)) for i, j in mined_pairs(batch)]
    value = batch.mean(terms) if average == "all" else mean_of_nonzero(batch, terms)
    if nu:
        anchors, _ = batch.split()
        value = value + nu * batch.mean((i.weight, beta_of(i)) for i in anchors)
    return value


def pair_margin(batch: Batch, *, m: float = 0.2, threshold: float = 0.5) -> Tensor:
    def term(i: Sample, j: Sample) -> Tensor:
        if is_same(i, j):
            return hinge(m + threshold - sim(i, j))
        return hinge(m + sim(i, j) - threshold)

    return batch.mean((i.weight * j.weight, term(i, j)) for i, j in all_pairs(batch))


def binomial(batch: Batch, *, scale_pos: float = 2, scale_neg: float = 40, threshold: float = 0.5) -> Tensor:
    def term(i: Sample, j: Sample) -> Tensor:
        if is_same(i, j):
            return 2 / scale_pos * log1pexp(-scale_pos * (sim(i, j) - threshold))
        return 2 / scale_neg * log1pexp(scale_neg * (sim(i, j) - threshold))

    return batch.mean((i.weight * j.weight, term(i, j)) for i, j in all_pairs(batch))


def triplets(batch: Batch, mining: str) -> list[tuple[Sample, Sample, Sample]]:
    anchors, refs = batch.split()
    out = []
    for i in anchors:
        pos, neg = positives(i, refs), negatives(i, refs)
        if batch.representatives is not None:
            out += [(i, p, n) for p, n in zip(pos, closest(i, neg), strict=False)]
        elif mining == "paired":
            out += [(i, p, n) for p, n in zip(closest(i, pos), closest(i, neg), strict=False)]
        elif mining == "all":
            out += [(i, p, n) for p in pos for n in neg]
        elif mining == "hard":
            if pos and neg:
                out.append((i, closest(i, pos)[-1], closest(i, neg)[0]))
        elif mining == "semi-hard":
            for p in pos:
                farther = [n for n in neg if dist(i, n) > dist(i, p)]
                if farther:
                    out.append((i, p, closest(i, farther)[0]))
        else:
            raise ValueError(mining)
    return out


def triplet(
    batch: Batch,
    *,
    margin: float = 0.2,
    squared: bool = True,
    smooth: bool = False,
    mining: str = "all",
    average: str = "all",
) -> Tensor:
    power = 2 if squared else 1

    def term(i: Sample, p: Sample, n: Sample) -> Tensor:
        t = margin + dist(i, p) ** power - dist(i, n) ** power
        return log1pexp(t) if smooth else hinge(t)

    terms = [(i.weight * p.weight * n.weight, term(i, p, n)) for i, p, n in triplets(batch, mining)]
    return batch.mean(terms) if average == "all" else mean_of_nonzero(batch, terms)


def rdml(batch: Batch, *, eta: float = 1.0, margin: float = 0.2, hinge: str = "triplet", beta: float = 1.2) -> Tensor:
    def rescaled(z: Tensor) -> Tensor:
        z = z.clamp(min=0)
        return z if eta == 0 else (1 - torch.exp(-eta * z)) / (1 - math.exp(-eta))

    if hinge == "triplet":
        anchors, refs = batch.split()
        return batch.mean(
            (i.weight * p.weight * n.weight, rescaled(margin + dist(i, p) ** 2 - dist(i, n) ** 2))
            for i in anchors
            for p in positives(i, refs)
            for n in negatives(i, refs)
        )

    def z(i: Sample, j: Sample) -> Tensor:
        return dist(i, j) - beta + margin if is_same(i, j) else beta + margin - dist(i, j)

    return batch.mean((i.weight * j.weight, rescaled(z(i, j))) for i, j in all_pairs(batch))


def lifted(
    batch: Batch,
    *,
    form: str = "song",
    alpha: float = 1.0,
    normalize: bool = False,
    threshold: float = 0.5,
    scale_pos: float = 2,
    scale_neg: float = 40,
) -> Tensor:
    if form == "song":
        return lifted_song(batch, alpha, normalize)
    anchors, refs = batch.split()
    terms = []
    for i in anchors:
        pos, neg = positives(i, refs), negatives(i, refs)
        if form == "anchor":
            if pos and neg:
                pull = logsum([(p.weight, threshold - sim(i, p)) for p in pos])
                push = logsum([(n.weight, sim(i, n) - threshold) for n in neg])
                terms.append((i.weight, hinge(pull + push)))
        else:
            value = batch.zero
            if pos:
                value = value + 2 / scale_pos * logsum([(p.weight, -scale_pos * sim(i, p)) for p in pos])
            if neg:
                value = value + 2 / scale_neg * logsum([(n.weight, scale_neg * sim(i, n)) for n in neg])
            terms.append((i.weight, value))
    return batch.sum(terms) if form == "anchor" else batch.mean(terms)


def lifted_song(batch: Batch, alpha: float, normalize: bool) -> Tensor:
    def d(i: Sample, j: Sample) -> Tensor:
        return dist(i, j) if normalize else (i.raw - j.raw).norm()

    anchors, refs = batch.split()
    candidates = refs
    if batch.representatives is not None:
        refs = batch.rows  # the positives stay among the examples
    terms = []
    for i in anchors:
        for j in positives(i, candidates):
            exponents = [(k.weight, alpha - d(i, k)) for k in negatives(i, refs)]
            exponents += [(k.weight, alpha - d(j, k)) for k in negatives(j, anchors)]
            half_square = hinge(logsum(exponents) + d(i, j)) ** 2 / 2 if exponents else batch.zero
            terms.append((i.weight * j.weight, half_square))
    return batch.mean(terms)


def n_pair(batch: Batch, *, l2_reg: float = 0.001, normalize: bool = False, all_pairs: bool = False) -> Tensor:
    def f(i: Sample) -> Tensor:
        return i.unit if normalize else i.raw

    anchors, refs = batch.split_npair(all_pairs)
    losses, norms = [], []
    for i in anchors:
        for p in positives(i, refs):
            exponents = [(n.weight, f(i) @ f(n) - f(i) @ f(p)) for n in negatives(i, refs)]
            losses.append((i.weight * p.weight, logsum(exponents, one=True)))
            # Of the raw rows in any case: on unit rows it would be a constant.
            norms.append((i.weight * p.weight, i.raw @ i.raw + p.raw @ p.raw))
    return batch.mean(losses) + l2_reg / 2 * batch.mean(norms)


def angular(batch: Batch, *, angle: float = 45, batch_form: str = "full") -> Tensor:
    t2 = math.tan(math.radians(angle)) ** 2
    anchors, refs = batch.split_npair(all_pairs=batch_form == "full")
    terms = []
    for a in anchors:
        for p in positives(a, refs):
            exponents = [
                (n.weight, 4 * t2 * ((a.unit + p.unit) @ n.unit) - 2 * (1 + t2) * (a.unit @ p.unit))
                for n in negatives(a, refs)
            ]
            terms.append((a.weight * p.weight, logsum(exponents, one=True)))
    return batch.mean(terms)


def multi_similarity(
    batch: Batch,
    *,
    alpha: float = 2,
    beta: float = 50,
    threshold: float = 0.5,
    neg_threshold: float | None = None,
    epsilon: float | None = 0.1,
    weighting: str = "inside",
) -> Tensor:
    tn = threshold if neg_threshold is None else neg_threshold
    anchors, refs = batch.split()
    inside = weighting == "inside"
    terms = []
    for i in anchors:
        pos, neg = positives(i, refs), negatives(i, refs)
        if epsilon is not None:
            if pos and neg:
                hardest_negative = max(sim(i, n).item() for n in neg)
                hardest_positive = min(sim(i, p).item() for p in pos)
                pos = [p for p in pos if sim(i, p).item() < hardest_negative + epsilon]
                neg = [n for n in neg if sim(i, n).item() > hardest_positive - epsilon]
            else:
                pos, neg = [], []

        def weight(j: Sample) -> float:
            return j.weight if inside else 1.0

        pull = logsum([(weight(p), -alpha * (sim(i, p) - threshold)) for p in pos], one=True) / alpha
        push = logsum([(weight(n), beta * (sim(i, n) - tn)) for n in neg], one=True) / beta
        if not inside:
            pull = pull * (sum(p.weight for p in pos) / max(1, len(pos)))
            push = push * (sum(n.weight for n in neg) / max(1, len(neg)))
        terms.append((i.weight, pull + push))
    return batch.mean(terms) if inside else batch.sum(terms) / max(1, len(anchors))


def snr(
    batch: Batch, *, pos_margin: float = 0, neg_margin: float = 1, reg: float = 0.0, normalize: bool = False
) -> Tensor:
    def h(i: Sample) -> Tensor:
        return i.unit if normalize else i.raw

    def noise_to_signal(i: Sample, j: Sample) -> Tensor:
        return (h(i) - h(j)).var() / h(i).var()

    same, diff = [], []
    for i, j in all_pairs(batch):
        if is_same(i, j):
            same.append((i.weight * j.weight, hinge(noise_to_signal(i, j) - pos_margin)))
        else:
            diff.append((i.weight * j.weight, hinge(neg_margin - noise_to_signal(i, j))))
    anchors, _ = batch.split()
    off_zero = batch.mean((i.weight, h(i).sum().abs()) for i in anchors)
    return mean_of_nonzero(batch, same) + mean_of_nonzero(batch, diff) + reg * off_zero


def fastap(batch: Batch, *, bins: int = 10) -> Tensor:
    width = 4 / bins
    centers = torch.tensor([k * width for k in range(bins + 1)], dtype=torch.float64)

    def histogram(i: Sample, members: list[Sample]) -> Tensor:
        h = torch.zeros(bins + 1, dtype=torch.float64)
        for j in members:
            h = h + j.weight * hinge(1 - (dist(i, j) ** 2 - centers).abs() / width)
        return h

    anchors, refs = batch.split()
    terms = []
    for i in anchors:
        pos = positives(i, refs)
        if not pos:
            continue
        h_pos, h_all = histogram(i, pos), histogram(i, others(i, refs))
        total = batch.zero
        for k in range(bins + 1):
            H_pos, H_all = h_pos[: k + 1].sum(), h_all[: k + 1].sum()
            if H_all > 0:
                total = total + H_pos * h_pos[k] / H_all
        terms.append((i.weight, 1 - total / sum(p.weight for p in pos)))
    return batch.mean(terms)


def hap2s(
    batch: Batch, *, form: str = "exponential", gamma: float = 0.5, power: float = 10.0, margin: float = 0.5
) -> Tensor:
    def pos_weight(i: Sample, p: Sample) -> float:
        if form == "exponential":
            return math.exp(-sim(i, p).item() / gamma)
        return (dist(i, p).item() + 1) ** power

    def neg_weight(i: Sample, n: Sample) -> float:
        if form == "exponential":
            return math.exp(sim(i, n).item() / gamma)
        return (dist(i, n).item() + 1) ** (-2 * power)

    anchors, refs = batch.split()
    terms = []
    for i in anchors:
        pos, neg = positives(i, refs), negatives(i, refs)
        value = batch.zero
        if pos and neg:
            mean_pos = batch.mean((p.weight * pos_weight(i, p), sim(i, p)) for p in pos)
            mean_neg = batch.mean((n.weight * neg_weight(i, n), sim(i, n)) for n in neg)
            value = hinge(mean_neg - mean_pos + margin)
        terms.append((i.weight, value))
    return batch.mean(terms)


def supcon(batch: Batch, *, temperature: float = 0.1) -> Tensor:
    anchors, refs = batch.split()
    terms = []
    for i in anchors:
        pos = positives(i, refs)
        if pos:
            log_total = logsum([(j.weight, sim(i, j) / temperature) for j in others(i, refs)])
            terms.append((i.weight, batch.mean((p.weight, log_total - sim(i, p) / temperature) for p in pos)))
    return batch.mean(terms)


def nt_xent(batch: Batch, *, temperature: float = 0.07) -> Tensor:
    anchors, refs = batch.split()
    terms = []
    for i in anchors:
        for p in positives(i, refs):
            # The positive's own exponential stands above and below the line: its weight is that of the term.
            exponents = [(n.weight, (sim(i, n) - sim(i, p)) / temperature) for n in negatives(i, refs)]
            terms.append((i.weight * p.weight, logsum(exponents, one=True)))
    return batch.mean(terms)


def circle(batch: Batch, *, m: float = 0.4, gamma: float = 80) -> Tensor:
    anchors, refs = batch.split()
    terms = []
    for i in anchors:
        pos, neg = positives(i, refs), negatives(i, refs)
        if not (pos and neg):
            continue

        def pull(i: Sample, p: Sample) -> Tensor:
            return -gamma * hinge(1 + m - sim(i, p)).detach() * (sim(i, p) - (1 - m))

        def push(i: Sample, n: Sample) -> Tensor:
            return gamma * hinge(sim(i, n) + m).detach() * (sim(i, n) - m)

        log_pos = logsum([(p.weight, pull(i, p)) for p in pos])
        log_neg = logsum([(n.weight, push(i, n)) for n in neg])
        terms.append((i.weight, log1pexp(log_neg + log_pos)))
    return batch.mean(terms)


def smooth_ap(batch: Batch, *, temperature: float = 0.01) -> Tensor:
    anchors, refs = batch.split()
    terms = []
    for i in anchors:
        pos = positives(i, refs)
        if not pos:
            continue

        def rank(i: Sample, p: Sample, members: list[Sample]) -> Tensor:
            r = torch.ones((), dtype=torch.float64)
            for j in members:
                if j is not p:
                    r = r + j.weight * torch.sigmoid((sim(i, j) - sim(i, p)) / temperature)
            return r

        everybody = others(i, refs)
        ap = batch.mean((p.weight, rank(i, p, pos) / rank(i, p, everybody)) for p in pos)
        terms.append((i.weight, 1 - ap))
    return batch.mean(terms)


def hap(
    batch: Batch,
    *,
    levels: list[list[int]] | None = None,
    alpha: float = 1.0,
    tau: float = 0.01,
    rho: float = 100.0,
    offset: float = 1.44,
    delta: float = 0.05,
    start: float = 0.5,
) -> Tensor:
    def shared(i: Sample, j: Sample) -> int:
        if levels is None:
            return len(i.labels & j.labels)
        return (i.label == j.label) + sum(a == b for a, b in zip(levels[i.label], levels[j.label], strict=True))

    def step(x: Tensor, below: bool) -> Tensor:
        if not below:
            return torch.ones_like(x) if x >= 0 else torch.zeros_like(x)
        if x > delta:
            return rho * (x - delta) + offset
        return torch.sigmoid(x / tau) + (start if x > 0 else 0.0)

    anchors, refs = batch.split()
    terms = []
    for i in anchors:
        everybody = others(i, refs)
        size = len(i.labels) if levels is None else 1 + len(levels[i.label])
        level = {id(j): shared(i, j) for j in everybody}
        pos = [j for j in everybody if level[id(j)]]
        if not pos:
            continue
        rel = {}
        for k in pos:
            count = sum(j.weight for j in pos if level[id(j)] == level[id(k)])
            rel[id(k)] = (level[id(k)] / size) ** alpha / count
        total = torch.zeros((), dtype=torch.float64)
        for k in pos:
            rank, h_rank = torch.ones((), dtype=torch.float64), rel[id(k)]
            for j in everybody:
                if j is not k:
                    x = sim(i, j) - sim(i, k)
                    rank = rank + j.weight * step(x, level[id(j)] < level[id(k)])
                    if level[id(j)] and x >= 0:
                        h_rank = h_rank + j.weight * min(rel[id(j)], rel[id(k)])
            total = total + k.weight * h_rank / rank
        terms.append((i.weight, 1 - total / sum(k.weight * rel[id(k)] for k in pos)))
    return batch.mean(terms)


def nca(batch: Batch, *, scale: float = 1.0) -> Tensor:
    anchors, refs = batch.split()

    def z(i: Sample, j: Sample) -> Tensor:
        return -scale * ((i.unit - j.unit) ** 2).sum()

    terms = []
    for i in anchors:
        pos = [(p.weight, z(i, p)) for p in positives(i, refs)]
        if pos:
            terms.append((i.weight, logsum([(j.weight, z(i, j)) for j in others(i, refs)]) - logsum(pos)))
    return batch.mean(terms)


def tuplet_margin(batch: Batch, *, angle: float = 5.73, scale: float = 64.0) -> Tensor:
    anchors, refs = batch.split()
    terms = []
    for i in anchors:
        for p in positives(i, refs):
            relaxed = torch.cos(torch.arccos(sim(i, p)) - math.radians(angle))
            exponents = [(n.weight, scale * (sim(i, n) - relaxed)) for n in negatives(i, refs)]
            terms.append((i.weight * p.weight, logsum(exponents, one=True)))
    return batch.mean(terms)


def intra_pair_variance(batch: Batch, *, eps_pos: float = 0.01, eps_neg: float = 0.01) -> Tensor:
    value = batch.zero
    for wanted in (True, False):
        pairs = [(i.weight * j.weight, sim(i, j)) for i, j in all_pairs(batch) if is_same(i, j) == wanted]
        mean = batch.mean(pairs)
        gaps = [(w, hinge((1 - eps_pos) * mean - s if wanted else s - (1 + eps_neg) * mean)) for w, s in pairs]
        value = value + batch.mean((w, g**2) for w, g in gaps)
    return value


def ranked_list(
    batch: Batch,
    *,
    margin: float = 0.4,
    alpha: float = 1.2,
    temperature_neg: float = 10.0,
    temperature_pos: float = 0.0,
    balance: float = 0.5,
) -> Tensor:
    anchors, refs = batch.split()

    def weighted(excesses: list[tuple[float, Tensor]], temperature: float) -> Tensor:
        counted = [(w * torch.exp(temperature * e), e) for w, e in excesses if e > 0]
        if not counted:
            return batch.zero
        return torch.stack([w * e for w, e in counted]).sum() / torch.stack([w for w, _ in counted]).sum()

    terms = []
    for i in anchors:
        pos = weighted([(j.weight, dist(i, j) - (alpha - margin)) for j in positives(i, refs)], temperature_pos)
        neg = weighted([(j.weight, alpha - dist(i, j)) for j in negatives(i, refs)], temperature_neg)
        terms.append((i.weight, (1 - balance) * pos + balance * neg))
    return batch.mean(terms)


def histogram(batch: Batch, *, bins: int = 100) -> Tensor:
    nodes = [-1 + 2 * r / bins for r in range(bins + 1)]
    densities = []
    for wanted in (True, False):
        pairs = [(i.weight * j.weight, sim(i, j)) for i, j in all_pairs(batch) if is_same(i, j) == wanted]
        densities.append([batch.mean((w, hinge(1 - (s - t).abs() * bins / 2)) for w, s in pairs) for t in nodes])
    pos, neg = densities
    value = batch.zero
    for r in range(bins + 1):
        for q in range(r + 1):
            value = value + neg[r] * pos[q]
    return value


def pnp(batch: Batch, *, variant: str = "Dq", alpha: float = 1.0, b: float = 2.0, temperature: float = 0.01) -> Tensor:
    anchors, refs = batch.split()

    def f(r: Tensor) -> Tensor:
        return {
            "O": r,
            "Ds": torch.log(1 + r),
            "Dq": 1 - 1 / (1 + r) ** alpha,
            "Iu": (1 + r) * torch.log(1 + r),
            "Ib": (b * r - torch.log(1 + b * r)) / b**2,
        }[variant]

    def before(i: Sample, p: Sample) -> Tensor:
        ahead = [(n.weight, torch.sigmoid((sim(i, n) - sim(i, p)) / temperature)) for n in negatives(i, refs)]
        return batch.sum(ahead)

    terms = []
    for i in anchors:
        pos = positives(i, refs)
        if pos:
            terms.append((i.weight, batch.mean((p.weight, f(before(i, p))) for p in pos)))
    return batch.mean(terms)


def threshold_consistent_margin(
    batch: Batch,
    *,
    pos_margin: float = 0.9,
    neg_margin: float = 0.5,
    weight_pos: float = 1.0,
    weight_neg: float = 1.0,
) -> Tensor:
    pairs = [(i.weight * j.weight, sim(i, j), is_same(i, j)) for i, j in all_pairs(batch)]
    pos = batch.mean((w, pos_margin - s) for w, s, same in pairs if same and s <= pos_margin)
    neg = batch.mean((w, s - neg_margin) for w, s, same in pairs if not same and s >= neg_margin)
    return weight_pos * pos + weight_neg * neg


def generalized_lifted(batch: Batch, *, neg_margin: float = 1.0, pos_margin: float = 0.0, scale: float = 1.0) -> Tensor:
    anchors, refs = batch.split()
    terms = []
    for i in anchors:
        pos = [(j.weight, scale * (dist(i, j) - pos_margin)) for j in positives(i, refs)]
        neg = [(j.weight, scale * (neg_margin - dist(i, j))) for j in negatives(i, refs)]
        terms.append((i.weight, hinge(sum((logsum(part) for part in (pos, neg) if part), batch.zero))))
    return batch.mean(terms)


ORACLES: dict[str, Callable[..., Tensor]] = {
    "contrastive": contrastive,
    "dro": dro,
    "margin": margin,
    "pair-margin": pair_margin,
    "binomial": binomial,
    "triplet": triplet,
    "rdml": rdml,
    "lifted": lifted,
    "n-pair": n_pair,
    "angular": angular,
    "multi-similarity": multi_similarity,
    "snr": snr,
    "fastap": fastap,
    "hap2s": hap2s,
    "supcon": supcon,
    "nt-xent": nt_xent,
    "circle": circle,
    "smooth-ap": smooth_ap,
    "hap": hap,
    "nca": nca,
    "tuplet-margin": tuplet_margin,
    "intra-pair-variance": intra_pair_variance,
    "ranked-list": ranked_list,
    "histogram": histogram,
    "pnp": pnp,
    "threshold-consistent-margin": threshold_consistent_margin,
    "generalized-lifted": generalized_lifted,
}


def oracle(name: str, options: dict[str, Any] | None = None) -> Callable[..., Tensor]:
    """The slow loss, with the call signature of the fast one (and `params`, the fast one's parameters)."""
    options = dict(options or {})
    keep_zero_weights = name == "multi-similarity" and options.get("weighting") == "outside"
    if name == "angular" and "batch" in options:
        options["batch_form"] = options.pop("batch")

    def samples(emb: Tensor, labels: Tensor, weights: Tensor | None) -> list[Sample]:
        sets = [
            frozenset([int(row)]) if row.ndim == 0 else frozenset(row.nonzero().flatten().tolist()) for row in labels
        ]
        w = [1.0] * len(sets) if weights is None else weights.tolist()
        return [Sample(e, s, x) for e, s, x in zip(emb.double(), sets, w, strict=True)]

    def call(
        embeddings: Tensor,
        labels: Tensor,
        *,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        weights: Tensor | None = None,
        ref_weights: Tensor | None = None,
        representatives: int | None = None,
        params: dict[str, Tensor] | None = None,
    ) -> Tensor:
        rows = samples(embeddings, labels, weights)
        refs = None if ref_emb is None or ref_labels is None else samples(ref_emb, ref_labels, ref_weights)
        if not keep_zero_weights:
            if representatives is not None:
                representatives = sum(s.weight > 0 for s in rows[:representatives])
            rows = [s for s in rows if s.weight > 0]
            refs = None if refs is None else [s for s in refs if s.weight > 0]
        params = dict(params or {})
        zero = 0 * embeddings.double().sum()
        for other in (*(() if ref_emb is None else (ref_emb,)), *params.values()):
            zero = zero + 0 * other.double().sum()
        return ORACLES[name](Batch(rows, refs, representatives, zero, params), **options)

    return call


KINDS = (
    "balanced",
    "unbalanced",
    "multi-hot",
    "references",
    "multi-hot-references",
    "weighted",
    "zero-weights",
    "weighted-references",
    "representatives",
    "uneven-representatives",
    "weighted-representatives",
    "huge-ids",
)


@dataclass(frozen=True)
class Case:
    """One form of a loss, and what is true of it.

    ordered: the first sample of a class is the anchor, the second the positive, and there is no third.
    detached: part of the formula is constant in the gradient, so finite differences see another gradient.
    rotates: the value does not change when all rows are rotated. scales: nor when each row is rescaled.
    twice: which references may be doubled by a weight of 2: "all", "negatives" (of every anchor) or "none".
    kinds: the batches it takes.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    ordered: bool = False
    detached: bool = False
    rotates: bool = True
    scales: bool = True
    twice: str = "all"
    kinds: tuple[str, ...] = KINDS

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={len(v) if k == 'levels' else v}" for k, v in self.options.items())])


def case(name: str, **options: Any) -> Case:
    facts: dict[str, Any] = {}
    if (name == "n-pair" and not options.get("all_pairs")) or options.get("batch") == "n-pair":
        # Without references a multi-hot row has no class of which to be the first.
        facts.update(ordered=True, kinds=tuple(k for k in KINDS if k != "multi-hot"))
    if name == "margin" and "classes" in options:
        # beta is indexed by the label: one integer below `classes`.
        facts["kinds"] = tuple(k for k in KINDS if "multi-hot" not in k and k != "huge-ids")
    if name in ("hap2s", "circle"):
        facts["detached"] = True
    if name == "dro" and options.get("uncertainty", {}).get("name", "").startswith("kl"):
        facts["detached"] = True
    if name == "snr":
        facts.update(rotates=False, scales=bool(options.get("normalize")))
    if name == "lifted" and options.get("form", "song") == "song":
        facts["scales"] = bool(options.get("normalize"))
    if name == "n-pair":
        facts["scales"] = bool(options.get("normalize")) and options.get("l2_reg") == 0
    if options.get("mining") in ("hard", "semi-hard", "paired"):
        facts["twice"] = "none"  # one negative is picked: of two equal ones the second does not count
    if name in ("smooth-ap", "hap"):
        facts["twice"] = "negatives"  # the leading 1 of the ranks has no weight
    if "levels" in options:  # which the labels index
        facts.update(kinds=tuple(k for k in KINDS if "multi-hot" not in k and k != "huge-ids"), twice="none")
    if options.get("weighting") == "outside":
        facts["twice"] = "none"  # means of weights, and a divisor that counts samples
    return Case(name, options, **facts)


CASES = [
    case("contrastive"),
    case("contrastive", pos_margin=0.3, neg_margin=1.3),
    case("contrastive", form="distance"),
    case("contrastive", form="distance", pos_margin=0.4, neg_margin=1.2),
    case("contrastive", form="cosine"),
    case("contrastive", form="cosine", pos_margin=0.8, neg_margin=0.1),
    case("margin"),
    case("margin", beta=1.0, delta=0.1, average="nonzero"),
    case("margin", trainable=False, nu=0.3),
    case("margin", classes=NUM_CLASSES, nu=0.1),
    case("margin", classes=NUM_CLASSES, average="nonzero"),
    case("pair-margin"),
    case("pair-margin", m=0.1, threshold=0.3),
    case("binomial"),
    case("binomial", scale_pos=3.0, scale_neg=20.0, threshold=0.4),
    case("triplet"),
    case("triplet", squared=False, average="nonzero", margin=0.05),
    case("triplet", average="nonzero"),
    case("triplet", squared=False, smooth=True, margin=0.0),
    case("triplet", smooth=True),
    case("triplet", mining="hard"),
    case("triplet", mining="hard", squared=False, smooth=True),
    case("triplet", mining="hard", average="nonzero"),
    case("triplet", mining="semi-hard"),
    case("triplet", mining="semi-hard", squared=False, average="nonzero"),
    case("triplet", mining="paired"),
    case("triplet", mining="paired", squared=False, average="nonzero"),
    case("rdml"),
    case("rdml", eta=0.0),
    case("rdml", eta=3.0, margin=0.4),
    case("rdml", hinge="margin", eta=0.5),
    case("rdml", hinge="margin", eta=0.0, beta=1.0),
    case("lifted"),
    case("lifted", alpha=0.5, normalize=True),
    case("lifted", form="anchor"),
    case("lifted", form="anchor", threshold=-3.0),
    case("lifted", form="scaled"),
    case("lifted", form="scaled", scale_pos=3.0, scale_neg=10.0),
    case("n-pair"),
    case("n-pair", normalize=True, l2_reg=0.02),
    case("n-pair", all_pairs=True, l2_reg=0.02),
    case("n-pair", all_pairs=True, normalize=True, l2_reg=0.0),
    case("angular"),
    case("angular", angle=40.0),
    case("angular", batch="n-pair"),
    case("multi-similarity"),
    case("multi-similarity", epsilon=None),
    case("multi-similarity", epsilon=None, threshold=0.7, neg_threshold=0.3, alpha=1.5, beta=20.0),
    case("multi-similarity", threshold=1.0, epsilon=0.3),
    case("multi-similarity", weighting="outside", threshold=1.0),
    case("multi-similarity", weighting="outside", epsilon=None, neg_threshold=0.3),
    case("snr"),
    case("snr", normalize=True, pos_margin=0.1, neg_margin=1.5),
    case("snr", reg=0.1),
    case("fastap"),
    case("fastap", bins=7),
    case("hap2s"),
    case("hap2s", gamma=0.3, margin=3.0),
    case("hap2s", form="polynomial"),
    case("hap2s", form="polynomial", power=3.0, margin=1.0),
    case("supcon"),
    case("supcon", temperature=0.5),
    case("nt-xent"),
    case("nt-xent", temperature=0.5),
    case("circle"),
    case("circle", m=0.25, gamma=10.0),
    case("smooth-ap"),
    case("smooth-ap", temperature=0.1),
    case("hap"),
    case("hap", levels=[[0, 0], [0, 0], [1, 0], [2, 1], [2, 1], [3, 1], *[[9, 9]] * 14], tau=0.05, rho=3.0, delta=0.3),
    case("hap", levels=[[0], [0], [0], [1], [1], [1], *[[9]] * 14], tau=0.1, alpha=2.0, start=0.0, offset=1.0),
    case("nca"),
    case("nca", scale=4.0),
    case("tuplet-margin"),
    case("tuplet-margin", angle=20.0, scale=5.0),
    case("intra-pair-variance"),
    case("ranked-list"),
    case("ranked-list", margin=0.2, alpha=1.0, temperature_neg=3.0, temperature_pos=2.0, balance=0.3),
    case("histogram", bins=11),
    case("pnp", variant="O", temperature=0.1),
    case("pnp", variant="Ds", temperature=0.1),
    case("pnp", temperature=0.1, alpha=2.0),
    case("pnp", variant="Iu", temperature=0.1),
    case("pnp", variant="Ib", temperature=0.1, b=3.0),
    case("threshold-consistent-margin", pos_margin=0.7, neg_margin=0.1, weight_pos=2.0, weight_neg=0.5),
    case("generalized-lifted", neg_margin=0.6, pos_margin=0.2),
    case("generalized-lifted", scale=8.0),
    case("dro"),
    case("dro", **nest(uncertainty="topk", k=7, pair="binomial")),
    case("dro", **nest(uncertainty="topk-pn")),
    case("dro", **nest(uncertainty="topk-pn", k=8, pair="contrastive")),
    case("dro", **nest(uncertainty="kl", gamma=0.3)),
    case("dro", **nest(uncertainty="kl", gamma=0.5, weights="softmax_all", pair="binomial")),
    case("dro", **nest(uncertainty="kl", gamma=0.3, weights="expm1", truncate=6)),
    case("dro", **nest(uncertainty="kl-g")),
    case("dro", **nest(uncertainty="kl-g", gamma=0.5, gamma_neg=0.2, dummy=True, reduction="sum", drop_zero=False)),
    case("dro", **nest(uncertainty="chi2", rho=0.5)),
    case("dro", **nest(uncertainty="chi2", rho=40.0, pair="binomial")),
    case("dro", **nest(uncertainty="mean")),
]

_LABELS = {
    # kind: labels when every pair counts, labels when a class has at most two
    "balanced": ([0, 1, 2, 0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 1, 0, 2, 3]),
    "unbalanced": ([0, 1, 0, 2, 3, 0, 1, 2, 0, 1], [0, 1, 5, 0, 2, 1, 3, 2, 3]),
}


def make_batch(case: Case, kind: str, seed: int = 0) -> dict[str, Any]:
    """Random keyword arguments of a loss call in float64: classes that overlap, rows of different lengths."""
    g = torch.Generator().manual_seed(zlib.crc32(f"{kind}/{seed}".encode()))

    def rows(labels: Tensor) -> Tensor:
        centers = torch.randn(NUM_CLASSES, DIM, generator=g, dtype=torch.float64)
        noise = torch.randn(len(labels), DIM, generator=g, dtype=torch.float64)
        mean = labels.double() @ centers if labels.ndim == 2 else centers[labels]
        length = 0.5 + torch.rand(len(labels), 1, generator=g, dtype=torch.float64)
        return length * (0.8 * mean + 0.7 * noise)

    def random_weights(n: int) -> Tensor:
        return 0.2 + 2 * torch.rand(n, generator=g, dtype=torch.float64)

    def multi_hot(n: int) -> Tensor:
        hot = (torch.rand(n, NUM_CLASSES, generator=g) < 0.25).long()
        hot[1] = 0  # a sample without any label is different from everybody
        return hot

    batch: dict[str, Any] = {}
    if "representatives" in kind:
        # Uneven: class 0 has more examples than there are negatives.
        labels = [0, 1, 0, 0, 1, 0] if kind.startswith("uneven") else [2, 0, 1, 3, 0, 1, 2, 3, 3, 2, 1, 0]
        batch["labels"] = torch.tensor(labels)
        batch["representatives"] = 2 if kind.startswith("uneven") else 4
    elif kind.startswith("multi-hot"):
        batch["labels"] = multi_hot(9)
    else:
        source = "unbalanced" if kind in ("unbalanced", "zero-weights") else "balanced"
        batch["labels"] = torch.tensor(_LABELS[source][case.ordered])
    batch["embeddings"] = rows(batch["labels"])
    n = len(batch["labels"])
    if "weight" in kind:
        batch["weights"] = random_weights(n)
    if kind == "zero-weights":
        batch["weights"][[1, 4]] = 0.0
    if kind.endswith("references"):
        # More references than anchors, one class that only one side has.
        ref_labels = multi_hot(11) if "multi-hot" in kind else torch.tensor([0, 5, 1, 1, 2, 0, 4, 2, 1, 4, 0])
        batch["ref_labels"] = ref_labels
        batch["ref_emb"] = rows(ref_labels)
        if kind == "weighted-references":
            batch["ref_weights"] = random_weights(len(ref_labels))
            batch["ref_weights"][3] = 0.0
            batch["weights"][2] = 0.0
    if kind == "huge-ids":
        batch["labels"] = batch["labels"] + 2**53
    return batch


def value_and_grads(
    loss: Callable[..., Tensor], batch: dict[str, Any], params: dict[str, Tensor] | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and its gradient for the embeddings, the references and those parameters that take one."""
    leaves = {k: batch[k].detach().clone().requires_grad_() for k in ("embeddings", "ref_emb") if k in batch}
    leaves |= {k: p for k, p in (params or {}).items() if p.requires_grad}
    inputs = {k: leaves.get(k, v) for k, v in batch.items()}
    value = loss(inputs.pop("embeddings"), inputs.pop("labels"), **inputs)
    grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    assert grads[0] is not None, "the embeddings are not in the graph of the value"
    return value.detach(), {
        k: torch.zeros_like(leaf) if g is None else g for (k, leaf), g in zip(leaves.items(), grads, strict=True)
    }
