"""Proxy-NCA: neighborhood components analysis against one proxy a class."""

from __future__ import annotations

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.ops.pairs import softplus
from nearfar.validation import check_choice, check_positive


@register("proxy-nca")
class ProxyNCALoss(DataWiseLoss):
    """Proxy-NCA (Movshovitz-Attias et al., ICCV 2017, arXiv 1703.07464), on unit vectors.

    Mean over samples of -log( e^{-scale D^2(x, p_y)} / sum_{z != y} e^{-scale D^2(x, p_z)} ), D the Euclidean distance.

    form="distance" (default) is the formula above; form="cosine" has e^{scale cos(x, p)} for the exponentials, as in
    the Proxy-ISA repository, which is the same at half the scale. `positive_in_denominator=True` sums over all classes,
    which makes it a softmax and never negative. scale=1 without the positive in the denominator is the paper's. With
    one class there is nothing to compare and the value is 0.

    >>> import torch
    >>> loss = ProxyNCALoss(classes=3, dim=2, positive_in_denominator=True)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()  # a zero row is as near to every proxy
    tensor(3., grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        *,
        classes: int,
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
        # D^2 = 2 - 2 cos, whose 2 cancels between numerator and denominator
        scale = self.scale if self.form == "cosine" else 2 * self.scale
        return proxy_nca(sims, scale, positive_in_denominator=self.positive_in_denominator)


def proxy_nca(sims: ClassSimilarities, scale: float, *, positive_in_denominator: bool = False) -> Tensor:
    """-log( e^{scale S_y} / sum_{c != y} e^{scale S_c} ) per sample [B], or with c = y in the sum as well."""
    if len(sims.matrix) == 1:
        return 0.0 * sims.own()
    gap = sims.others(scale=scale) - scale * sims.own()
    return softplus(gap) if positive_in_denominator else gap
