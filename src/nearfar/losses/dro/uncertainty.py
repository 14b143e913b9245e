"""Uncertainty sets of DRO: which pairs count, and how much.

An uncertainty set turns the losses l of all pairs into the weights p that make the weighted loss sum p l largest, under
what the set allows (Qi et al., arXiv 1912.11194, Eq. 1). Each is a frozen dataclass and a function
`uncertainty(losses [A, R], pairs) -> p [A, R]` of constants: nothing is differentiated through it.

Pairs are counted as the paper counts them, unordered: a batch against itself has n = B (B - 1) / 2 of them, each of
which stands twice in the matrix and has p_ij + p_ji. Against references every entry is one pair. Where samples have
weights, w_ij = w_i w_j is how often a pair counts.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nearfar.ops.pairs import Pairs

TWICE_BATCH = "2B"


@dataclass(frozen=True)
class Uncertainty:
    """A set of weights over pairs. A subclass says which p of the set makes sum p l largest."""

    name: ClassVar[str]

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        """p [A, R], constant in the gradient; 0 everywhere if there is no pair."""
        raise NotImplementedError

    def value(self, losses: Tensor, pairs: Pairs) -> Tensor:
        """The robust value F: the maximum itself, penalty included. Its gradient is that of sum p l (Danskin)."""
        return (self(losses.detach(), pairs) * losses).sum()


@dataclass(frozen=True)
class Selection(Uncertainty):
    """An uncertainty set whose p is zero on all but a few pairs; it can name them, so that only they cost time."""

    def select(self, losses: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """(index into the flattened matrix, p), both [n], each pair once."""
        raise NotImplementedError

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        index, p = self.select(losses, pairs)
        matrix = torch.zeros_like(losses).flatten().scatter_add_(0, index, p).view_as(losses)
        return (matrix + matrix.T) / 2 if pairs.symmetric else matrix


@dataclass(frozen=True)
class Mean(Uncertainty):
    """p = w / sum w: the plain mean over all pairs, the set of one point.

    >>> pairs = Pairs(torch.zeros(1, 2), torch.tensor([[True, False]]), torch.tensor([[False, True]]))
    >>> Mean()(torch.tensor([[3.0, 1.0]]), pairs)
    tensor([[0.5000, 0.5000]])
    """

    name: ClassVar[str] = "mean"

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        each = pairs.mass(pairs.same | pairs.diff)
        return each * inverse(each.sum())


@dataclass(frozen=True)
class Max(Selection):
    """All of p on the largest loss: the whole simplex. A weight above 0 does not matter. Ties: one of them.

    >>> pairs = Pairs(torch.zeros(1, 2), torch.tensor([[True, False]]), torch.tensor([[False, True]]))
    >>> Max()(torch.tensor([[3.0, 1.0]]), pairs)
    tensor([[1., 0.]])
    """

    name: ClassVar[str] = "max"

    def select(self, losses: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        values = torch.where(pairs.same | pairs.diff, once(losses, pairs), -torch.inf)
        top, index = values.flatten().max(0, keepdim=True)
        return index, (top > -torch.inf).to(losses.dtype)


@dataclass(frozen=True)
class TopK(Selection):
    """0 <= p <= 1/K: the mean of the K largest losses (section 3.2, DRO-TopK).

    k is a number of unordered pairs or "2B", twice the number of anchors (default; the paper's in 4.2.2 and 4.2.4). It
    divides even if fewer than K losses are above 0. With fewer than K pairs it is the mean over all of them.

    Weighted: p_ij <= w_ij / K, so the pairs of largest loss are taken until their weights add up to K, the last of
    them in part; "2B" is twice the sum of the anchors' weights. Weight 2 is then a twin, weight 0 removal.
    Ties at the K-th loss: any of them (the value is the same).

    >>> pairs = Pairs(torch.zeros(1, 2), torch.tensor([[True, False]]), torch.tensor([[False, True]]))
    >>> TopK(k=1)(torch.tensor([[3.0, 1.0]]), pairs)
    tensor([[1., 0.]])
    """

    name: ClassVar[str] = "topk"
    k: int | str = TWICE_BATCH

    def __post_init__(self) -> None:
        check_count("k", self.k, 1)

    def select(self, losses: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        budget = count(self.k, pairs)
        index, taken = largest(losses, pairs, (pairs.same | pairs.diff)[None], budget)
        total = taken.sum()
        if not torch.compiler.is_compiling():
            warn_if_short(self.k, float(budget), float(total))
        return index[0], taken[0] * inverse(total)


@dataclass(frozen=True)
class TopKPN(Selection):
    """The K/2 largest losses of positive pairs and the K/2 largest of negative pairs (section 3.2, DRO-TopK-PN).

    k as in TopK (at least 2; of an odd K one less counts). kk = min(K/2, positives, negatives) of each are taken and
    their sum is divided by 2 kk, so both kinds weigh the same; without one of them p is 0. Weights as in TopK.

    >>> pairs = Pairs(torch.zeros(1, 3), torch.tensor([[True, False, False]]), torch.tensor([[False, True, True]]))
    >>> TopKPN(k=2)(torch.tensor([[3.0, 1.0, 2.0]]), pairs)
    tensor([[0.5000, 0.0000, 0.5000]])
    """

    name: ClassVar[str] = "topk-pn"
    k: int | str = TWICE_BATCH

    def __post_init__(self) -> None:
        check_count("k", self.k, 2)

    def select(self, losses: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        k = count(self.k, pairs)
        half = k // 2 if isinstance(k, int) else k / 2
        index, taken = largest(losses, pairs, torch.stack([pairs.same, pairs.diff]), half)
        kk = taken.sum(1).amin()
        return index.flatten(), (first(taken, kk) * inverse(2 * kk)).flatten()


def largest(losses: Tensor, pairs: Pairs, masks: Tensor, budget: int | Tensor) -> tuple[Tensor, Tensor]:
    """(index, taken), each [M, n], largest loss first: how much of each pair is taken until weights reach a budget.

    `masks` [M, A, R] are M sets of pairs, the budget is for each. Without weights n is the budget. With weights it is
    enough to reach it, found by trying; under torch.compile, where it may not depend on values, it is all entries.
    """
    values = torch.where(masks, once(losses, pairs), -torch.inf).flatten(1)
    size = values.shape[1]
    if pairs.weights is None or pairs.ref_weights is None:
        values, index = values.topk(min(int(budget), size))
        return index, (values > -torch.inf).to(losses.dtype)
    n = size
    if not torch.compiler.is_compiling():
        mean_weight = float(pairs.weights.mean() * pairs.ref_weights.mean())
        n = min(size, int(2 * budget / mean_weight) + 16) if mean_weight > 0 else 1
    while True:
        top, index = values.topk(n) if n < size // 4 else values.sort(descending=True, stable=True)
        each = pairs.weights[index // losses.shape[1]] * pairs.ref_weights[index % losses.shape[1]]
        each = torch.where(top > -torch.inf, each, 0.0)
        if index.shape[1] == size or bool(((each.sum(1) >= budget) | (top[:, -1] == -torch.inf)).all()):
            return index, first(each, budget)
        n = 4 * n


def once(losses: Tensor, pairs: Pairs) -> Tensor:
    """The losses [A, R] with each pair once: -inf in the lower triangle of a symmetric matrix."""
    return losses + torch.full_like(losses, -torch.inf).tril_() if pairs.symmetric else losses


def warn_if_short(k: int | str, wanted: float, there: float) -> None:
    """Say that a batch has pairs, but fewer than K of them."""
    if 0 < there < wanted * (1 - 1e-6):
        warnings.warn(
            f"k={k!r} asks for {wanted:g} pairs but the batch has {there:g}: averaging over all of them", stacklevel=3
        )


def inverse(x: Tensor) -> Tensor:
    """1/x, and for 0 something finite: it only ever multiplies zeros there."""
    return 1 / x.clamp_min(2 * torch.finfo(x.dtype).tiny)


def first(each: Tensor, budget: int | Tensor) -> Tensor:
    """The beginning of each row of weights that adds up to the budget, the last of it in part."""
    return torch.minimum((budget - (each.cumsum(1) - each)).clamp_min(0), each)


def count(k: int | str, pairs: Pairs) -> int | Tensor:
    """A number of unordered pairs; "2B" is twice the number of anchors, weighted twice the sum of their weights."""
    if isinstance(k, int):
        return k
    return 2 * (len(pairs.sim) if pairs.weights is None else pairs.weights.sum())


def sides(pairs: Pairs) -> int:
    """How many entries of the matrix an unordered pair has."""
    return 2 if pairs.symmetric else 1


def check_count(name: str, k: int | str, least: int) -> None:
    """A number of pairs: an integer of at least `least`, or "2B"."""
    if k != TWICE_BATCH and (not isinstance(k, int) or isinstance(k, bool) or k < least):
        raise ValueError(
            f'{name} must be an integer of at least {least} (unordered pairs) or "2B" (twice the anchors), got {k!r}'
        )
