"""FastAP: average precision through soft histograms of the distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nearfar.losses.pair_loss import Batch, PairLoss
from nearfar.pairs import Pairs, ratio


class FastAP(PairLoss):
    """FastAP (Cakir et al., CVPR 2019), on unit vectors.

    Per anchor, squared distances fall into triangular bins centred at 4k/bins, k = 0..bins: h_k over all pairs, h+_k
    over positives, H and H+ their running sums; FastAP_i = (1/|P_i|) sum_k H+_k h+_k / H_k. The loss is the mean over
    anchors with positives of 1 - FastAP_i. bins=10 is the paper's.

    A distance touches two neighbouring bins only, so the histograms are two scatter-adds, not `bins` passes. Memory:
    the matrix, its bin numbers (int64) and its place within the bin, about 5 B^2 floats in all.

    >>> FastAP()(torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
    tensor(0.)
    """

    def __init__(self, *, bins: int = 10) -> None:
        super().__init__()
        if bins < 1:
            raise ValueError(f"bins must be at least 1, got {bins}")
        self.bins = bins

    def cost(self, pairs: Pairs, batch: Batch) -> Tensor:
        place = (1 - pairs.sim) * (self.bins / 2)  # squared distance 2 - 2S in units of the bin width 4/bins
        weights = torch.ones_like(pairs.sim[0]) if pairs.ref_weights is None else pairs.ref_weights
        _, cum = soft_histogram(place, torch.where(pairs.same | pairs.diff, weights, 0.0), self.bins)
        h_pos, cum_pos = soft_histogram(place, torch.where(pairs.same, weights, 0.0), self.bins)
        ap = ratio(ratio(cum_pos * h_pos, cum).sum(1), h_pos.sum(1))
        return pairs.anchor_mean(1 - ap, pairs.same.any(1))


def soft_histogram(place: Tensor, weights: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """(h, H), each [A, bins + 1]: weight in triangular bins of width 1 centred at 0..bins, and its running sum."""
    count, fraction = _BinSums.apply(place, weights, bins)  # type: ignore[no-untyped-call]
    # an entry at b + f gives 1 - f to bin b and f to bin b + 1
    h = count - fraction + torch.nn.functional.pad(fraction, (1, -1))
    return h, count.cumsum(1) - fraction


class _BinSums(torch.autograd.Function):
    """Per row and bin b: the weight of entries in [b, b + 1), and the sum of weight x (entry - b)."""

    @staticmethod
    def forward(ctx: Any, place: Tensor, weights: Tensor, bins: int) -> tuple[Tensor, Tensor]:
        inside = place.clamp(0, bins)
        b = inside.long()
        zeros = place.new_zeros(len(place), bins + 1)
        ctx.save_for_backward(b, weights)
        return zeros.scatter_add(1, b, weights), zeros.scatter_add(1, b, (inside - b) * weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_count: Tensor, g_fraction: Tensor) -> tuple[Tensor, None, None]:
        b, weights = ctx.saved_tensors
        return g_fraction.gather(1, b) * weights, None, None
