"""The similarities between samples and classes, and the log-sum-exps that proxy losses are built from.

Matrices have the shape [C, B] for C classes and B samples. With K proxies per class, the similarities to the proxies
have the shape [C, K, B], so that reductions over proxies, classes and samples all run along contiguous memory. The
similarity of a sample to its own class is selected by index, so no mask is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nearfar.ops.geometry import reciprocal_norms
from nearfar.ops.pairs import ratio, softplus
from nearfar.ops.precision import without_autocast


@dataclass(frozen=True, eq=False)
class ClassSimilarities:
    """The similarities between classes and samples.

    Args:
        matrix: The similarities [C, B] of C classes and B samples.
        labels: The class ids of the samples [B].
        weights: The sample weights [B]; None if all are 1.
        embeddings: The unit embeddings of the samples [B, d].
        gram: The cosines between the K proxies of each class [C, K, K], or None if the loss does not need them.
        norms: The norms of the embeddings before normalization [B], or None if the loss does not need them.
    """

    matrix: Tensor
    labels: Tensor
    weights: Tensor | None
    embeddings: Tensor
    gram: Tensor | None = None
    norms: Tensor | None = None

    def own(self) -> Tensor:
        """Return the similarity of each sample to its own class. The result has shape [B]."""
        return self.matrix.gather(0, self.labels[None])[0]

    def others(self, *, scale: float, shift: float = 0.0, plus_one: bool = False) -> Tensor:
        """Compute log( sum over the other classes of e^{scale S + shift} ) for each sample. The result has shape [B].

        S is the similarity to a class. With `plus_one`, 1 is added to the sum. See `others_per_sample`.
        """
        return others_per_sample(self.matrix, self.labels, scale=scale, shift=shift, plus_one=plus_one)

    def softmax_terms(self, scale: float, own: Tensor) -> Tensor:
        """Compute log( 1 + e^{-scale own} sum over the other classes of e^{scale S} ) for each sample, [B].

        S are the similarities to these classes. `own` [B] is the similarity of each sample to its own class, possibly
        with a margin.
        """
        result: Tensor = _SoftmaxTerms.apply(self.matrix, own, self.labels, scale)  # type: ignore[no-untyped-call]
        return result

    def mean(self, values: Tensor) -> Tensor:
        """Compute the weighted mean of values [B] over the samples; 0, with gradient 0, if every weight is 0."""
        return values.mean() if self.weights is None else ratio((values * self.weights).sum(), self.weights.sum())

    def counts(self) -> Tensor:
        """Count the samples of each class whose weight is above 0. The result has shape [C]."""
        counted = torch.ones_like(self.labels) if self.weights is None else (self.weights > 0).to(self.labels.dtype)
        return self.labels.new_zeros(len(self.matrix)).index_add(0, self.labels, counted)


def cosines(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Compute the cosines p_c . x_i / ||p_c|| of unit embeddings x and proxies p that are not normalized.

    For speed, the dot products are divided by the norms of the proxies, instead of normalizing the proxies first. The
    backward pass removes the component of the gradient along each proxy in one pass over [C, d]. A zero proxy has
    cosine 0 with every sample and gradient 0.

    Args:
        embeddings: Unit embeddings [B, d].
        proxies: Proxies [C, d], or [C, K, d] for K proxies per class.

    Returns:
        The cosines [C, B] or [C, K, B].

    >>> cosines(torch.eye(2), torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    sim: Tensor
    if proxies.ndim == 2:
        sim = _ClassCosines.apply(embeddings, proxies)  # type: ignore[no-untyped-call]
    else:
        sim = _Cosines.apply(embeddings, proxies, False)[0]  # type: ignore[no-untyped-call]
    return sim


def cosines_and_gram(embeddings: Tensor, proxies: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the cosines [C, K, B] as in `cosines`, and the cosines between the proxies of each class [C, K, K]."""
    sim, gram = _Cosines.apply(embeddings, proxies, True)  # type: ignore[no-untyped-call]
    return sim, gram


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


class _ClassCosines(torch.autograd.Function):
    """`_Cosines` for one proxy per class. For small batches, a third dimension would make it noticeably slower."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, proxies: Tensor) -> Tensor:
        inverse = reciprocal_norms(proxies)
        sim = (proxies @ embeddings.T).mul_(inverse)
        ctx.save_for_backward(embeddings, proxies, inverse, sim)
        return sim

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        embeddings, proxies, inverse, sim = ctx.saved_tensors
        with without_autocast(g.device.type):
            scaled = g * inverse
            # The component along each proxy is computed with the same rounding as in `_Cosines.gradients`.
            along = (g * sim).sum(1, keepdim=True).mul_(inverse.square())
            return scaled.T @ proxies, (scaled @ embeddings).addcmul_(proxies, along, value=-1)


class _Cosines(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, proxies: Tensor, with_gram: bool) -> tuple[Tensor, Tensor]:
        c, k, d = proxies.shape
        inverse = reciprocal_norms(proxies)
        sim = (proxies.reshape(c * k, d) @ embeddings.T).view(c, k, len(embeddings)).mul_(inverse)
        gram = torch.bmm(proxies, proxies.mT).mul_(inverse).mul_(inverse.mT) if with_gram else proxies.new_empty(0)
        ctx.with_gram = with_gram
        ctx.save_for_backward(embeddings, proxies, inverse, sim, gram)
        return sim, gram

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor, None]:
        # backward() may be called under autocast, even though the forward pass disables it.
        with without_autocast(g.device.type):
            return (*_Cosines.gradients(ctx.with_gram, g, h, *ctx.saved_tensors), None)

    @staticmethod
    def gradients(
        with_gram: bool,
        g: Tensor,
        h: Tensor,
        embeddings: Tensor,
        proxies: Tensor,
        inverse: Tensor,
        sim: Tensor,
        gram: Tensor,
    ) -> tuple[Tensor, Tensor]:
        c, k, d = proxies.shape
        flat = (g * inverse).view(c * k, len(embeddings))
        # d cos / d p = (x - cos * p / ||p||) / ||p||. `along` is the component along p, summed over the samples.
        along = (g * sim).sum(2, keepdim=True)
        by_embeddings = flat.T @ proxies.reshape(c * k, d)
        by_proxies = (flat @ embeddings).view(c, k, d)
        if not with_gram:
            return by_embeddings, by_proxies.addcmul_(proxies, along * inverse.square(), value=-1)
        h = h + h.mT
        along = along + (h * gram).sum(2, keepdim=True)
        mix = h * inverse * inverse.mT
        mix.diagonal(dim1=1, dim2=2).sub_((along * inverse.square())[:, :, 0])
        return by_embeddings, by_proxies.baddbmm_(mix, proxies)


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
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        e, total = ctx.saved_tensors
        return e * ratio(ctx.scale * g.unsqueeze(ctx.dim), total), None, None, None, None, None, None


class _SoftmaxTerms(torch.autograd.Function):
    """Compute softplus(z - scale * own), where z is the log-sum-exp of scale * sim over the other classes, [B].

    This is a single autograd operation, because several small operations would take longer to launch than to run.
    """

    @staticmethod
    def forward(ctx: Any, sim: Tensor, own: Tensor, labels: Tensor, scale: float) -> Tensor:
        e = (sim * scale).scatter_(0, labels[None], -torch.inf)
        top = e.amax(0) if len(sim) > 1 else torch.zeros_like(own)  # with one class, all exponents are -inf
        total = e.sub_(top).exp_().sum(0)
        z = total.log().add_(top).sub_(own, alpha=scale)
        ctx.scale = scale
        ctx.save_for_backward(e, total if len(sim) > 1 else total + 1, z)
        return softplus(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        e, total, z = ctx.saved_tensors
        slope = torch.sigmoid(z).mul_(g).mul_(ctx.scale)
        return e * (slope / total), -slope, None, None
