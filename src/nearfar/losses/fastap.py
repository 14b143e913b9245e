"""FastAP: average precision from soft histograms of distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.custom_grad import first_derivative_only
from nearfar.ops.pairs import Pairs, ratio, to_one


@register("fastap")
class FastAPLoss(PairLoss):
    """FastAP (Cakir et al., CVPR 2019), on unit vectors.

    The loss is the mean of 1 - FastAP_i over the anchors i with positives, where
    FastAP_i = (1/|P_i|) sum_k H+_k h+_k / H_k and P_i are the positives of anchor i. h is the histogram of the squared
    distances from the anchor to all other samples, h+ is the histogram for its positives only, and H and H+ are their
    cumulative sums. The bins are triangular, with centers 4k/bins for k = 0..bins.

    A distance contributes to only two neighboring bins, so all histograms are computed with two scatter-adds instead of
    one pass per bin. For a batch of B samples, the peak memory is about 7 B^2 floats for any number of bins.

    Args:
        bins: The number of intervals between bin centers; there are bins + 1 bins. The default is from the paper.

    >>> FastAPLoss()(torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
    tensor(0.)
    """

    def __init__(self, *, bins: int = 10) -> None:
        super().__init__()
        if bins < 1:
            raise ValueError(f"bins must be at least 1, got {bins}")
        self.bins = bins

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        count, fraction = bin_sums(pairs, self.bins)
        # A pair at position b + f, with integer b and 0 <= f < 1, adds 1 - f to bin b and f to bin b + 1.
        h = count - fraction + torch.nn.functional.pad(fraction, (1, -1))
        cumulated = count.cumsum(2) - fraction
        h_pos, cum_pos, cum_all = h[:, 1], cumulated[:, 1], cumulated[:, 0] + cumulated[:, 1]
        ap = ratio(ratio(cum_pos * h_pos, cum_all).sum(1), h_pos.sum(1))
        return pairs.anchor_mean(1 - ap, pairs.same.any(1))


def bin_sums(pairs: Pairs, bins: int) -> tuple[Tensor, Tensor]:
    """Compute two tensors [A, 2, bins + 1] of sums over the pairs in each bin, for A anchors; see `_BinSums`."""
    sums: tuple[Tensor, Tensor] = _BinSums.apply(  # type: ignore[no-untyped-call]
        pairs.sim, pairs.same, pairs.diff, None if pairs.ref_weights is None else to_one(pairs.ref_weights), bins
    )
    return sums


class _BinSums(torch.autograd.Function):
    """Sums over the pairs in each bin, separately for the negatives and the positives of each anchor.

    A pair at squared distance D^2 has the position u = D^2 bins / 4 and belongs to bin b = floor(u). The function
    returns two tensors [A, 2, bins + 1] for A anchors: the sum of the weights in each bin, and the sum of
    weight * (u - b). Index 0 of the second dimension is for negatives, index 1 for positives. Entries that are
    neither positive nor negative pairs are collected in a third group, which is dropped.
    """

    @staticmethod
    def forward(
        ctx: Any, sim: Tensor, same: Tensor, diff: Tensor, weights: Tensor | None, bins: int
    ) -> tuple[Tensor, Tensor]:
        u = torch.rsub(sim, 1).mul_(bins / 2).clamp_(0, bins)
        b = u.long()
        u.sub_(b)
        b.add_(torch.where(same, bins + 1, torch.where(diff, 0, 2 * (bins + 1))))
        if weights is None:
            weights = u.new_ones(1)
        else:
            u.mul_(weights)
        zeros = u.new_zeros(len(u), 3 * (bins + 1))
        count = zeros.scatter_add(1, b, weights.expand_as(u))
        fraction = zeros.scatter_add(1, b, u)
        ctx.save_for_backward(b, weights)
        ctx.bins = bins
        return tuple(t[:, : 2 * (bins + 1)].reshape(len(u), 2, bins + 1) for t in (count, fraction))  # type: ignore[return-value]

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g_count: Tensor, g_fraction: Tensor) -> tuple[Tensor, None, None, None, None]:
        b, weights = ctx.saved_tensors
        table = torch.nn.functional.pad(g_fraction.flatten(1), (0, ctx.bins + 1))  # the dropped group has gradient 0
        return table.mul_(-ctx.bins / 2).gather(1, b) * weights, None, None, None, None
