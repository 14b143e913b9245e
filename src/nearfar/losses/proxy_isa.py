"""Proxy-ISA: Proxy-Anchor with exponents weighted by how informative a sample is for a proxy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_memory import ClassMemory
from nearfar.losses.proxies.class_similarity import (
    ClassSimilarities,
    others_per_class,
    others_per_sample,
    own_per_class,
)
from nearfar.losses.proxies.proxy_loss import ProxyLoss
from nearfar.ops.pairs import ratio
from nearfar.validation import check_choice, check_count, check_positive

POSITIVE = ("sigma", "nu", "inverse", "none")
NEGATIVE = ("inverse", "none")


@dataclass(frozen=True, eq=False)
class Progress:
    """The state of the schedule of each class; every field is [C] in float64. See `progress`."""

    effective: Tensor
    nu: Tensor
    sigma: Tensor
    eta: Tensor
    learned: Tensor
    outlier: Tensor


def progress(
    seen: Tensor, learned: Tensor, *, volume: float, sensitivity: float, margin: float, tau: float
) -> Progress:
    """Compute the schedule of classes after n samples each (Eqs. 8, 14, 15 and 17).

    Effective number E = (1 - beta^n) / (1 - beta), beta = (V - 1) / V; nu = 1 / (1 + log(1 + E));
    sigma = 1 + (1 + e^-tau) (nu - 1) / (1 + e^{V - E - tau}); eta = (1 + k (1 - L)) nu + lambda; outlier bound L - eta.
    """
    effective = -volume * torch.expm1(seen.double() * math.log1p(-1 / volume))
    nu = 1 / (1 + effective.log1p())
    sigma = 1 + (1 + math.exp(-tau)) * (nu - 1) * torch.sigmoid(effective - volume + tau)
    sigma = torch.maximum(sigma, nu)  # nu is the limit of sigma, which rounding must not cross
    learned = learned.double()
    eta = (1 + sensitivity * (1 - learned)) * nu + margin
    return Progress(effective, nu, sigma, eta, learned, learned - eta)


@register("proxy-isa")
class ProxyISALoss(ProxyLoss):
    """Informative sample-aware proxy loss (Li et al., MMAsia 2022, arXiv 2211.10382, Eqs. 13 and 16), on cosines S.

    [sum_{c in C+} log(1 + sum_{y_i = c} e^{w+_i alpha (delta - S_ic)})] / [sum_{c in C+} mean_{y_i = c} w+_i]
    + [sum_c log(1 + sum_{y_i != c} e^{w-_ic alpha (delta + S_ic)})] / [sum_c mean_{y_i != c} w-_ic].

    The weights w are constants in the gradient. L_c is `hardness` times the mean similarity of the stored samples of
    class c to its proxy, and `progress` is the schedule. w+ = 1 + sigma_c where L_c - eta_c <= S_ic <= L_c, else
    sigma_c, and 1 until the filter is on. w- = 1 / max(1, E_c) where S_ic < L_c - eta_c, else 1. Once the filter is on,
    a sample with S_ic < L_c - eta_c for its own class c is an outlier, which is neither counted nor stored.

    In train() mode each call then updates the state: samples that are not outliers are counted and, from epoch
    `memory_epoch` on, stored; then L_c of the classes in the batch is computed from the memory. Announce epochs with
    `start_epoch(n)`. Counts, L, memory and epoch are in `state_dict`. Under torch.compile the update is part of the
    graph.

    Sample weights also weight the means of w. A sample counts as one, or not at all if its weight is 0. Classes without
    negatives in the batch are in neither negative sum.

    Defaults are the paper's unless stated otherwise.

    Args:
        classes: The number of classes, or their names, which labels may then use.
        dim: The dimension of the embeddings.
        base: "proxy-anchor", or "proxy-nca" for the mean over samples of
            w+ D^2(x, p_y) + log sum_{c != y} e^{-w- D^2(x, p_c)} (ours: the paper's Fig. 11b has no formula).
        alpha: The scale.
        delta: The margin.
        volume: V of the effective number of samples.
        hardness: h, the factor of the learned similarity L.
        sensitivity: k of the outlier bound; the released commands have 0.4 for Cars and 0.1 for In-Shop.
        margin: lambda of the outlier bound.
        tau: The offset of the schedule of sigma.
        positive_penalty: "sigma", or the variants of Table 3: "nu", "inverse" (1 / max(1, E)) or "none" (w+ = 1).
        negative_penalty: "inverse", or "none" (w- = 1), a variant of Table 3.
        memory_size: The number of samples in the memory; 55000 is the released code's.
        memory_epoch: The first epoch with the memory, from 0; 2 is the released code's (the paper says "second").
        filter_epoch: The first epoch with the filter, from 0; 3 is the released code's.
        init_learned_sim: The initial L; 1 is the released code's.

    >>> loss = ProxyISALoss(classes=4, dim=2, delta=0.0, memory_size=10)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])) / torch.tensor(2.0).log()  # initially Proxy-Anchor
    tensor(2., grad_fn=<DivBackward0>)
    >>> loss.seen
    tensor([1, 0, 0, 0])
    """

    seen: Tensor
    learned: Tensor
    epoch: Tensor

    def __init__(
        self,
        *,
        classes: int | Sequence[str],
        dim: int,
        base: str = "proxy-anchor",
        alpha: float = 32.0,
        delta: float = 0.1,
        volume: float = 100.0,
        hardness: float = 0.15,
        sensitivity: float = 0.9,
        margin: float = 0.1,
        tau: float = 1.5,
        positive_penalty: str = "sigma",
        negative_penalty: str = "inverse",
        memory_size: int = 55_000,
        memory_epoch: int = 2,
        filter_epoch: int = 3,
        init_learned_sim: float = 1.0,
    ) -> None:
        super().__init__(classes, dim, gain=math.sqrt(2))
        self.base = check_choice("base", base, ("proxy-anchor", "proxy-nca"))
        self.alpha, self.delta = check_positive("alpha", alpha), delta
        if not 1 < volume < math.inf:
            raise ValueError(f"volume must be a finite number above 1, got {volume}")
        self.volume, self.hardness, self.sensitivity, self.margin, self.tau = volume, hardness, sensitivity, margin, tau
        self.positive_penalty = check_choice("positive_penalty", positive_penalty, POSITIVE)
        self.negative_penalty = check_choice("negative_penalty", negative_penalty, NEGATIVE)
        self.memory_size = check_count("memory_size", memory_size)
        self.memory_epoch, self.filter_epoch, self.init_learned_sim = memory_epoch, filter_epoch, init_learned_sim
        self.register_buffer("seen", torch.zeros(self.classes, dtype=torch.int64))
        self.register_buffer("learned", torch.full((self.classes,), init_learned_sim, dtype=torch.float64))
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))
        self.memory = ClassMemory(classes=self.classes, dim=dim, size=memory_size)

    @property
    def warmup_epochs(self) -> int:
        """Return the number of epochs in which L is still `init_learned_sim` and 1 / E weights nearly all negatives."""
        return self.memory_epoch if self.negative_penalty == "inverse" else 0

    def start_epoch(self, n: int) -> None:
        """Announce the start of epoch n, counted from 0. The memory and the filter depend on it."""
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}: epochs are counted from 0")
        self.epoch.fill_(n)

    def progress(self) -> Progress:
        """Return the current schedule of every class."""
        return progress(
            self.seen,
            self.learned,
            volume=self.volume,
            sensitivity=self.sensitivity,
            margin=self.margin,
            tau=self.tau,
        )

    @torch.no_grad()
    def similarity_weights(self, sims: ClassSimilarities) -> tuple[Tensor, Tensor, Tensor]:
        """Return w+ [B], w- [C, B] (0 for the sample's own class) and the mask of outliers of their classes [B]."""
        now, sim = self.progress(), sims.matrix
        inverse = 1 / now.effective.clamp_min(1)
        own, outlier = sims.own(), now.outlier.to(sim.dtype)
        bound, filtering = outlier[sims.labels], self.epoch >= self.filter_epoch
        below = own < bound

        if self.positive_penalty == "none":
            positive = torch.ones_like(own)
        else:
            penalty = {"sigma": now.sigma, "nu": now.nu, "inverse": inverse}[self.positive_penalty]
            informative = ~below & (own <= now.learned.to(sim.dtype)[sims.labels])
            positive = penalty.to(sim.dtype)[sims.labels] + informative
            positive = torch.where(filtering, positive, 1.0)

        # 1 where S < bound, else 0, by arithmetic: a broadcast torch.where takes ten times as long.
        negative = (outlier[:, None] - sim).sign_().clamp_min_(0)
        factor = inverse if self.negative_penalty == "inverse" else torch.ones_like(inverse)
        negative = (1 - negative).addcmul_(negative, factor.to(sim.dtype)[:, None])
        return positive, negative.scatter_(0, sims.labels[None], 0.0), below & filtering

    def cost(self, sims: ClassSimilarities) -> Tensor:
        positive, negative, filtered = self.similarity_weights(sims)
        value = (self.nca if self.base == "proxy-nca" else self.anchor)(sims, positive, negative)
        if self.training:
            self.update(sims, filtered)
        return value

    def anchor(self, sims: ClassSimilarities, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute Eq. 13."""
        classes, labels, weights, alpha, delta = len(sims.matrix), sims.labels, sims.weights, self.alpha, self.delta
        pos = own_per_class(alpha * positive * (delta - sims.own()), labels, classes, weights=weights)
        neg = others_per_class(negative * (sims.matrix + delta), labels, scale=alpha, weights=weights)

        mass = torch.ones_like(positive) if weights is None else weights
        per_class = mass.new_zeros(classes, dtype=torch.float64).index_add(0, labels, mass.double())
        weighted = torch.zeros_like(per_class).index_add(0, labels, (mass * positive).double())
        mean_pos = ratio(weighted, per_class)
        counts = sims.counts()
        others = torch.where(counts.sum() > counts, per_class.sum() - per_class, 0.0)
        mean_neg = ratio(negative.sum(1) if weights is None else negative @ weights, others)
        return ratio(pos.sum(), mean_pos.sum().to(pos.dtype)) + ratio(neg.sum(), mean_neg.sum().to(neg.dtype))

    def nca(self, sims: ClassSimilarities, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute the mean over samples of w+ D^2(x, p_y) + log sum_{c != y} e^{-w- D^2(x, p_c)}, D^2 = 2 - 2 S."""
        if len(sims.matrix) == 1:
            return sims.mean(0.0 * sims.own())
        others = others_per_sample(negative * (sims.matrix - 1), sims.labels, scale=2.0)
        return sims.mean(2 * positive * (1 - sims.own()) + others)

    @torch.no_grad()
    def update(self, sims: ClassSimilarities, filtered: Tensor) -> None:
        """Store and count the samples that are not outliers, then update L of the classes in the batch."""
        labels, remembering = sims.labels, self.epoch >= self.memory_epoch
        keep = ~filtered if sims.weights is None else ~filtered & (sims.weights > 0)
        self.memory.add(sims.embeddings, labels, keep & remembering)
        self.seen.index_add_(0, labels, keep.long())
        proxies = self.proxies.index_select(0, labels).double()
        length = torch.linalg.vector_norm(proxies, dim=1)
        similarity = self.hardness * ratio(self.memory.mean_dot(labels, proxies), length)
        updated = remembering & (sims.counts()[labels] > 0) & (self.memory.counts[labels] > 0)
        self.learned.index_copy_(
            0, labels, torch.where(updated, similarity.to(self.learned.dtype), self.learned[labels])
        )
