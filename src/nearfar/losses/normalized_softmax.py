"""Normalized softmax: cross-entropy over the cosines of a sample to one proxy per class."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.validation import check_positive


@register("normalized-softmax")
class NormalizedSoftmaxLoss(DataWiseLoss):
    """Normalized softmax loss (Zhai and Wu, BMVC 2019, arXiv 1811.12649), on cosines S.

    The loss is the mean over samples of -log( e^{S_y / temperature} / sum_c e^{S_c / temperature} ), where S_c is the
    cosine between the sample and the proxy of class c, and y is the class of the sample. If there is only one class,
    the loss is 0.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.
        temperature: The temperature of the softmax. The default is from the paper.

    >>> import torch
    >>> loss = NormalizedSoftmaxLoss(classes=3, dim=2)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()
    tensor(3., grad_fn=<ExpBackward0>)
    """

    def __init__(self, *, classes: int | Sequence[str], dim: int, temperature: float = 0.05) -> None:
        super().__init__(classes, dim)
        self.temperature = check_positive("temperature", temperature)

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return sims.margin_terms(1 / self.temperature)
