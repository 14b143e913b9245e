"""Proxy-ISA: Proxy-Anchor with a weight on each exponent that depends on how informative the sample is."""

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
from nearfar.ops.geometry import unit
from nearfar.ops.pairs import ratio
from nearfar.validation import check_choice, check_count, check_not_negative, check_positive

POSITIVE = ("sigma", "nu", "inverse", "none")
NEGATIVE = ("inverse", "none")


@dataclass(frozen=True, eq=False)
class Progress:
    """How far the training of each class has progressed. Every field is a float64 tensor [C]. See `progress`.

    Attributes:
        effective: The effective number of samples, E.
        nu: A penalty that decreases as E grows.
        sigma: A penalty that stays near 1 until E approaches the volume V and then drops to nu.
        eta: The width of the range of informative similarities.
        learned: The learned similarity, L (see `ProxyISALoss`).
        outlier: The similarity below which a sample of the class is an outlier, L - eta.
    """

    effective: Tensor
    nu: Tensor
    sigma: Tensor
    eta: Tensor
    learned: Tensor
    outlier: Tensor


def progress(
    seen: Tensor, learned: Tensor, *, volume: float, sensitivity: float, margin: float, tau: float
) -> Progress:
    """Compute the progress of each class from its number of samples n and its learned similarity L.

    The formulas are Eqs. 8, 14, 15 and 17 of the Proxy-ISA paper (arXiv 2211.10382):

    E = (1 - beta^n) / (1 - beta) with beta = (V - 1) / V
    nu = 1 / (1 + log(1 + E))
    sigma = 1 + (1 + e^-tau) (nu - 1) / (1 + e^{V - E - tau})
    eta = (1 + k (1 - L)) nu + lambda

    Args:
        seen: The number of samples of each class so far, n [C].
        learned: The learned similarity of each class, L [C].
        volume: V, the limit of E for many samples.
        sensitivity: k, how strongly eta depends on L.
        margin: lambda, a constant that is added to eta.
        tau: An offset. The drop of sigma is centered at E = V - tau.
    """
    effective = -volume * torch.expm1(seen.double() * math.log1p(-1 / volume))
    nu = 1 / (1 + effective.log1p())
    sigma = 1 + (1 + math.exp(-tau)) * (nu - 1) * torch.sigmoid(effective - volume + tau)
    sigma = torch.maximum(sigma, nu)  # without rounding errors, sigma >= nu always holds
    learned = learned.double()
    eta = (1 + sensitivity * (1 - learned)) * nu + margin
    return Progress(effective, nu, sigma, eta, learned, learned - eta)


@register("proxy-isa")
class ProxyISALoss(ProxyLoss):
    """Informative sample-aware proxy loss (Li et al., MMAsia 2022, arXiv 2211.10382, Eqs. 13 and 16), on cosines S.

    The loss is
    [sum_{c in C+} log(1 + sum_{y_i = c} e^{w+_i alpha (delta - S_ic)})] / [sum_{c in C+} mean_{y_i = c} w+_i]
    + [sum_c log(1 + sum_{y_i != c} e^{w-_ic alpha (delta + S_ic)})] / [sum_c mean_{y_i != c} w-_ic].

    S_ic is the cosine between sample i and the proxy of class c, y_i is the class of sample i, and C+ are the classes
    of the batch. The weights w+ and w- are treated as constants in the gradient. They depend on the learned similarity
    L_c, which is `hardness` times the mean similarity of the proxy of class c to the samples of the class in a memory.
    They also depend on the effective number of samples E_c, the positive penalty sigma_c and the width eta_c of the
    band below L_c in which samples are informative. The function `progress` computes all three from L_c and the number
    of samples of class c so far.

    - w+_i = 1 + sigma_c if L_c - eta_c <= S_ic <= L_c for c = y_i, else sigma_c. Before epoch `filter_epoch`, it is 1.
    - w-_ic = 1 / max(1, E_c) if S_ic < L_c - eta_c, else 1.
    - From epoch `filter_epoch` on, a sample with S_ic < L_c - eta_c for c = y_i is an outlier.

    In train() mode, each call updates the state after it has computed the loss. All samples except outliers are counted
    and, from epoch `memory_epoch` on, added to the memory. Then L_c is recomputed from the memory for the classes of
    the batch. Call `start_epoch(n)` at the start of each epoch. `state_dict` contains the counts, L, the memory and the
    epoch. Under torch.compile, the update is part of the graph.

    If sample weights are passed, the means of w+ and w- are weighted too. For the counts and the memory, a sample with
    a weight above 0 counts as one sample, and a sample of weight 0 is ignored. Classes without negatives in the batch
    are left out of both negative sums.

    The defaults are from the paper unless stated otherwise.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.
        base: "proxy-anchor" is the formula above. "proxy-nca" is the mean over samples of
            w+ s D^2(x, p_y) + log sum_{c != y} e^{-w- s D^2(x, p_c)}, where D is the distance between unit vectors and
            s is `nca_scale`. This formula is our own, because the paper shows results for Proxy-NCA (Fig. 11b) without
            a formula.
        nca_scale: The scale s with base="proxy-nca". The default is from the paper of Proxy-NCA. The baseline in the
            released code has scale 12 on cosines, which is 6 here.
        alpha: The scale.
        delta: The margin.
        volume: V in the effective number of samples E.
        hardness: The factor h of the learned similarity L.
        sensitivity: The factor k in eta. The released commands use 0.4 for Cars and 0.1 for In-Shop.
        margin: The summand lambda in eta.
        tau: The offset in sigma.
        positive_penalty: The quantity used as sigma_c in w+: "sigma", or one of the variants in Table 3: "nu" (nu in
            `progress`), "inverse" (1 / max(1, E)) or "none" (w+ = 1).
        negative_penalty: "inverse" is the formula above. "none" (w- = 1) is a variant in Table 3.
        memory_size: The number of samples in the memory. The default is from the released code.
        memory_epoch: The first epoch, counted from 0, in which samples are added to the memory. The default is from the
            released code; the paper says "second".
        filter_epoch: The first epoch, counted from 0, in which outliers are filtered. The default is from the released
            code.
        init_learned_sim: The initial value of L. The default is from the released code.

    >>> loss = ProxyISALoss(classes=4, dim=2, delta=0.0, memory_size=10)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])) / torch.tensor(2.0).log()  # at first, all weights are 1
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
        nca_scale: float = 1.0,
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
        self.nca_scale = check_positive("nca_scale", nca_scale)
        self.alpha, self.delta = check_positive("alpha", alpha), check_not_negative("delta", delta)
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
        """Return the number of epochs before the memory is used.

        During these epochs, the learned similarity L keeps its initial value. If this value is 1, nearly all negatives
        get the small weight 1 / E, where E is the effective number of samples of the class. With
        negative_penalty="none" there is no such effect, and the number is 0.
        """
        return self.memory_epoch if self.negative_penalty == "inverse" else 0

    def start_epoch(self, n: int) -> None:
        """Set the current epoch, counted from 0. It determines whether the memory and the filter are used."""
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}: epochs are counted from 0")
        self.epoch.fill_(n)

    def progress(self) -> Progress:
        """Return the current progress of every class."""
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
        """Return the weights w+ [B] of the positives, the weights w- [C, B] of the negatives, and the outlier mask [B].

        w- is 0 for the pairs of a sample and its own class.
        """
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

        # `negative` is 1 where the similarity is below `outlier`, else 0. Arithmetic is ten times faster here than a
        # broadcast torch.where.
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
        """Compute the loss with base "proxy-anchor" (Eq. 13) from the weights of positives [B] and negatives [C, B]."""
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
        """Compute the loss with base "proxy-nca" from the weights of positives [B] and negatives [C, B]."""
        if len(sims.matrix) == 1:
            return sims.mean(0.0 * sims.own())
        scale = 2 * self.nca_scale  # for unit vectors, s D^2 = 2 s (1 - S)
        others = others_per_sample(negative * (sims.matrix - 1), sims.labels, scale=scale)
        return sims.mean(scale * positive * (1 - sims.own()) + others)

    @torch.no_grad()
    def update(self, sims: ClassSimilarities, filtered: Tensor) -> None:
        """Count the samples that are not outliers. From epoch `memory_epoch` on, also update the memory.

        The samples that are not outliers are added to the memory. Then the learned similarity L is recomputed for the
        classes of the batch.

        Args:
            sims: The class similarities of the batch.
            filtered: The mask of the outliers [B].
        """
        labels, remembering = sims.labels, self.epoch >= self.memory_epoch
        keep = ~filtered if sims.weights is None else ~filtered & (sims.weights > 0)
        self.memory.add(unit(sims.embeddings), labels, keep & remembering)
        self.seen.index_add_(0, labels, keep.long())
        proxies = self.proxies.index_select(0, labels).double()
        length = torch.linalg.vector_norm(proxies, dim=1)
        similarity = self.hardness * ratio(self.memory.mean_dot(labels, proxies), length)
        updated = remembering & (sims.counts()[labels] > 0) & (self.memory.counts[labels] > 0)
        self.learned.index_copy_(
            0, labels, torch.where(updated, similarity.to(self.learned.dtype), self.learned[labels])
        )
