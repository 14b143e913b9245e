"""Proxies split over processes: each process holds a part of the classes. Value and gradient do not change.

Rank r of N holds the classes from r C / N up to (r + 1) C / N. Every process has all embeddings of the batch and
computes the similarities of its classes, a [C / N, B] matrix. Only small tensors are communicated:

    own class   S_i,y(i) is known to one process: a sum over processes, [B]
    others      log sum over classes of e^z: the largest exponent, then the sum over processes, [B] each
    per class   the process of a class computes its log-sums over samples alone; only their totals are summed
    embeddings  the gradient with respect to the embeddings is a sum of one part per process, [B, d]

The gradient of a proxy is complete on its process, so an elementwise optimizer updates it as without splitting.
Partial FC (An et al., arXiv 2010.05222) splits the classes in the same way and then samples them; here all classes
count.
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
from nearfar.validation import Labels

# Proxy-ISA is not supported: its memory and the progress of its classes would have to be split too.
SHARDABLE = (
    *(NormalizedSoftmaxLoss, CosFaceLoss, ArcFaceLoss, SubCenterArcFaceLoss, ProxyNCALoss, SoftTripleLoss),
    *(MPADWLoss, MPAAPLoss, ProxyAnchorLoss, MPALoss),
)


class ShardedProxies(Loss):
    """A proxy loss whose proxies are split over the processes of the process group. It is called like the loss.

    All processes must create it from equal losses and call it with the same embeddings. `loss.proxies` then holds the
    classes of this process. It is created from a complete loss, so that the proxies start with the same values as
    without splitting; creation therefore needs memory for all proxies. Without a process group it equals the loss.

    Args:
        loss: The complete proxy loss, one of `SHARDABLE`.

    >>> from nearfar.losses import create
    >>> whole = create("arcface", classes=9, dim=4)
    >>> x, labels = torch.randn(5, 4), torch.tensor([0, 1, 8, 3, 1])
    >>> value = whole(x, labels)
    >>> torch.allclose(ShardedProxies(whole)(x, labels), value)
    True
    """

    def __init__(self, loss: ProxyLoss) -> None:
        super().__init__()
        if type(loss) not in SHARDABLE:
            names = ", ".join(loss_class.__name__ for loss_class in SHARDABLE)
            raise ValueError(f"the proxies of {type(loss).__name__} cannot be split: use one of {names}")
        self.classes, (rank, world) = loss.classes, _group()
        if self.classes < 2 * world:
            raise ValueError(f"{world} processes need at least two classes each, got classes={self.classes}")
        self.start, self.stop = rank * self.classes // world, (rank + 1) * self.classes // world
        loss.proxies = nn.Parameter(loss.proxies.detach()[self.start : self.stop].clone())
        self.loss = loss

    def forward(
        self, embeddings: Tensor, labels: Labels, *, weights: Tensor | None = None, representatives: int | None = None
    ) -> Tensor:
        """Compute the loss; see `ProxyLoss.forward`."""
        summed: Tensor = _SumGradients.apply(embeddings)  # type: ignore[no-untyped-call]
        whole = self.loss.class_similarities(summed, labels, weights)
        sims = ShardSimilarities(whole.matrix, whole.labels, whole.weights, whole.embeddings, whole.gram, self.start)
        with torch.autocast(sims.matrix.device.type, enabled=False):
            cost = self.loss.cost(sims) if isinstance(self.loss, DataWiseLoss) else self._per_class(sims)
            if not isinstance(self.loss, MultiProxyLoss) or sims.gram is None:
                return cost
            share = (self.stop - self.start) / self.classes  # the regularizer is a mean over classes
            return cost + sum_over_processes(torch.as_tensor(self.loss.penalty(sims) * share))

    def _per_class(self, sims: ShardSimilarities) -> Tensor:
        """Compute Proxy-Anchor or MPA, whose sums over classes have different divisors."""
        assert isinstance(self.loss, ProxyAnchorLoss | MPALoss)
        counted = sims.labels if sims.weights is None else sims.labels[sims.weights > 0]
        seen = len(counted.unique())  # type: ignore[no-untyped-call]
        pos, neg = proxy_anchor_terms(sims.with_other_shards(), self.loss.alpha, self.loss.delta)
        pos, neg = sum_over_processes(torch.stack([pos[:-1].sum(), neg[:-1].sum()]))
        if isinstance(self.loss, ProxyAnchorLoss):
            cost: Tensor = pos / max(seen, 1) + neg / self.classes
            return cost
        with_neg = 0 if seen == 0 else self.classes - (seen == 1)
        return ratio(pos, pos.new_tensor(seen)) + ratio(neg, neg.new_tensor(with_neg))

    def gather_classes(self, part: Tensor) -> Tensor:
        """Gather a tensor over all classes on rank 0; other ranks get an empty one. Every process must call this."""
        rank, world = _group()
        if world == 1:
            return part
        sizes = [(r + 1) * self.classes // world - r * self.classes // world for r in range(world)]
        padded = torch.cat([part, part.new_zeros(max(sizes) - len(part), *part.shape[1:])])
        parts = [torch.empty_like(padded) for _ in sizes] if rank == 0 else None
        dist.gather(padded, parts, dst=0)
        return part[:0] if parts is None else torch.cat([p[:n] for p, n in zip(parts, sizes, strict=True)])

    def select_classes(self, whole: Tensor) -> Tensor:
        """Return the part of a tensor over all classes that belongs to this process."""
        return whole[self.start : self.stop]


@dataclass(frozen=True, eq=False)
class ShardSimilarities(ClassSimilarities):
    """The similarities of every sample and the classes from `start` on; labels refer to all classes."""

    start: int = 0

    def places(self) -> tuple[Tensor, Tensor]:
        """Return, for each sample, whether its class is on this process and its row (an arbitrary one if it is not)."""
        place = self.labels - self.start
        here = (place >= 0) & (place < len(self.matrix))
        return here, place.clamp(0, len(self.matrix) - 1)

    def own(self) -> Tensor:
        here, place = self.places()
        return sum_over_processes(torch.where(here, self.matrix.gather(0, place[None])[0], 0.0))

    def others(self, *, scale: float, shift: float = 0.0, plus_one: bool = False) -> Tensor:
        result: Tensor = _Others.apply(self.matrix, *self.places(), scale, shift, plus_one)  # type: ignore[no-untyped-call]
        return result

    def with_other_shards(self) -> ClassSimilarities:
        """Return plain similarities with an extra last class for the samples whose own class is on another process."""
        here, place = self.places()
        labels = torch.where(here, place, len(self.matrix))
        return ClassSimilarities(F.pad(self.matrix, (0, 0, 0, 1)), labels, self.weights, self.embeddings)


def sum_over_processes(part: Tensor) -> Tensor:
    """Sum over the processes. All must use the sum in the same way, because backward does not sum the gradient."""
    total: Tensor = _Sum.apply(part)  # type: ignore[no-untyped-call]
    return total


def _group() -> tuple[int, int]:
    """Return the rank and the number of processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def _reduce(values: Tensor, by: Any = dist.ReduceOp.SUM) -> Tensor:
    """Reduce a tensor over the processes, in place."""
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
    """Return the input; sum its gradient over the processes, each of which has the part from its own classes."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        return embeddings.view_as(embeddings)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return _reduce(g.clone())


class _Others(torch.autograd.Function):
    """Compute log( [1 +] sum of e^{scale S + shift} ) over the other classes on all processes, [B]."""

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
            less_one = total + torch.expm1(-top)  # for small e^z, log(1 + e^z) would round to 0
            ctx.save_for_backward(e, less_one + 1)
            return top + less_one.log1p()
        ctx.save_for_backward(e, total)
        return top + total.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        e, total = ctx.saved_tensors
        return e * ratio(ctx.scale * g, total), None, None, None, None, None
