"""Slow, obviously correct proxy losses: plain loops over samples, classes and proxies, a scalar at a time.

Written from the formulas alone. Everything is float64 torch, so the gradient of an oracle comes from autograd; samples
of weight 0 are removed before anything else is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

CLASSES, DIM, PER_CLASS = 6, 5, 3
LABELS = [0, 1, 0, 2, 3, 0, 1, 2, 0, 1]  # classes 4 and 5 are not in the batch

MPA = {"alpha": 32.0, "delta": 0.1, "gamma": 0.1, "tau": 0.2, "reg_eps": 1e-5, "similarity": "softmax"}
DEFAULTS: dict[str, dict[str, Any]] = {
    "proxy-nca": {"scale": 1.0, "form": "distance", "positive_in_denominator": False},
    "proxy-anchor": {"alpha": 32.0, "delta": 0.1},
    "soft-triple": {**MPA, "scale": 20.0, "delta": 0.01},
    "normalized-softmax": {"temperature": 0.05},
    "cosface": {"margin": 0.35, "scale": 64.0},
    "arcface": {"angle": 28.6, "scale": 64.0},
    "subcenter-arcface": {"angle": 28.6, "scale": 64.0},
    "large-margin-softmax": {"margin": 4, "scale": 1.0},
    "sphereface": {"margin": 4, "scale": 1.0},
    "p2sgrad": {},
    "mpa": MPA,
    "mpa-dw": MPA,
    "mpa-ap": MPA,
}


def unit(v: Tensor) -> Tensor:
    length = v.norm()
    return v / length if length > 0 else 0 * v


def logsum(terms: list[tuple[float, Tensor]], one: bool = False) -> Tensor:
    """log of (1 +) the sum of weight e^exponent."""
    exponents = [e + math.log(w) for w, e in terms] + [torch.zeros((), dtype=torch.float64)] * one
    return torch.logsumexp(torch.stack(exponents), 0)


def class_similarity(cosines: list[Tensor], similarity: str = "softmax", gamma: float = 0.1, **_: Any) -> Tensor:
    if similarity == "max":
        return max(cosines, key=lambda c: float(c.detach()))
    if similarity == "mean":
        return sum(cosines, torch.zeros((), dtype=torch.float64)) / len(cosines)
    shares = torch.softmax(torch.stack(cosines) / gamma, 0)
    return (shares * torch.stack(cosines)).sum()


def regularizer(proxies: Tensor, reg_eps: float) -> Tensor:
    classes, k, _ = proxies.shape
    total = torch.zeros((), dtype=torch.float64)
    for c in range(classes):
        for s in range(k):
            for t in range(s):
                total = total + (2 + reg_eps - 2 * unit(proxies[c, s]) @ unit(proxies[c, t])).sqrt()
    return total / (classes * k * (k - 1)) if k > 1 else total


@dataclass
class Samples:
    """What is left of a batch without the samples of weight 0: similarities[i][c], labels and weights."""

    sim: list[list[Tensor]]
    labels: list[int]
    weights: list[float]
    norms: list[Tensor] = field(default_factory=list)
    proxy_norms: list[Tensor] = field(default_factory=list)

    @property
    def classes(self) -> range:
        return range(len(self.sim[0]))

    def mean(self, term: Callable[[int], Tensor]) -> Tensor:
        parts = [w * term(i) for i, w in enumerate(self.weights)]
        return torch.stack(parts).sum() / sum(self.weights)


def samples(x: Tensor, labels: Tensor, weights: Tensor | None, proxies: Tensor, options: dict[str, Any]) -> Samples:
    each = [1.0] * len(x) if weights is None else weights.tolist()
    alive = [i for i, w in enumerate(each) if w > 0]
    out = Samples([], [int(labels[i]) for i in alive], [each[i] for i in alive])
    for i in alive:
        row = []
        for p in proxies:
            centers = [p] if p.ndim == 1 else list(p)
            row.append(class_similarity([unit(x[i]) @ unit(q) for q in centers], **options))
        out.sim.append(row)
        out.norms.append(x[i].norm())
    out.proxy_norms = [p.norm() for p in proxies]
    return out


def slow_loss(
    name: str, options: dict[str, Any], x: Tensor, labels: Tensor, proxies: Tensor, weights: Tensor | None = None
) -> Tensor:
    """The loss by its formula."""
    options = DEFAULTS[name] | options
    if name == "subcenter-arcface":
        options = options | {"similarity": "max"}
    s = samples(x, labels, weights, proxies, options)
    zero = 0 * x.sum() + 0 * proxies.sum()
    value = FORMULAS[name](s, options) + zero if s.labels else zero
    if "tau" in options:
        value = value + options["tau"] * regularizer(proxies, options["reg_eps"])
    return value


def proxy_nca(s: Samples, o: dict[str, Any]) -> Tensor:
    def term(i: int) -> Tensor:
        # of unit vectors D^2 = 2 - 2 S
        z = [o["scale"] * (c if o["form"] == "cosine" else -(2 - 2 * c)) for c in s.sim[i]]
        y = s.labels[i]
        chosen = [(1.0, z[c]) for c in s.classes if c != y or o["positive_in_denominator"]]
        return logsum(chosen) - z[y] if chosen else 0 * z[y]

    return s.mean(term)


def softmax_with(own: Callable[[Tensor], Tensor], scale: float) -> Callable[[Samples], Tensor]:
    def value(s: Samples) -> Tensor:
        def term(i: int) -> Tensor:
            y = s.labels[i]
            z = [scale * (own(s.sim[i][c]) if c == y else s.sim[i][c]) for c in s.classes]
            return logsum([(1.0, e) for e in z]) - z[y]

        return s.mean(term)

    return value


def add_angle(cos: Tensor, angle: float) -> Tensor:
    m = math.radians(angle)
    theta = torch.arccos(cos)
    return torch.cos(theta + m) if float(theta.detach()) < math.pi - m else cos - m * math.sin(m)


def multiplied_angle(s: Samples, o: dict[str, Any], proxy_norms: bool) -> Tensor:
    def term(i: int) -> Tensor:
        y, z = s.labels[i], []
        for c in s.classes:
            value = s.sim[i][c]
            if c == y:
                theta = torch.arccos(value)
                k = int(float(theta.detach()) * o["margin"] / math.pi)
                value = (-1) ** k * torch.cos(o["margin"] * theta) - 2 * k
            z.append(o["scale"] * s.norms[i] * (s.proxy_norms[c] if proxy_norms else 1.0) * value)
        return logsum([(1.0, e) for e in z]) - z[y]

    return s.mean(term)


def p2sgrad(s: Samples, o: dict[str, Any]) -> Tensor:
    def term(i: int) -> Tensor:
        return torch.stack([(s.sim[i][c] - float(c == s.labels[i])) ** 2 for c in s.classes]).mean()

    return s.mean(term)


def anchored(s: Samples, o: dict[str, Any], divide_by_all: bool) -> Tensor:
    alpha, delta = o["alpha"], o["delta"]
    pos, neg = [], []
    for c in s.classes:
        mine = [(w, -alpha * (row[c] - delta)) for row, y, w in zip(s.sim, s.labels, s.weights, strict=True) if y == c]
        rest = [(w, alpha * (row[c] + delta)) for row, y, w in zip(s.sim, s.labels, s.weights, strict=True) if y != c]
        pos += [logsum(mine, one=True)] if mine else []
        neg += [logsum(rest, one=True)] if rest else []
    out = torch.stack(pos).sum() / len(pos)
    return out + torch.stack(neg).sum() / (len(s.classes) if divide_by_all else len(neg)) if neg else out


def data_wise(s: Samples, o: dict[str, Any]) -> Tensor:
    def term(i: int) -> Tensor:
        y = s.labels[i]
        rest = [(1.0, o["alpha"] * (s.sim[i][c] + o["delta"])) for c in s.classes if c != y]
        own = (1.0, -o["alpha"] * (s.sim[i][y] - o["delta"]))
        return logsum([own], one=True) + logsum(rest, one=True)

    return s.mean(term)


def all_paired(s: Samples, o: dict[str, Any]) -> Tensor:
    def term(i: int) -> Tensor:
        y = s.labels[i]
        rest = [(1.0, o["alpha"] * (s.sim[i][c] + o["delta"])) for c in s.classes if c != y]
        return logsum([*rest, (1.0, o["alpha"] * (o["delta"] - s.sim[i][y]))], one=True)

    return s.mean(term)


FORMULAS: dict[str, Callable[[Samples, dict[str, Any]], Tensor]] = {
    "proxy-nca": proxy_nca,
    "proxy-anchor": lambda s, o: anchored(s, o, divide_by_all=True),
    "soft-triple": lambda s, o: softmax_with(lambda c: c - o["delta"], o["scale"])(s),
    "normalized-softmax": lambda s, o: softmax_with(lambda c: c, 1 / o["temperature"])(s),
    "cosface": lambda s, o: softmax_with(lambda c: c - o["margin"], o["scale"])(s),
    "arcface": lambda s, o: softmax_with(lambda c: add_angle(c, o["angle"]), o["scale"])(s),
    "subcenter-arcface": lambda s, o: softmax_with(lambda c: add_angle(c, o["angle"]), o["scale"])(s),
    "large-margin-softmax": lambda s, o: multiplied_angle(s, o, proxy_norms=True),
    "sphereface": lambda s, o: multiplied_angle(s, o, proxy_norms=False),
    "p2sgrad": p2sgrad,
    "mpa": lambda s, o: anchored(s, o, divide_by_all=False),
    "mpa-dw": data_wise,
    "mpa-ap": all_paired,
}


@dataclass
class SlowISA:
    """Proxy-ISA by section 6.2 of its settled algorithm, with a list as memory."""

    classes: int
    base: str = "proxy-anchor"
    nca_scale: float = 1.0
    alpha: float = 32.0
    delta: float = 0.1
    volume: float = 100.0
    hardness: float = 0.15
    sensitivity: float = 0.9
    margin: float = 0.1
    tau: float = 1.5
    positive_penalty: str = "sigma"
    negative_penalty: str = "inverse"
    memory_size: int = 55_000
    memory_epoch: int = 2
    filter_epoch: int = 3
    init_learned_sim: float = 1.0
    epoch: int = 0
    seen: list[int] = field(default_factory=list)
    learned: list[float] = field(default_factory=list)
    memory: list[tuple[Tensor, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = self.seen or [0] * self.classes
        self.learned = self.learned or [self.init_learned_sim] * self.classes

    def effective(self, c: int) -> float:
        beta = (self.volume - 1) / self.volume
        return sum(beta**j for j in range(self.seen[c]))

    def nu(self, c: int) -> float:
        return 1 / (1 + math.log(1 + self.effective(c)))

    def sigma(self, c: int) -> float:
        e, v, tau = self.effective(c), self.volume, self.tau
        return 1 + (1 + math.exp(-tau)) * (self.nu(c) - 1) / (1 + math.exp(v - e - tau))

    def outlier(self, c: int) -> float:
        eta = (1 + self.sensitivity * (1 - self.learned[c])) * self.nu(c) + self.margin
        return self.learned[c] - eta

    def positive(self, s: float, c: int) -> float:
        if self.epoch < self.filter_epoch or self.positive_penalty == "none":
            return 1.0
        inverse = 1 / max(1.0, self.effective(c))
        z = {"sigma": self.sigma(c), "nu": self.nu(c), "inverse": inverse}[self.positive_penalty]
        return 1 + z if self.outlier(c) <= s <= self.learned[c] else z

    def negative(self, s: float, c: int) -> float:
        if self.negative_penalty == "none" or s >= self.outlier(c):
            return 1.0
        return 1 / max(1.0, self.effective(c))

    def __call__(
        self, x: Tensor, labels: Tensor, proxies: Tensor, weights: Tensor | None = None, train: bool = True
    ) -> Tensor:
        s = samples(x, labels, weights, proxies, {})
        value = (self.nca if self.base == "proxy-nca" else self.anchor)(s)
        if train:
            self.step(s, x, labels, proxies, weights)
        return value

    def anchor(self, s: Samples) -> Tensor:
        sums, norms = [torch.zeros((), dtype=torch.float64)] * 2, [0.0, 0.0]
        for c in s.classes:
            for side in (0, 1):
                group = [i for i, y in enumerate(s.labels) if (y != c) == bool(side)]
                if not group:
                    continue
                sign, weigh = (1, self.negative) if side else (-1, self.positive)
                omega = [weigh(float(s.sim[i][c].detach()), c) for i in group]
                z = [
                    (s.weights[i], o * self.alpha * (self.delta + sign * s.sim[i][c]))
                    for i, o in zip(group, omega, strict=True)
                ]
                sums[side] = sums[side] + logsum(z, one=True)
                total = sum(s.weights[i] for i in group)
                norms[side] += sum(s.weights[i] * o for i, o in zip(group, omega, strict=True)) / total
        return sums[0] / norms[0] + (sums[1] / norms[1] if norms[1] else 0.0)

    def nca(self, s: Samples) -> Tensor:
        def term(i: int) -> Tensor:
            y, row = s.labels[i], s.sim[i]
            scale = self.nca_scale
            own = self.positive(float(row[y].detach()), y) * scale * (2 - 2 * row[y])
            rest = [
                (1.0, -self.negative(float(row[c].detach()), c) * scale * (2 - 2 * row[c])) for c in s.classes if c != y
            ]
            return own + logsum(rest)

        return s.mean(term)

    def step(self, s: Samples, x: Tensor, labels: Tensor, proxies: Tensor, weights: Tensor | None) -> None:
        alive = [i for i in range(len(x)) if weights is None or weights[i] > 0]
        clean = []
        for place, i in enumerate(alive):
            y = int(labels[i])
            filtered = self.epoch >= self.filter_epoch and float(s.sim[place][y].detach()) < self.outlier(y)
            clean += [] if filtered else [i]
        remembering = self.epoch >= self.memory_epoch
        if remembering:
            self.memory += [(unit(x[i].detach()), int(labels[i])) for i in clean]
            self.memory = self.memory[-self.memory_size :]
        for i in clean:
            self.seen[int(labels[i])] += 1
        for c in {int(labels[i]) for i in alive}:
            mine = [row for row, y in self.memory if y == c]
            if remembering and mine:
                p = unit(proxies[c].detach())
                self.learned[c] = self.hardness * sum(float(p @ row) for row in mine) / len(mine)
