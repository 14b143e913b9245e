"""Proxy-NCA: neighborhood components analysis with one proxy per class."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.validation import check_choice, check_positive


@register("proxy-nca")
class ProxyNCALoss(DataWiseLoss):
    """Proxy-NCA (Movshovitz-Attias et al., ICCV 2017, arXiv 1703.07464), on unit vectors.

    The loss is the mean over samples x of -log( e^{-scale D^2(x, p_y)} / sum_{c != y} e^{-scale D^2(x, p_c)} ), where D
    is the Euclidean distance, p_c is the proxy of class c, and y is the class of the sample. If there is only one
    class, the loss is 0.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.
        scale: The scale of the squared distances. The default is from the paper.
        form: "distance" is the formula above. "cosine" replaces the exponentials by e^{scale cos(x, p)}, as in the
            Proxy-ISA repository. It equals "distance" with half the scale.
        positive_in_denominator: If True, the sum in the denominator includes the sample's own class, so that the loss
            is a softmax cross-entropy, which is never negative. If False, the sum excludes the own class, as in the
            formula of the paper.

    >>> import torch
    >>> loss = ProxyNCALoss(classes=3, dim=2, positive_in_denominator=True)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()  # equally close to every proxy
    tensor(3., grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        *,
        classes: int | Sequence[str],
        dim: int,
        scale: float = 1.0,
        form: str = "distance",
        positive_in_denominator: bool = False,
    ) -> None:
        super().__init__(classes, dim)
        self.scale = check_positive("scale", scale)
        self.form = check_choice("form", form, ("distance", "cosine"))
        self.positive_in_denominator = positive_in_denominator

    def terms(self, sims: ClassSimilarities) -> Tensor:
        # D^2 = 2 - 2 cos. The constant 2 cancels between numerator and denominator.
        scale = self.scale if self.form == "cosine" else 2 * self.scale
        return proxy_nca(sims, scale, positive_in_denominator=self.positive_in_denominator)


def proxy_nca(sims: ClassSimilarities, scale: float, *, positive_in_denominator: bool = False) -> Tensor:
    """Compute -log( e^{scale S_y} / sum_{c != y} e^{scale S_c} ) for each sample [B], optionally with c = y in the sum.

    S_c is the similarity of the sample to class c, and y is its class. If there is only one class, the value is 0.
    """
    if len(sims.matrix) == 1:
        return 0.0 * sims.own()
    return sims.margin_terms(scale, own_in_denominator=positive_in_denominator)
