"""The similarities between samples and classes, and the log-sum-exps that proxy losses are built from.

Matrices have the shape [C, B] for C classes and B samples. With K proxies per class, the similarities to the proxies
have the shape [C, K, B], so that reductions over proxies, classes and samples all run along contiguous memory. The
similarity of a sample to its own class is selected by index, so no mask is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearfar.ops.custom_grad import first_derivative_only
from nearfar.ops.pairs import ratio, softplus

# A function that is applied to the similarities of samples to their own classes [B]. It returns its values [B] and its
# derivatives [B]. None in place of the derivatives means that they are all 1.
Margin = Callable[[Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True, eq=False)
class ClassSimilarities:
    """The similarities between classes and samples.

    Args:
        matrix: The similarities [C, B] of C classes and B samples.
        labels: The class ids of the samples [B], or multi-hot labels [B, C] for losses that support them.
        weights: The sample weights [B]; None if all are 1.
        embeddings: The embeddings of the samples [B, d]. They need not be normalized.
        gram: The cosines between the K proxies of each class [C, K, K], or None if the loss does not need them.
    """

    matrix: Tensor
    labels: Tensor
    weights: Tensor | None
    embeddings: Tensor
    gram: Tensor | None = None

    def own(self) -> Tensor:
        """Return the similarity of each sample to its own class. The result has shape [B]."""
        return self.matrix.gather(0, self.labels[None])[0]

    def others(self, *, scale: float, shift: float = 0.0, plus_one: bool = False) -> Tensor:
        """Compute log( sum over the other classes of e^{scale S + shift} ) for each sample. The result has shape [B].

        S is the similarity to a class. With `plus_one`, 1 is added to the sum. See `others_per_sample`.
        """
        return others_per_sample(self.matrix, self.labels, scale=scale, shift=shift, plus_one=plus_one)

    def softmax_terms(self, scale: float, own: Tensor) -> Tensor:
        """Compute log(1 + sum_{c != y} e^{scale (S_c - own)}) for each sample, [B].

        S_c is the similarity of the sample to class c, and y is its class. `own` [B] is the similarity to class y,
        possibly with a margin.
        """
        result: Tensor = _SoftmaxTerms.apply(self.matrix, own, self.labels, scale)  # type: ignore[no-untyped-call]
        return result

    def margin_terms(
        self, scale: float, margin: Margin | None = None, *, own_in_denominator: bool = True, wide: bool = False
    ) -> Tensor:
        """Compute `softmax_terms` with each sample's similarity to its own class as `own`, in one operation.

        If given, `margin` is applied to these similarities first. If `own_in_denominator` is False, the denominator of
        the softmax is the sum over the other classes only. `wide` is described in `margin_softmax_terms`.
        """
        own = self.matrix.detach().gather(0, self.labels[None])[0]
        slope: Tensor | None = None
        if margin is not None:
            own, slope = margin(own)
        return margin_softmax_terms(self.matrix, self.labels, own, slope, scale, own_in_denominator, wide)

    def mean(self, values: Tensor) -> Tensor:
        """Compute the weighted mean of values [B] over the samples; 0, with gradient 0, if every weight is 0."""
        return values.mean() if self.weights is None else ratio((values * self.weights).sum(), self.weights.sum())

    def counts(self) -> Tensor:
        """Count the samples of each class whose weight is above 0. The result has shape [C]."""
        if self.labels.ndim == 2:
            return (self.labels if self.weights is None else self.labels * (self.weights > 0)[:, None]).sum(0)
        counted = torch.ones_like(self.labels) if self.weights is None else (self.weights > 0).to(self.labels.dtype)
        return self.labels.new_zeros(len(self.matrix)).index_add(0, self.labels, counted)


def others_per_sample(
    sim: Tensor, labels: Tensor, *, scale: float, shift: float = 0.0, plus_one: bool = False
) -> Tensor:
    """Compute log( sum_{c != y_i} e^{scale S_ci + shift} ) for each sample i with class y_i. The result has shape [B].

    S_ci is the similarity of sample i to class c. With `plus_one`, 1 is added to the sum. If there is only one class,
    the value is -inf, or 0 with `plus_one`.

    >>> others_per_sample(torch.zeros(3, 1), torch.tensor([1]), scale=5.0).exp()
    tensor([2.])
    """
    result: Tensor = _OthersLogSumExp.apply(sim, labels, None, scale, shift, 0, plus_one)  # type: ignore[no-untyped-call]
    return result


def others_per_class(
    sim: Tensor, labels: Tensor, *, scale: float, shift: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Compute log( 1 + sum_{i: y_i != c} w_i e^{scale S_ci + shift} ) for each class c. The result has shape [C].

    S_ci is the similarity of sample i to class c. y_i is the class and w_i the weight of sample i.
    """
    bias = None if weights is None else weights.log()
    result: Tensor = _OthersLogSumExp.apply(sim, labels, bias, scale, shift, 1, True)  # type: ignore[no-untyped-call]
    return result


def own_per_class(z: Tensor, labels: Tensor, classes: int, *, weights: Tensor | None = None) -> Tensor:
    """Compute log( 1 + sum_{i: y_i = c} w_i e^{z_i} ) for each class c. The result has shape [C].

    z_i is the exponent, y_i the class and w_i the weight of sample i. The value is 0 for a class without samples.

    >>> own_per_class(torch.zeros(3), torch.tensor([0, 0, 2]), 3).exp()
    tensor([3., 1., 2.])
    """
    if weights is not None:
        z = z + weights.log()
    # `top` is the largest exponent of each class, at least 0. It prevents overflow. It cancels in the result, so it
    # needs no gradient.
    top = z.new_zeros(classes).scatter_reduce(0, labels, z.detach(), "amax")
    total = z.new_zeros(classes).index_add(0, labels, (z - top[labels]).exp())
    return top + (total + torch.expm1(-top)).log1p()


def margin_softmax_terms(
    sim: Tensor,
    labels: Tensor,
    own: Tensor,
    slope: Tensor | None,
    scale: float,
    plus_one: bool = True,
    wide: bool = False,
) -> Tensor:
    """Compute log( 1 + e^{-scale own_i} sum_{c != y_i} e^{scale S_ci} ) for each sample i with class y_i, [B].

    Args:
        sim: The similarities S [C, B].
        labels: The class ids y [B].
        own: The values f(S_{y_i i}) [B], where f is a function of the similarity of a sample to its own class. They
            are computed from detached similarities; the gradient with respect to `sim` uses `slope` instead. If they
            also depend on other tensors, autograd finds those gradients.
        slope: The derivatives of f at these similarities [B], or None if they are 1.
        scale: The scale.
        plus_one: If False, the 1 in the logarithm is left out.
        wide: Whether the logits of a sample can differ by more than 87, as dot products do. Exponentials that are too
            small to be normal numbers are then replaced by 0. They are far below the rounding error of the sum, but a
            CPU computes with them many times more slowly.
    """
    result: Tensor = _MarginSoftmaxTerms.apply(sim, labels, own, slope, scale, plus_one, wide)  # type: ignore[no-untyped-call]
    return result


class _OthersLogSumExp(torch.autograd.Function):
    """The log-sum-exp of scale * sim + shift over dim 0 (classes) or dim 1 (samples).

    The entries of each sample and its own class are left out. `bias` [B], if given, is added to the exponents of each
    sample. With `plus_one`, 1 is added to the sum.
    """

    @staticmethod
    def forward(
        ctx: Any,
        sim: Tensor,
        labels: Tensor,
        bias: Tensor | None,
        scale: float,
        shift: float,
        dim: int,
        plus_one: bool,
    ) -> Tensor:
        e = sim * scale if bias is None else torch.add(bias, sim, alpha=scale)
        e.scatter_(0, labels[None], -torch.inf)
        top = e.amax(dim, keepdim=True).add_(shift)
        top = top.clamp_min_(0) if plus_one else torch.where(top > -torch.inf, top, 0.0)
        e.sub_(top - shift).exp_()
        total = e.sum(dim, keepdim=True)
        if plus_one:
            # If all exponentials are tiny, 1 + sum rounds to 1, and log(1 + sum) would be 0. So compute
            # less_one = (1 + sum) e^-top - 1, and log(1 + sum) = top + log1p(less_one).
            less_one = total + torch.expm1(-top)
            value, total = top + less_one.log1p(), less_one + 1
        else:
            value = top + total.log()
        ctx.scale, ctx.dim = scale, dim
        ctx.save_for_backward(e, total)
        return value.squeeze(dim)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        e, total = ctx.saved_tensors
        return e * ratio(ctx.scale * g.unsqueeze(ctx.dim), total), None, None, None, None, None, None


def _softmax_parts(
    sim: Tensor, labels: Tensor, own: Tensor, scale: float, wide: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the exponentials e^{scale S - top} [C, B], their sums over the classes [B], and the differences z [B].

    S are the similarities, and `top` is the largest scale S of each sample over the other classes, those that are not
    its own. The exponential of the own class is set to 0. z is
    log( sum over the other classes of e^{scale S} ) - scale * own.

    If there is only one class, z is -inf. The sums are then set to 1, because the backward pass divides by them. `wide`
    is described in `margin_softmax_terms`.
    """
    e = (sim * scale).scatter_(0, labels[None], -torch.inf)
    top = e.amax(0) if len(sim) > 1 else torch.zeros_like(own)  # with one class, all exponents are -inf
    e.sub_(top)
    if wide:
        torch.threshold_(e, math.log(torch.finfo(e.dtype).tiny), -torch.inf)
    total = e.exp_().sum(0)
    z = total.log().add_(top).sub_(own, alpha=scale)
    return e, total if len(sim) > 1 else total + 1, z


class _SoftmaxTerms(torch.autograd.Function):
    """Compute softplus(z), [B], where z is the log-sum-exp of scale * sim over the other classes, minus scale * own.

    This is a single autograd operation, because several small operations would take longer to launch than to run.
    """

    @staticmethod
    def forward(ctx: Any, sim: Tensor, own: Tensor, labels: Tensor, scale: float) -> Tensor:
        e, total, z = _softmax_parts(sim, labels, own, scale)
        ctx.scale = scale
        ctx.save_for_backward(e, total, z)
        return softplus(z)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        e, total, z = ctx.saved_tensors
        slope = torch.sigmoid(z).mul_(g).mul_(ctx.scale)
        return e * (slope / total), -slope, None, None


class _MarginSoftmaxTerms(torch.autograd.Function):
    """Compute `margin_softmax_terms`. `own` is a function of `sim`, whose derivative is `slope`.

    The gradient that the backward pass returns for `sim` includes the part through `own`. The gradient for `own` is
    only for other tensors from which it was computed.
    """

    @staticmethod
    def forward(
        ctx: Any,
        sim: Tensor,
        labels: Tensor,
        own: Tensor,
        slope: Tensor | None,
        scale: float,
        plus_one: bool,
        wide: bool,
    ) -> Tensor:
        e, total, z = _softmax_parts(sim, labels, own, scale, wide)
        ctx.scale = scale
        ctx.save_for_backward(e, total, z if plus_one else None, labels, slope)
        return softplus(z) if plus_one else z

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        e, total, z, labels, slope = ctx.saved_tensors
        push = g * ctx.scale if z is None else torch.sigmoid(z).mul_(g).mul_(ctx.scale)
        gradient = e * (push / total)
        by_own = push.neg_()
        own = by_own if slope is None else by_own * slope
        by_own = by_own if ctx.needs_input_grad[2] else None
        return gradient.scatter_(0, labels[None], own[None]), None, by_own, None, None, None, None
