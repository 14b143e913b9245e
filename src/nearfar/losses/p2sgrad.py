"""P2SGrad: squared errors of the cosines to all proxies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.ops.custom_grad import first_derivative_only
from nearfar.ops.geometry import reciprocal_norms
from nearfar.ops.precision import without_autocast


@register("p2sgrad")
class P2SGradLoss(DataWiseLoss):
    """P2SGrad (Zhang et al., CVPR 2019, arXiv 1905.02479) as a loss, on cosines S.

    The loss is the mean over samples and classes of (S_c - 1[c = y])^2, where S_c is the cosine between the sample and
    the proxy of class c, y is the class of the sample, and 1[c = y] is 1 if c = y, else 0. The paper defines a gradient
    instead of a loss. This loss has a gradient of the same form and follows pytorch-metric-learning. It has no
    hyperparameters.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.

    >>> P2SGradLoss(classes=4, dim=2)(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.2500, grad_fn=<_MeanSquaredErrorBackward>)
    """

    def __init__(self, *, classes: int | Sequence[str], dim: int) -> None:
        super().__init__(classes, dim)

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return p2sgrad_terms(sims)

    def value(self, embeddings: Tensor, proxies: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        if weights is not None:
            return super().value(embeddings, proxies, labels, weights)
        mean: Tensor = _MeanSquaredError.apply(embeddings, proxies, labels)  # type: ignore[no-untyped-call]
        return mean


def p2sgrad_terms(sims: ClassSimilarities) -> Tensor:
    """Compute the mean over classes c of (S_c - 1[c = y])^2 for each of B samples, [B]. See `P2SGradLoss`."""
    minus_one = sims.matrix.new_full((1, len(sims.labels)), -1.0)
    return sims.matrix.scatter_add(0, sims.labels[None], minus_one).square().mean(0)


class _MeanSquaredError(torch.autograd.Function):
    """Compute the loss from embeddings [B, d] and proxies [C, d] in one operation.

    In the formulas, E = S - 1[c = y] are the errors [C, B] of the cosines S. As in
    `nearfar.losses.proxies.cosines`, the gradient of a cosine has no component along the two vectors.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, proxies: Tensor, labels: Tensor) -> Tensor:
        scale, inverse = reciprocal_norms(embeddings), reciprocal_norms(proxies)
        rows = embeddings * scale
        error = (proxies @ rows.T).mul_(inverse).scatter_(0, labels[None], -1.0, reduce="add")
        product = error.square()
        mean = product.mean()
        product.scatter_add_(0, labels[None], error.gather(0, labels[None]))  # E S
        ctx.save_for_backward(rows, scale, proxies, inverse, error, product.sum(0)[:, None], product.sum(1, True))
        return mean

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, scale, proxies, inverse, error, along_rows, along_proxies = ctx.saved_tensors
        factor = g * (2 / error.numel())  # the gradient with respect to the cosines is `factor` times the errors
        factors = inverse * factor
        with without_autocast(g.device.type):
            scaled = error * factors
            by_proxies = (scaled @ rows).addcmul_(proxies, along_proxies * inverse * factors, value=-1)
            by_rows = (scaled.T @ proxies).addcmul_(rows, along_rows * factor, value=-1)
        return by_rows.mul_(scale), by_proxies, None
