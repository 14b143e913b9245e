"""Pairs: the similarity matrix of anchors x references with its same / different masks.

Everything a pair loss needs is read off this one matrix; pairs and triplets are never listed by index. Sums and means
over a mask, and log-sum-exps over a mask, live here because every loss is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nearfar.ops.custom_grad import first_derivative_only


@dataclass(frozen=True, eq=False)
class Pairs:
    """Similarities [A, R] (larger is nearer) and which entries are pairs of the same or of a different kind.

    `same` and `diff` are boolean [A, R] and never both true; self pairs and samples of weight 0 are in neither.
    `weights` [A] and `ref_weights` [R] are sample weights, both None where every sample counts once.
    `symmetric` says that the references are the anchors themselves.
    """

    sim: Tensor
    same: Tensor
    diff: Tensor
    weights: Tensor | None = None
    ref_weights: Tensor | None = None
    symmetric: bool = False

    def mean(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weighted mean of values [A, R] over a mask (default: all pairs); 0 with a graph where the mask is empty."""
        mask = self.same | self.diff if mask is None else mask
        if self.weights is None or self.ref_weights is None:
            return torch.where(mask, values, 0.0).sum() / torch.count_nonzero(mask).clamp_min(1)
        each = self.shares(mask)
        return ratio((torch.where(mask, values, 0.0) * each).sum(), each.sum())

    def mass(self, mask: Tensor) -> Tensor:
        """The weight of every pair of a mask [A, R]: the product of its samples', 0 outside the mask."""
        if self.weights is None or self.ref_weights is None:
            return mask.to(self.sim.dtype)
        return torch.where(mask, self.weights[:, None] * self.ref_weights, 0.0)

    def shares(self, mask: Tensor) -> Tensor:
        """`mass` up to a factor, for means: each side's weights are scaled to 1 at most, so no product overflows."""
        if self.weights is None or self.ref_weights is None:
            return self.mass(mask)
        return replace(self, weights=to_one(self.weights), ref_weights=to_one(self.ref_weights)).mass(mask)

    def anchor_mean(self, values: Tensor, which: Tensor | None = None) -> Tensor:
        """Weighted mean of values [A] over the anchors of `which` [A] (default: all); 0 with a graph if none."""
        each = torch.ones_like(values) if self.weights is None else self.weights
        if which is not None:
            each = torch.where(which, each, 0.0)
            values = torch.where(which, values, 0.0)
        return ratio((values * each).sum(), each.sum())

    def row_sum(self, values: Tensor, mask: Tensor) -> Tensor:
        """Per anchor [A]: the sum of values [A, R] over the mask, each times its reference's weight."""
        values = torch.where(mask, values, 0.0)
        return values.sum(1) if self.ref_weights is None else values @ self.ref_weights

    def row_mean(self, values: Tensor, mask: Tensor) -> Tensor:
        """Per anchor [A]: the weighted mean of values [A, R] over the mask; 0 where it is empty."""
        mass = row_count(mask) if self.ref_weights is None else self.row_sum(torch.ones_like(values), mask)
        return ratio(self.row_sum(values, mask), mass)

    def log_sum_exp(self, z: Tensor, mask: Tensor, *, plus_one: bool = False) -> Tensor:
        """Per anchor [A]: log of (1 +) the sum over the mask of reference weight times e^z; see `log_sum_exp`."""
        return log_sum_exp(z, mask, weights=self.ref_weights, plus_one=plus_one)


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 (with a graph) where the denominator is 0."""
    return torch.where(denominator > 0, numerator, 0.0) / torch.where(denominator > 0, denominator, 1.0)


def to_one(weights: Tensor) -> Tensor:
    """Weights scaled so that the largest is 1, for where only their ratios matter; all zeros stay zeros."""
    top = weights.max()
    return weights / torch.where(top > 0, top, 1.0)


def row_count(mask: Tensor) -> Tensor:
    """How many of each row of a boolean matrix are true; summing bytes is far faster than mask.sum(1) on large ones."""
    return mask.view(torch.uint8).sum(1, dtype=torch.int32)


def same_kind(labels: Tensor, ref_labels: Tensor) -> Tensor:
    """[A, R] boolean: equal class ids (exact at any size), or for multi-hot rows at least one label in common.

    >>> same_kind(torch.tensor([2**53, 7]), torch.tensor([2**53 + 1, 7]))
    tensor([[False, False],
            [False,  True]])
    """
    if labels.ndim == 1:
        return labels[:, None] == ref_labels[None, :]
    return (labels.float() @ ref_labels.float().T) > 0


def pair_masks(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(same, diff) of anchors x references; without references the batch against itself, self pairs in neither."""
    if ref_labels is not None:
        same = same_kind(labels, ref_labels)
        return same, ~same
    same = same_kind(labels, labels)
    diff = (~same).fill_diagonal_(False)
    return same.fill_diagonal_(False), diff


def log_sum_exp(z: Tensor, mask: Tensor, *, weights: Tensor | None = None, plus_one: bool = False) -> Tensor:
    """log( [1 +] sum over j in mask_i of w_j e^{z_ij} ) for each row i, with max-subtraction.

    An empty row is -inf (0 with `plus_one`) and its gradient is 0. The exponentials are kept for the backward pass,
    which is then one product.

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
    """log(1 + e^x), exact in float64 too: torch's own turns into x from 20 on, where the slope still lacks 2e-9."""
    return torch.nn.functional.softplus(x, threshold=50.0)
