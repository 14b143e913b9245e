"""P2SGrad: squared errors of the cosines to all proxies."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss


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

    >>> import torch
    >>> P2SGradLoss(classes=4, dim=2)(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.2500, grad_fn=<AddBackward0>)
    """

    def __init__(self, *, classes: int | Sequence[str], dim: int) -> None:
        super().__init__(classes, dim)

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return p2sgrad_terms(sims)


def p2sgrad_terms(sims: ClassSimilarities) -> Tensor:
    """Compute the mean over classes c of (S_c - 1[c = y])^2 for each sample with class y. The result has shape [B]."""
    return sims.matrix.square().mean(0) + (1 - 2 * sims.own()) / len(sims.matrix)
