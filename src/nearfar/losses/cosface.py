"""CosFace: a softmax with a cosine margin on the sample's own class."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.validation import check_not_negative, check_positive


@register("cosface")
class CosFaceLoss(DataWiseLoss):
    """CosFace, the large margin cosine loss (Wang et al., CVPR 2018, arXiv 1801.09414, Eq. 4), on cosines S.

    The loss is the mean over samples of
    -log( e^{scale (S_y - margin)} / (e^{scale (S_y - margin)} + sum_{c != y} e^{scale S_c}) ), where S_c is the cosine
    of the sample and the proxy of class c, and y is the class of the sample. If there is only one class, the loss is 0.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.
        margin: The margin, which is subtracted from the cosine to the sample's own class. The default is from the
            paper.
        scale: The scale of the cosines. The default is from the paper.

    >>> import torch
    >>> loss = CosFaceLoss(classes=3, dim=2, margin=0.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()
    tensor(3., grad_fn=<ExpBackward0>)
    """

    def __init__(self, *, classes: int | Sequence[str], dim: int, margin: float = 0.35, scale: float = 64.0) -> None:
        super().__init__(classes, dim)
        self.margin, self.scale = check_not_negative("margin", margin), check_positive("scale", scale)

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return sims.margin_terms(self.scale, lambda own: (own - self.margin, None))
