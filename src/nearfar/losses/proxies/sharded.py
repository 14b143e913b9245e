"""Proxies of very many classes, each rank with its own part of them: value and gradient of the whole.

Rank r of N has the classes from r C / N up to (r + 1) C / N. Every rank has all rows of the batch, so the ties of its
classes, a [C / N, B] matrix, are its own affair, and what has to travel is small:

    own        S_i,y(i) lies with one rank: a sum over ranks, [B]
    others     log sum over classes of e^z: the largest exponent and then the sum over ranks, [B] each
    per class  log sums over the samples of a class are whole where the class is: a sum of their totals
    rows       the gradient of the rows by each rank's classes: a sum, [B, d]

The gradient of a proxy is complete on its rank, and an optimizer that works entry by entry moves it as it would among
all. Splitting the classes is partial FC's (An et al., arXiv 2010.05222), which then samples them; here all count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nearfar.losses.arcface import ArcFaceLoss
from nearfar.losses.base import Loss
from nearfar.losses.cosface import CosFaceLoss
from nearfar.losses.mpa import MPALoss
from nearfar.losses.mpa_ap import MPAAPLoss
from nearfar.losses.mpa_dw import MPADWLoss
from nearfar.losses.normalized_softmax import NormalizedSoftmaxLoss
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.multi_proxy import MultiProxyLoss
from nearfar.losses.proxies.proxy_loss import DataWiseLoss, ProxyLoss
from nearfar.losses.proxy_anchor import ProxyAnchorLoss, proxy_anchor_terms
from nearfar.losses.proxy_nca import ProxyNCALoss
from nearfar.losses.soft_triple import SoftTripleLoss
from nearfar.losses.subcenter_arcface import SubCenterArcFaceLoss
from nearfar.ops.pairs import ratio

# Proxy-ISA is not among them: its memory and progress of every class would have to be split as well.
SHARDABLE = (
    *(NormalizedSoftmaxLoss, CosFaceLoss, ArcFaceLoss, SubCenterArcFaceLoss, ProxyNCALoss, SoftTripleLoss),
    *(MPADWLoss, MPAAPLoss, ProxyAnchorLoss, MPALoss),
)


class ShardedProxies(Loss):
    """A proxy loss of which each rank of the process group keeps its part of the proxies; called as the loss itself.

    All ranks must make it of equal losses and call it with the same rows. `loss.proxies` then are this rank's classes.
    Made of a whole loss, so that the proxies start as they would unsplit, which takes the memory of all of them once.
    Without a process group it is the loss itself.

    >>> from nearfar.losses import create
    >>> whole = create("arcface", classes=9, dim=4)
    >>> rows, labels = torch.randn(5, 4), torch.tensor([0, 1, 8, 3, 1])
    >>> value = whole(rows, labels)
    >>> torch.allclose(ShardedProxies(whole)(rows, labels), value)
    True
    """

    def __init__(self, loss: ProxyLoss) -> None:
        super().__init__()
        if type(loss) not in SHARDABLE:
            known = ", ".join(each.__name__ for each in SHARDABLE)
            raise ValueError(f"the proxies of {type(loss).__name__} cannot be split, those of {known} can")
        self.classes, (rank, world) = loss.classes, _group()
        if self.classes < 2 * world:
            raise ValueError(f"{world} ranks need at least two classes each, got classes={self.classes}")
        self.start, self.stop = rank * self.classes // world, (rank + 1) * self.classes // world
        loss.proxies = nn.Parameter(loss.proxies.detach()[self.start : self.stop].clone())
        self.loss = loss

    def forward(
        self, embeddings: Tensor, labels: Tensor, *, weights: Tensor | None = None, representatives: int | None = None
    ) -> Tensor:
        rows: Tensor = _SumGradients.apply(embeddings)  # type: ignore[no-untyped-call]
        whole = self.loss.class_similarities(rows, labels, weights)
        sims = ShardSimilarities(whole.matrix, whole.labels, whole.weights, whole.embeddings, whole.gram, self.start)
        with torch.autocast(sims.matrix.device.type, enabled=False):
            cost = self.loss.cost(sims) if isinstance(self.loss, DataWiseLoss) else self._per_class(sims)
            if not isinstance(self.loss, MultiProxyLoss) or sims.gram is None:
                return cost
            share = (self.stop - self.start) / self.classes  # the regularizer is a mean over classes
            return cost + sum_over_ranks(torch.as_tensor(self.loss.penalty(sims) * share))

    def _per_class(self, sims: ShardSimilarities) -> Tensor:
        """Proxy-Anchor and MPA, whose sums over classes have these divisors."""
        assert isinstance(self.loss, ProxyAnchorLoss | MPALoss)
        alive = sims.labels if sims.weights is None else sims.labels[sims.weights > 0]
        seen = len(alive.unique())  # type: ignore[no-untyped-call]
        pos, neg = proxy_anchor_terms(sims.with_other_shards(), self.loss.alpha, self.loss.delta)
        pos, neg = sum_over_ranks(torch.stack([pos[:-1].sum(), neg[:-1].sum()]))
        if isinstance(self.loss, ProxyAnchorLoss):
            cost: Tensor = pos / max(seen, 1) + neg / self.classes
            return cost
        with_neg = 0 if seen == 0 else self.classes - (seen == 1)
        return ratio(pos, pos.new_tensor(seen)) + ratio(neg, neg.new_tensor(with_neg))

    def whole_of(self, part: Tensor) -> Tensor:
        """The rows of all classes, from each rank's; every rank must ask, rank 0 gets them, the others an empty one."""
        rank, world = _group()
        if world == 1:
            return part
        sizes = [(r + 1) * self.classes // world - r * self.classes // world for r in range(world)]
        padded = torch.cat([part, part.new_zeros(max(sizes) - len(part), *part.shape[1:])])
        parts = [torch.empty_like(padded) for _ in sizes] if rank == 0 else None
        dist.gather(padded, parts, dst=0)
        return part[:0] if parts is None else torch.cat([p[:n] for p, n in zip(parts, sizes, strict=True)])

    def part_of(self, whole: Tensor) -> Tensor:
        """This rank's rows of all classes'."""
        return whole[self.start : self.stop]


@dataclass(frozen=True, eq=False)
class ShardSimilarities(ClassSimilarities):
    """The ties of some classes, from `start` on, with every sample; labels are among all classes."""

    start: int = 0

    def places(self) -> tuple[Tensor, Tensor]:
        """For each sample whether its class is here, and at which row (any, if it is not)."""
        place = self.labels - self.start
        here = (place >= 0) & (place < len(self.matrix))
        return here, place.clamp(0, len(self.matrix) - 1)

    def own(self) -> Tensor:
        here, place = self.places()
        return sum_over_ranks(torch.where(here, self.matrix.gather(0, place[None])[0], 0.0))

    def others(self, *, scale: float, shift: float = 0.0, plus_one: bool = False) -> Tensor:
        result: Tensor = _Others.apply(self.matrix, *self.places(), scale, shift, plus_one)  # type: ignore[no-untyped-call]
        return result

    def with_other_shards(self) -> ClassSimilarities:
        """Plain ties with one more class, that of the samples whose own class is elsewhere."""
        here, place = self.places()
        labels = torch.where(here, place, len(self.matrix))
        return ClassSimilarities(F.pad(self.matrix, (0, 0, 0, 1)), labels, self.weights, self.embeddings)


def sum_over_ranks(part: Tensor) -> Tensor:
    """The sum of the ranks' parts, for something that every rank then computes alike: its gradient is each part's."""
    total: Tensor = _Sum.apply(part)  # type: ignore[no-untyped-call]
    return total


def _group() -> tuple[int, int]:
    """Rank and number of ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def _reduce(values: Tensor, by: Any = dist.ReduceOp.SUM) -> Tensor:
    """In place."""
    if _group()[1] > 1:
        dist.all_reduce(values, by)
    return values


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return _reduce(part.clone())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class _SumGradients(torch.autograd.Function):
    """Rows as they are; each rank's gradient of them is that of its classes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return _reduce(g.clone())


class _Others(torch.autograd.Function):
    """log( [1 +] sum over the other classes of all ranks of e^{scale S + shift} ), [B]."""

    @staticmethod
    def forward(
        ctx: Any, sim: Tensor, here: Tensor, place: Tensor, scale: float, shift: float, plus_one: bool
    ) -> Tensor:
        e = sim * scale
        samples = here.nonzero()[:, 0]
        e[place[samples], samples] = -torch.inf
        top = _reduce(e.amax(0), dist.ReduceOp.MAX).add_(shift)
        top = top.clamp_min_(0) if plus_one else torch.where(top > -torch.inf, top, 0.0)
        total = _reduce(e.sub_(top - shift).exp_().sum(0))
        ctx.scale = scale
        if plus_one:
            less_one = total + torch.expm1(-top)  # log1p keeps a value near 0 that 1 + e^z would round away
            ctx.save_for_backward(e, less_one + 1)
            return top + less_one.log1p()
        ctx.save_for_backward(e, total)
        return top + total.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        e, total = ctx.saved_tensors
        return e * ratio(ctx.scale * g, total), None, None, None, None, None
