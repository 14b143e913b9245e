"""FastAP: average precision from soft histograms of distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_loss import PairBatch, PairLoss
from nearfar.ops.custom_grad import first_derivative_only
from nearfar.ops.pairs import Pairs, ratio, to_one


@register("fastap")
class FastAPLoss(PairLoss):
    """FastAP (Cakir et al., CVPR 2019), on unit vectors.

    For each anchor, squared distances fall into triangular bins centered at 4k/bins, k = 0..bins. h_k is the histogram
    of all pairs, h+_k that of the positives, H and H+ are their running sums, and
    FastAP_i = (1/|P_i|) sum_k H+_k h+_k / H_k. The loss is the mean of 1 - FastAP_i over anchors with positives.

    A distance touches only two neighboring bins, so all histograms take two scatter-adds rather than `bins` passes. The
    peak memory is about 7 B^2 floats for any number of bins: the similarities, and a bin number (int64) and a position
    within the bin for each pair.

    Args:
        bins: The number of bins; 10 is the paper's.

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
        # An entry at b + f adds 1 - f to bin b and f to bin b + 1.
        h = count - fraction + torch.nn.functional.pad(fraction, (1, -1))
        cumulated = count.cumsum(2) - fraction
        h_pos, cum_pos, cum_all = h[:, 1], cumulated[:, 1], cumulated[:, 0] + cumulated[:, 1]
        ap = ratio(ratio(cum_pos * h_pos, cum_all).sum(1), h_pos.sum(1))
        return pairs.anchor_mean(1 - ap, pairs.same.any(1))


def bin_sums(pairs: Pairs, bins: int) -> tuple[Tensor, Tensor]:
    """Sum the pairs into bins; see `_BinSums`."""
    sums: tuple[Tensor, Tensor] = _BinSums.apply(  # type: ignore[no-untyped-call]
        pairs.sim, pairs.same, pairs.diff, None if pairs.ref_weights is None else to_one(pairs.ref_weights), bins
    )
    return sums


class _BinSums(torch.autograd.Function):
    """Put every pair at u = D^2 bins / 4 into its bin b = floor(u), negatives (0) and positives (1) separately.

    Returns two tensors [A, 2, bins + 1]: the total weight of each bin, and the sum of weight x (u - b). Pairs in
    neither mask go into a third group, which is dropped.
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
        table = torch.nn.functional.pad(g_fraction.flatten(1), (0, ctx.bins + 1))  # the dropped group gets nothing
        return table.mul_(-ctx.bins / 2).gather(1, b) * weights, None, None, None, None
