"""NCA: maximize the probability that a sample picks one of its positives as its neighbor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.custom_grad import first_derivative_only
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_positive


@register("nca")
class NCALoss(PairLoss):
    """Neighborhood components analysis (Goldberger et al., NeurIPS 2004), on unit vectors.

    The loss is the mean over anchors i with positives P_i of -log( sum_{p in P_i} e^{-scale D_ip^2} / sum_{j != i}
    e^{-scale D_ij^2} ), where D is the Euclidean distance. The paper maximizes either the sum of these probabilities or
    the sum of their logarithms; this loss uses the logarithms. The paper learns a linear map and does not normalize its
    output; unit vectors are our choice. Anchors without positives are left out. The weight of a sample multiplies its
    exponentials and, if it is an anchor, its term in the mean.

    Args:
        scale: The factor of the squared distances. The default is that of pytorch-metric-learning.

    >>> NCALoss()(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0, 1])).exp()
    tensor(2.)
    """

    def __init__(self, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = check_positive("scale", scale)

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return torch.rsub(cosine_matrix(x, y), -2, alpha=-2)  # 2 S - 2, which is -D^2 of unit vectors

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return nca(pairs, self.scale, spread=4 * self.scale)


def nca(pairs: Pairs, scale: float, *, spread: float = torch.inf) -> Tensor:
    """Compute the mean over anchors with positives of -log(sum_P e^{scale S} / sum_{P, N} e^{scale S}).

    P and N are the positives and the negatives of the anchor, and S is `pairs.sim`. `spread` is an upper bound of the
    differences between the exponents scale S. If it is small, the loss is computed with fewer operations.
    """
    same, diff = pairs.same, pairs.diff
    terms: Tensor = _LogShares.apply(pairs.sim, same, diff, pairs.ref_weights, scale, spread < 60)  # type: ignore[no-untyped-call]
    return pairs.anchor_mean(terms, same.any(1))


class _LogShares(torch.autograd.Function):
    """Compute the terms of `nca` [A] in one operation. The term of an anchor without positives is 0.

    For numerical stability, the largest exponent of each sum is subtracted from its exponents. With one maximum for
    both sums, the exponentials of distant positives can underflow. Therefore, the two sums share their exponentials
    only if `close`, that is, if the exponents of an anchor differ by less than 60.
    """

    @staticmethod
    def forward(
        ctx: Any, sim: Tensor, same: Tensor, diff: Tensor, ref_weights: Tensor | None, scale: float, close: bool
    ) -> Tensor:
        sums, shares = [], []
        z = sim * scale
        every = same | diff
        if close:
            e = _exponentials(z, every, ref_weights)[0]
            for part in (e.masked_fill(~same, 0.0), e):
                total = part.sum(1, keepdim=True)
                sums.append(total.log())
                shares.append(part.div_(total))
        else:
            for mask in (same, every):
                e, top = _exponentials(z, mask, ref_weights)
                total = e.sum(1, keepdim=True)
                sums.append(total.log().add_(top))
                shares.append(e.div_(total))
        is_lonely = sums[0] == -torch.inf
        ctx.scale = scale
        ctx.save_for_backward((shares[1] - shares[0]).masked_fill_(is_lonely, 0.0))
        return (sums[1] - sums[0]).masked_fill_(is_lonely, 0.0).squeeze(1)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * (g * ctx.scale)[:, None], None, None, None, None, None


def _exponentials(z: Tensor, mask: Tensor, ref_weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return w_j e^{z_ij - top_i} for the true entries of a mask [A, R], else 0, and top [A, 1], the largest z_ij.

    w are the weights of the references. `top` is 0 for a row without true entries.
    """
    e = torch.where(mask, z, -torch.inf)
    top = e.amax(1, keepdim=True)
    top.masked_fill_(top == -torch.inf, 0.0)
    e.sub_(top).exp_()
    return (e if ref_weights is None else e.mul_(ref_weights)), top
