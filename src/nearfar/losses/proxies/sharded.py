"""Proxy losses whose proxies are split over processes. The value and the gradients do not change.

With N processes and C classes, rank r holds the proxies of the classes from r C / N up to, but not including,
(r + 1) C / N, both rounded down. Every process has all B embeddings of the batch and computes their similarities
to the classes that it holds, a matrix [C / N, B]. Only small tensors are communicated:

- Only one process holds the class of a sample. The similarities of the samples to their classes, [B], are therefore
  summed over the processes, and the processes that do not hold the class contribute 0.
- The log-sum-exp over the other classes of a sample needs the maximum of the exponents over the processes, and then the
  sum of the exponentials over the processes, [B] each.
- In losses with one term per class, the process that holds a class computes its term. Only the sum of the terms is
  communicated.
- The gradient with respect to the embeddings is a sum over the processes, [B, d].

The process that holds a proxy computes its complete gradient. An elementwise optimizer therefore updates the proxy in
the same way as without splitting. Partial FC (An et al., arXiv 2010.05222) splits the classes in the same way, but uses
only a sample of the classes in each step. Here all classes are used.
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
from nearfar.losses.proxies.class_similarity import ClassSimilarities, Margin
from nearfar.losses.proxies.multi_proxy import MultiProxyLoss, regularizer
from nearfar.losses.proxies.proxy_loss import DataWiseLoss, ProxyLoss
from nearfar.losses.proxy_anchor import ProxyAnchorLoss, proxy_anchor_terms
from nearfar.losses.proxy_nca import ProxyNCALoss
from nearfar.losses.soft_triple import SoftTripleLoss
from nearfar.losses.subcenter_arcface import SubCenterArcFaceLoss
from nearfar.ops.pairs import ratio, softplus
from nearfar.ops.precision import without_autocast
from nearfar.validation import Labels

# Proxy-ISA is not supported, because its memory and its per-class statistics would have to be split too.
SHARDABLE = (
    *(NormalizedSoftmaxLoss, CosFaceLoss, ArcFaceLoss, SubCenterArcFaceLoss, ProxyNCALoss, SoftTripleLoss),
    *(MPADWLoss, MPAAPLoss, ProxyAnchorLoss, MPALoss),
)


class ShardedProxies(Loss):
    """A wrapper that splits the proxies of a proxy loss over the processes of the default process group.

    Call it like the wrapped loss. All processes must create it from identical losses and call it with the same
    embeddings and labels. It replaces `loss.proxies` by the proxies of the classes that this process holds. Before
    that, `loss` must have the proxies of all classes, so that their initial values are the same as without splitting.
    Each process therefore needs memory for all proxies when the wrapper is created. Without a process group, the value
    is that of the wrapped loss.

    Args:
        loss: A proxy loss with the proxies of all classes. Its type must be in `SHARDABLE`.

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
            raise ValueError(
                f"{world} processes need at least two classes each, got classes={self.classes}: use fewer processes"
            )
        self.start, self.stop = rank * self.classes // world, (rank + 1) * self.classes // world
        loss.proxies = nn.Parameter(loss.proxies.detach()[self.start : self.stop].clone())
        self.loss = loss

    def forward(
        self, embeddings: Tensor, labels: Labels, *, weights: Tensor | None = None, representatives: int | None = None
    ) -> Tensor:
        """Compute the loss; see `ProxyLoss.forward`."""
        summed: Tensor = _SumGradients.apply(embeddings)  # type: ignore[no-untyped-call]
        whole = self.loss.class_similarities(summed, labels, weights)
        if whole.labels.ndim == 2:
            raise ValueError(
                "multi-hot labels are not supported with split proxies: pass class ids, or use the loss without "
                "ShardedProxies"
            )
        sims = ShardSimilarities(
            whole.matrix, whole.labels, whole.weights, whole.embeddings, whole.gram, start=self.start
        )
        with without_autocast(sims.matrix.device.type):
            cost = self.loss.cost(sims) if isinstance(self.loss, DataWiseLoss) else self._per_class(sims)
            if not isinstance(self.loss, MultiProxyLoss) or sims.gram is None:
                return cost
            # The penalty is a mean over the classes of this process, so it is weighted by their share of all classes.
            share = (self.stop - self.start) / self.classes
            return cost + sum_over_processes(share * self.loss.tau * regularizer(sims.gram, self.loss.reg_eps))

    def _per_class(self, sims: ShardSimilarities) -> Tensor:
        """Compute Proxy-Anchor, or MPA without its regularizer.

        The two losses have the same sums over classes, with different divisors.
        """
        assert isinstance(self.loss, ProxyAnchorLoss | MPALoss)
        counted = torch.ones_like(sims.labels) if sims.weights is None else (sims.weights > 0).to(sims.labels.dtype)
        seen = sims.labels.new_zeros(self.classes).index_add(0, sims.labels, counted).count_nonzero()
        pos, neg = proxy_anchor_terms(sims.with_other_shards(), self.loss.alpha, self.loss.delta)
        pos, neg = sum_over_processes(torch.stack([pos[:-1].sum(), neg[:-1].sum()]))
        if isinstance(self.loss, ProxyAnchorLoss):
            cost: Tensor = pos / seen.clamp_min(1) + neg / self.classes
            return cost
        with_neg = torch.where(seen == 0, 0, self.classes - (seen == 1).to(seen.dtype))
        return ratio(pos, seen.to(pos.dtype)) + ratio(neg, with_neg.to(neg.dtype))

    def gather_classes(self, part: Tensor) -> Tensor:
        """Concatenate the parts of all processes on rank 0. Every process must call this method.

        Args:
            part: A tensor with the classes of this process along dimension 0.

        Returns:
            On rank 0, a tensor with all classes along dimension 0. On other ranks, an empty tensor.
        """
        rank, world = _group()
        if world == 1:
            return part
        sizes = [(r + 1) * self.classes // world - r * self.classes // world for r in range(world)]
        padded = torch.cat([part, part.new_zeros(max(sizes) - len(part), *part.shape[1:])])
        parts = [torch.empty_like(padded) for _ in sizes] if rank == 0 else None
        dist.gather(padded, parts, dst=0)
        return part[:0] if parts is None else torch.cat([p[:n] for p, n in zip(parts, sizes, strict=True)])

    def select_classes(self, whole: Tensor) -> Tensor:
        """Select the classes of this process from a tensor with all classes along dimension 0."""
        return whole[self.start : self.stop]


@dataclass(frozen=True, eq=False)
class ShardSimilarities(ClassSimilarities):
    """The similarities of all samples to the classes of one process.

    The first row of the matrix belongs to class `start`. The labels are class ids among all classes.
    """

    start: int = 0

    def places(self) -> tuple[Tensor, Tensor]:
        """Find the matrix row of the class of each sample. Return a mask [B] and row numbers [B].

        The mask is true if this process holds the class of the sample. The row number is the row of this class in the
        matrix of this process; it is arbitrary if the process does not hold the class.
        """
        place = self.labels - self.start
        here = (place >= 0) & (place < len(self.matrix))
        return here, place.clamp(0, len(self.matrix) - 1)

    def own(self) -> Tensor:
        here, place = self.places()
        return sum_over_processes(torch.where(here, self.matrix.gather(0, place[None])[0], 0.0))

    def others(self, *, scale: float, shift: float = 0.0, plus_one: bool = False) -> Tensor:
        result: Tensor = _Others.apply(self.matrix, *self.places(), scale, shift, plus_one)  # type: ignore[no-untyped-call]
        return result

    def softmax_terms(self, scale: float, own: Tensor) -> Tensor:
        return softplus(self.others(scale=scale) - scale * own)

    def margin_terms(
        self, scale: float, margin: Margin | None = None, *, own_in_denominator: bool = True, wide: bool = False
    ) -> Tensor:
        own = self.own()
        if margin is not None:
            value, slope = margin(own.detach())
            change = own - own.detach()  # its value is 0, and its gradient is that of `own`
            own = value + (change if slope is None else change * slope)
        gap = self.others(scale=scale) - scale * own
        return softplus(gap) if own_in_denominator else gap

    def with_other_shards(self) -> ClassSimilarities:
        """Return similarities with an additional last class, which replaces the classes of all other processes.

        Samples whose class is on another process get this class as their label. Its similarities are 0.
        """
        here, place = self.places()
        labels = torch.where(here, place, len(self.matrix))
        return ClassSimilarities(F.pad(self.matrix, (0, 0, 0, 1)), labels, self.weights, self.embeddings)


def sum_over_processes(part: Tensor) -> Tensor:
    """Sum a tensor over the processes.

    The backward pass does not sum the gradient over the processes. The gradient is correct if all processes compute the
    same loss from the sum.
    """
    total: Tensor = _Sum.apply(part)  # type: ignore[no-untyped-call]
    return total


def _group() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
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
    """The identity, whose backward pass sums the gradient over the processes.

    Each process has only the part of the gradient that comes from its own classes.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        return embeddings.view_as(embeddings)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return _reduce(g.clone())


class _Others(torch.autograd.Function):
    """Compute the log-sum-exp of scale * sim + shift for each sample, [B].

    The sum is over the classes of all processes, except the sample's own class. With `plus_one`, 1 is added to it.
    """

    @staticmethod
    def forward(
        ctx: Any, sim: Tensor, here: Tensor, place: Tensor, scale: float, shift: float, plus_one: bool
    ) -> Tensor:
        e = sim * scale
        e.scatter_(0, place[None], torch.where(here, -torch.inf, e.gather(0, place[None])))
        top = _reduce(e.amax(0), dist.ReduceOp.MAX).add_(shift)
        top = top.clamp_min_(0) if plus_one else torch.where(top > -torch.inf, top, 0.0)
        total = _reduce(e.sub_(top - shift).exp_().sum(0))
        ctx.scale = scale
        if plus_one:
            less_one = total + torch.expm1(-top)  # prevents log(1 + sum) from rounding to 0 for tiny sums
            ctx.save_for_backward(e, less_one + 1)
            return top + less_one.log1p()
        ctx.save_for_backward(e, total)
        return top + total.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        e, total = ctx.saved_tensors
        return e * ratio(ctx.scale * g, total), None, None, None, None, None
