"""The base classes of uncertainty sets, their registry, and how pairs are counted.

An uncertainty set turns the losses l of all pairs into the weights p that maximize the weighted loss sum p l under the
constraints of the set (Qi et al., arXiv 1912.11194, Eq. 1).

Pairs are unordered, as in the paper: a batch against itself has n = B (B - 1) / 2 pairs. Each of them has two entries
in the matrix and the weight p_ij + p_ji. Against references, every entry is a pair. If samples have weights, a pair
counts w_ij = w_i w_j times.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.ops.pairs import Pairs
from nearfar.registry import Registry

TWICE_BATCH = "2B"


@dataclass(frozen=True)
class UncertaintySet:
    """Base class of uncertainty sets. A subclass is a frozen dataclass that returns the p that maximizes sum p l."""

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        """Compute the weights of the pairs.

        Args:
            losses: The loss of every entry [A, R], detached. Only entries in `pairs.same | pairs.diff` are pairs.
            pairs: The similarities, masks and weights of the pairs, detached.

        Returns:
            p [A, R]; 0 everywhere if there is no pair. It is a constant in the gradient of the loss.
        """
        raise NotImplementedError

    def value(self, losses: Tensor, pairs: Pairs) -> Tensor:
        """Return the robust value F, the maximum including any penalty; its gradient is that of sum p l (Danskin)."""
        return (self(losses.detach(), pairs) * losses).sum()


@dataclass(frozen=True)
class SparseSet(UncertaintySet):
    """An uncertainty set whose p is zero for all but a few pairs. Only the selected pairs enter the graph."""

    def select(self, losses: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the selected pairs, each once: indices into the flattened matrix [n] and their p [n]."""
        raise NotImplementedError

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        index, p = self.select(losses, pairs)
        matrix = torch.zeros_like(losses).flatten().scatter_add_(0, index, p).view_as(losses)
        return (matrix + matrix.T) / 2 if pairs.symmetric else matrix


UNCERTAINTY_SETS: Registry[type[UncertaintySet]] = Registry("uncertainty set", package="nearfar.losses.dro")
register = UNCERTAINTY_SETS.register


def keep_upper_triangle(losses: Tensor, pairs: Pairs) -> Tensor:
    """Return losses [A, R] in which each pair has one entry: -inf in the lower triangle of a symmetric matrix."""
    return losses + torch.full_like(losses, -torch.inf).tril_() if pairs.symmetric else losses


def inverse(x: Tensor) -> Tensor:
    """Return 1/x, and a finite number for x = 0, where callers multiply it by zeros."""
    return 1 / x.clamp_min(2 * torch.finfo(x.dtype).tiny)


def count_pairs(k: int | str, pairs: Pairs) -> int | Tensor:
    """Return k, or for "2B" twice the number of anchors (twice the sum of their weights if they have weights)."""
    if isinstance(k, int):
        return k
    return 2 * (len(pairs.sim) if pairs.weights is None else pairs.weights.sum())


def entries_per_pair(pairs: Pairs) -> int:
    """Return the number of matrix entries of an unordered pair."""
    return 2 if pairs.symmetric else 1


def check_pair_count(name: str, k: int | str, minimum: int) -> None:
    """Check that a number of pairs is an integer of at least `minimum`, or "2B"."""
    if k != TWICE_BATCH and (not isinstance(k, int) or isinstance(k, bool) or k < minimum):
        raise ValueError(
            f'{name} must be an integer of at least {minimum} (unordered pairs) or "2B" (twice the anchors), got {k!r}'
        )
