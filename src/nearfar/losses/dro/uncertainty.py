"""The base classes of uncertainty sets, and their registry.

An uncertainty set maps the losses l of all pairs to the weights p that maximize the weighted loss sum p l under the
constraints of the set (Qi et al., arXiv 1912.11194, Eq. 1). Some sets also subtract a penalty, which is a function of
p, from the weighted loss.

Pairs are unordered, as in the paper. If a batch of B samples is compared with itself, it has n = B (B - 1) / 2 pairs.
Each pair has two entries in the matrix of losses, and its weight is p_ij + p_ji. If the batch is compared with other
samples (`ref_emb`), every entry of the matrix is a pair. If samples have weights w_i, a pair has the weight
w_ij = w_i w_j. Matrices have the shape [A, R] for A anchors and R references, the samples that anchors are compared
with.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.ops.pairs import Pairs
from nearfar.registry import Registry

TWICE_BATCH = "2B"  # option value for a number of pairs that is twice the number of anchors


@dataclass(frozen=True)
class UncertaintySet:
    """Base class of uncertainty sets.

    A subclass is a frozen dataclass. Calling it with losses l returns the weights p in the set that maximize sum p l
    minus any penalty.
    """

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        """Compute the weights of the pairs.

        Args:
            losses: The loss of every entry [A, R], detached. Only the entries in `pairs.same | pairs.diff` are pairs.
            pairs: The similarities, masks and weights of the pairs, detached.

        Returns:
            p [A, R]; 0 everywhere if there is no pair. The gradient of the loss treats it as a constant.
        """
        raise NotImplementedError

    def value(self, losses: Tensor, pairs: Pairs) -> Tensor:
        """Return the robust value F, the maximum over the weights p of sum p l minus any penalty, for losses l.

        By Danskin's theorem, its gradient is the gradient of sum p l with constant p.
        """
        return (self(losses.detach(), pairs) * losses).sum()


@dataclass(frozen=True)
class SparseSet(UncertaintySet):
    """Base class of uncertainty sets whose weights p are zero for all but a few pairs.

    A subclass implements `select`. The DRO loss then differentiates only the losses of the selected pairs.
    """

    def select(self, losses: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Select n pairs. Return their indices [n] into the flattened matrix of losses, and their weights p [n].

        Each pair is selected at most once, even if it has two entries in the matrix.
        """
        raise NotImplementedError

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        index, p = self.select(losses, pairs)
        matrix = torch.zeros_like(losses).flatten().scatter_add_(0, index, p).view_as(losses)
        return (matrix + matrix.T) / 2 if pairs.symmetric else matrix


UNCERTAINTY_SETS: Registry[type[UncertaintySet]] = Registry("uncertainty set", package="nearfar.losses.dro")
register = UNCERTAINTY_SETS.register


def keep_upper_triangle(losses: Tensor, pairs: Pairs) -> Tensor:
    """Keep one entry per pair: if a batch is compared with itself, set the diagonal and all below it to -inf."""
    return losses + torch.full_like(losses, -torch.inf).tril_() if pairs.symmetric else losses


def inverse(x: Tensor) -> Tensor:
    """Return 1/x for x >= 0. At x = 0 the result is large but finite, so that 0 * inverse(0) is 0, not NaN."""
    return 1 / x.clamp_min(2 * torch.finfo(x.dtype).tiny)


def count_pairs(k: int | str, pairs: Pairs) -> int | Tensor:
    """Return k if it is a number. For "2B", return twice the number of anchors, or twice the sum of their weights."""
    if isinstance(k, int):
        return k
    return 2 * (len(pairs.sim) if pairs.weights is None else pairs.weights.sum())


def entries_per_pair(pairs: Pairs) -> int:
    """Return the number of matrix entries per unordered pair: 2 if a batch is compared with itself, otherwise 1."""
    return 2 if pairs.symmetric else 1


def check_pair_count(name: str, k: int | str, minimum: int) -> None:
    """Check that a number of pairs is an integer of at least `minimum`, or "2B"."""
    if k != TWICE_BATCH and (not isinstance(k, int) or isinstance(k, bool) or k < minimum):
        raise ValueError(
            f'{name} must be an integer of at least {minimum} (a number of unordered pairs) or "2B" (twice the number '
            f"of anchors), got {k!r}"
        )
