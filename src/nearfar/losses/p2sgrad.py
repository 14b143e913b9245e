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
    tensor(0.2500, grad_fn=<_SquaredErrorsBackward>)
    """

    def __init__(self, *, classes: int | Sequence[str], dim: int) -> None:
        super().__init__(classes, dim)

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return p2sgrad_terms(sims)

    def cost(self, sims: ClassSimilarities) -> Tensor:
        return p2sgrad_terms(sims, mean=True) if sims.weights is None else super().cost(sims)


def p2sgrad_terms(sims: ClassSimilarities, *, mean: bool = False) -> Tensor:
    """Compute the mean over classes c of (S_c - 1[c = y])^2 for each of B samples, [B]. See `P2SGradLoss`.

    With `mean`, compute the mean of the terms in the same operation.
    """
    terms: Tensor = _SquaredErrors.apply(sims.matrix, sims.labels, mean)  # type: ignore[no-untyped-call]
    return terms


class _SquaredErrors(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sim: Tensor, labels: Tensor, mean: bool) -> Tensor:
        error = sim.scatter(0, labels[None], -1.0, reduce="add")
        ctx.save_for_backward(error)
        ctx.count = sim.numel() if mean else len(sim)
        return error.square().mean() if mean else error.square().mean(0)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (error,) = ctx.saved_tensors
        return error * (g * (2 / ctx.count)), None, None
