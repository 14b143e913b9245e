"""Pairs: the similarity matrix of anchors and references, with masks of the positive and the negative pairs.

Pair losses are computed from this matrix and its masks. They do not build index lists of pairs or triplets. This module
also has the masked sums, means and log-sum-exps that many losses share.

In the shapes, A is the number of anchors and R is the number of references.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nearfar.ops.custom_grad import first_derivative_only


@dataclass(frozen=True, eq=False)
class Pairs:
    """Similarities between anchors and references, and masks of the positive and negative pairs.

    Args:
        sim: The similarities [A, R]. A larger value means that the two samples are closer.
        same: The boolean mask of the positive pairs [A, R].
        diff: The boolean mask of the negative pairs [A, R]. If the references are the anchors, neither mask contains
            pairs of a sample with itself. In most losses, neither mask contains pairs with a sample of weight 0.
        weights: The sample weights of the anchors [A], or None if neither anchors nor references have weights.
        ref_weights: The sample weights of the references [R], or None if `weights` is None.
        symmetric: Whether the references are the same samples as the anchors.
    """

    sim: Tensor
    same: Tensor
    diff: Tensor
    weights: Tensor | None = None
    ref_weights: Tensor | None = None
    symmetric: bool = False

    def mean(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the weighted mean of values [A, R] over the pairs in a mask (default: all pairs in `same` or `diff`).

        An empty mask gives 0, and backward() still works.
        """
        mask = self.same | self.diff if mask is None else mask
        if self.weights is None or self.ref_weights is None:
            return torch.where(mask, values, 0.0).sum() / torch.count_nonzero(mask).clamp_min(1)
        shares = self.shares(mask)
        return ratio((torch.where(mask, values, 0.0) * shares).sum(), shares.sum())

    def mass(self, mask: Tensor) -> Tensor:
        """Return the weight of each pair [A, R]: the product of its two sample weights, or 0 outside the mask."""
        if self.weights is None or self.ref_weights is None:
            return mask.to(self.sim.dtype)
        return torch.where(mask, self.weights[:, None] * self.ref_weights, 0.0)

    def shares(self, mask: Tensor) -> Tensor:
        """Return `mass` up to a constant factor, which cancels in a weighted mean.

        Sample weights are scaled to at most 1, so that their products do not overflow.
        """
        if self.weights is None or self.ref_weights is None:
            return self.mass(mask)
        return replace(self, weights=to_one(self.weights), ref_weights=to_one(self.ref_weights)).mass(mask)

    def anchor_mean(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the weighted mean of values [A] over the anchors in a mask [A] (default: all anchors).

        An empty mask gives 0, and backward() still works.
        """
        if self.weights is None:
            if mask is None:
                return values.mean()
            return values.masked_fill(~mask, 0.0).sum() / torch.count_nonzero(mask).clamp_min(1)
        weights = self.weights
        if mask is not None:
            weights = torch.where(mask, weights, 0.0)
            values = torch.where(mask, values, 0.0)
        return ratio((values * weights).sum(), weights.sum())

    def row_sum(self, values: Tensor, mask: Tensor) -> Tensor:
        """Multiply values [A, R] by the reference weights, and sum over the true entries of each row of a mask: [A]."""
        values = torch.where(mask, values, 0.0)
        return values.sum(1) if self.ref_weights is None else values @ self.ref_weights

    def row_mean(self, values: Tensor, mask: Tensor) -> Tensor:
        """Compute the weighted mean of values [A, R] over the true entries of each row of a mask: [A].

        The mean is 0 for a row without true entries.
        """
        mass = row_count(mask) if self.ref_weights is None else self.row_sum(torch.ones_like(values), mask)
        return ratio(self.row_sum(values, mask), mass)

    def log_sum_exp(self, z: Tensor, mask: Tensor, *, plus_one: bool = False) -> Tensor:
        """Compute log(sum_j w_j e^{z_ij}) over the j in row i of the mask, for each anchor i, with reference weights w.

        With `plus_one`, 1 is added to the sum. The result has shape [A]. See the function `log_sum_exp`.
        """
        return log_sum_exp(z, mask, weights=self.ref_weights, plus_one=plus_one)


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Compute numerator / denominator elementwise. The denominator must not be negative.

    Where the denominator is 0, the result and its gradient are 0.
    """
    is_empty = ~(denominator > 0)
    # on vectors, masked_fill is faster than torch.where, which first converts the scalar to a tensor
    return numerator.masked_fill(is_empty, 0) / denominator.masked_fill(is_empty, 1)


def to_one(weights: Tensor) -> Tensor:
    """Scale weights so that the largest is 1. Use this where only the ratios of weights matter."""
    top = weights.max()
    return weights / torch.where(top > 0, top, 1.0)


def row_count(mask: Tensor) -> Tensor:
    """Count the true entries of each row of a mask. On large masks, summing bytes is much faster than mask.sum(1)."""
    return mask.view(torch.uint8).sum(1, dtype=torch.int32)


def same_kind(labels: Tensor, ref_labels: Tensor) -> Tensor:
    """Return the mask [A, R] of pairs that share a label.

    Class ids [A] and [R] share a label if they are equal. They are compared as integers, so that large ids stay exact.
    Multi-hot labels [A, C] and [R, C] share a label if some class is set in both.

    >>> same_kind(torch.tensor([2**53, 7]), torch.tensor([2**53 + 1, 7]))
    tensor([[False, False],
            [False,  True]])
    """
    if labels.ndim == 1:
        return labels[:, None] == ref_labels[None, :]
    return (labels.float() @ ref_labels.float().T) > 0


def pair_masks(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the masks (same, diff) [A, R] of the positive and negative pairs.

    Without `ref_labels`, the batch is compared with itself, and both masks exclude the diagonal.
    """
    if ref_labels is not None:
        same = same_kind(labels, ref_labels)
        return same, ~same
    same = same_kind(labels, labels)
    diff = (~same).fill_diagonal_(False)
    return same.fill_diagonal_(False), diff


def log_sum_exp(z: Tensor, mask: Tensor, *, weights: Tensor | None = None, plus_one: bool = False) -> Tensor:
    """Compute log( sum_j w_j e^{z_ij} ) over the j in row i of the mask, for each row i, without overflow.

    w are the weights of the columns. With `plus_one`, 1 is added to the sum. A row without true entries gives -inf, or
    0 with `plus_one`, and its gradient is 0. The exponentials are saved, so the backward pass is a single elementwise
    product.

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
        top = top.clamp_min_(0) if plus_one else top.masked_fill_(top == -torch.inf, 0.0)
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
    """Compute log(1 + e^x) elementwise.

    By default, torch's softplus returns x itself for x > 20, where the true slope still differs from 1 by up to
    2e-9. Here the limit is 50.
    """
    return torch.nn.functional.softplus(x, threshold=50.0)
