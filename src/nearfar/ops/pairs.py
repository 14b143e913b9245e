"""Pairs: the similarity matrix of anchors x references with masks of positive and negative pairs.

A pair loss is a function of this matrix; pairs and triplets are never listed by index. Sums, means and log-sum-exps
over a mask are here because every loss uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nearfar.ops.custom_grad import first_derivative_only


@dataclass(frozen=True, eq=False)
class Pairs:
    """Similarities of anchors and references, and masks of the positive and negative pairs.

    Args:
        sim: The similarities [A, R]; larger is closer.
        same: The mask of the positive pairs, boolean [A, R].
        diff: The mask of the negative pairs, boolean [A, R]. Self pairs and samples of weight 0 are in neither mask.
        weights: The sample weights of the anchors [A]. Both kinds of weights are None if every sample counts once.
        ref_weights: The sample weights of the references [R].
        symmetric: Whether the references are the anchors.
    """

    sim: Tensor
    same: Tensor
    diff: Tensor
    weights: Tensor | None = None
    ref_weights: Tensor | None = None
    symmetric: bool = False

    def mean(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the weighted mean of values [A, R] over a mask (default: all pairs); a differentiable 0 if empty."""
        mask = self.same | self.diff if mask is None else mask
        if self.weights is None or self.ref_weights is None:
            return torch.where(mask, values, 0.0).sum() / torch.count_nonzero(mask).clamp_min(1)
        shares = self.shares(mask)
        return ratio((torch.where(mask, values, 0.0) * shares).sum(), shares.sum())

    def mass(self, mask: Tensor) -> Tensor:
        """Return the weights of the pairs in a mask [A, R], products of sample weights; 0 outside the mask."""
        if self.weights is None or self.ref_weights is None:
            return mask.to(self.sim.dtype)
        return torch.where(mask, self.weights[:, None] * self.ref_weights, 0.0)

    def shares(self, mask: Tensor) -> Tensor:
        """Return `mass` up to a constant factor, for means: weights are scaled to at most 1 to avoid overflow."""
        if self.weights is None or self.ref_weights is None:
            return self.mass(mask)
        return replace(self, weights=to_one(self.weights), ref_weights=to_one(self.ref_weights)).mass(mask)

    def anchor_mean(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the weighted mean of values [A] over a mask [A] (default: all); a differentiable 0 if empty."""
        weights = torch.ones_like(values) if self.weights is None else self.weights
        if mask is not None:
            weights = torch.where(mask, weights, 0.0)
            values = torch.where(mask, values, 0.0)
        return ratio((values * weights).sum(), weights.sum())

    def row_sum(self, values: Tensor, mask: Tensor) -> Tensor:
        """Compute the sum of values [A, R] times reference weights over each row of a mask, [A]."""
        values = torch.where(mask, values, 0.0)
        return values.sum(1) if self.ref_weights is None else values @ self.ref_weights

    def row_mean(self, values: Tensor, mask: Tensor) -> Tensor:
        """Compute the weighted mean of values [A, R] over each row of a mask, [A]; 0 where it is empty."""
        mass = row_count(mask) if self.ref_weights is None else self.row_sum(torch.ones_like(values), mask)
        return ratio(self.row_sum(values, mask), mass)

    def log_sum_exp(self, z: Tensor, mask: Tensor, *, plus_one: bool = False) -> Tensor:
        """Compute log(sum of w e^z over the mask) for each anchor, [A], where w are the reference weights.

        With `plus_one`, 1 is added to the sum.
        """
        return log_sum_exp(z, mask, weights=self.ref_weights, plus_one=plus_one)


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Compute numerator / denominator; a differentiable 0 where the denominator is 0."""
    return torch.where(denominator > 0, numerator, 0.0) / torch.where(denominator > 0, denominator, 1.0)


def to_one(weights: Tensor) -> Tensor:
    """Scale weights so that the largest is 1, where only their ratios matter; zeros stay zeros."""
    top = weights.max()
    return weights / torch.where(top > 0, top, 1.0)


def row_count(mask: Tensor) -> Tensor:
    """Count the true entries of each row of a mask. Summing bytes is much faster than mask.sum(1) on large ones."""
    return mask.view(torch.uint8).sum(1, dtype=torch.int32)


def same_kind(labels: Tensor, ref_labels: Tensor) -> Tensor:
    """Return the mask [A, R] of pairs that share a label: equal class ids of any size, or a common multi-hot label.

    >>> same_kind(torch.tensor([2**53, 7]), torch.tensor([2**53 + 1, 7]))
    tensor([[False, False],
            [False,  True]])
    """
    if labels.ndim == 1:
        return labels[:, None] == ref_labels[None, :]
    return (labels.float() @ ref_labels.float().T) > 0


def pair_masks(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the masks (same, diff) [A, R]. By default the batch is compared with itself, without self pairs."""
    if ref_labels is not None:
        same = same_kind(labels, ref_labels)
        return same, ~same
    same = same_kind(labels, labels)
    diff = (~same).fill_diagonal_(False)
    return same.fill_diagonal_(False), diff


def log_sum_exp(z: Tensor, mask: Tensor, *, weights: Tensor | None = None, plus_one: bool = False) -> Tensor:
    """Compute log( [1 +] sum over j in mask_i of w_j e^{z_ij} ) for each row i, with max-subtraction.

    An empty row is -inf (0 with `plus_one`) and its gradient is 0. The exponentials are kept for the backward pass,
    which is a single product.

    >>> log_sum_exp(torch.zeros(2, 3), torch.tensor([[True, True, False], [False] * 3]), plus_one=True).exp()
    tensor([3., 1.])
    """
    result: Tensor = _LogSumExp.apply(z, mask, weights, plus_one)  # type: ignore[no-untyped-call]
    return result


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, mask: Tensor, weights: Tensor | None, plus_one: bool) -> Tensor:
        e = torch.where(mask, z, -torch.inf)
        top = e.amax(1)
        top = top.clamp_min(0) if plus_one else torch.where(top > -torch.inf, top, 0.0)
        e.sub_(top[:, None]).exp_()
        if weights is not None:
            e.mul_(weights)
        total = e.sum(1)
        if plus_one:
            total = total + torch.exp(-top)
        ctx.save_for_backward(e, total)
        return total.log() + top

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        e, total = ctx.saved_tensors
        return e * ratio(g, total)[:, None], None, None, None


def softplus(x: Tensor) -> Tensor:
    """Compute log(1 + e^x). torch's default returns x from 20 on, where the slope still differs from 1 by 2e-9."""
    return torch.nn.functional.softplus(x, threshold=50.0)
