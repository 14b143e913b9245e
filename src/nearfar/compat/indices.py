"""Convert the indices of pairs or triplets that a miner returns to masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from nearfar.losses.pair_batch import PairBatch
from nearfar.ops.pairs import pair_masks, row_count

Indices = Sequence[Tensor]


class ConflictingPairsError(ValueError):
    """The error for a pair that is selected both as a positive and as a negative pair."""


@dataclass(frozen=True, eq=False)
class SelectedPairs:
    """The selected positive and negative pairs of A anchors and R references.

    Args:
        same: The mask of the positive pairs [A, R].
        diff: The mask of the negative pairs [A, R].
        few: Whether there is at most one positive and at most one negative pair. If so, most pair losses of
            pytorch-metric-learning are 0.
        repeats: How often each pair was selected [A, R], or None if no pair was selected more than once.
        triplets: The indices (anchors, positives, negatives) if the miner returned triplets, otherwise None.
    """

    same: Tensor
    diff: Tensor
    few: bool
    repeats: Tensor | None = None
    triplets: tuple[Tensor, Tensor, Tensor] | None = None

    def triplet_counts(self, dtype: torch.dtype) -> Tensor:
        """Return the number of triplets that contain each pair. The result has shape [A, R].

        If a miner returned triplets, count only these. Otherwise, count all triplets that the pairs can form.
        """
        if self.triplets is not None:
            return self.same.to(dtype) + self.diff.to(dtype) if self.repeats is None else self.repeats.to(dtype)
        if self.repeats is None:
            positives, negatives = (row_count(mask).to(dtype)[:, None] for mask in (self.same, self.diff))
            return torch.where(self.same, negatives, torch.where(self.diff, positives, 0.0))
        same, diff = (torch.where(mask, self.repeats, 0.0).to(dtype) for mask in (self.same, self.diff))
        return same * diff.sum(1, keepdim=True) + diff * same.sum(1, keepdim=True)


def select_all(same: Tensor, diff: Tensor) -> SelectedPairs:
    """Return all pairs of two masks."""
    # the number of elements is checked first, because it needs no values from a GPU
    return SelectedPairs(same, diff, few=same.numel() <= 2 and int(same.sum()) <= 1 and int(diff.sum()) <= 1)


def select_pairs(
    batch: PairBatch, labels: Tensor | None, ref_labels: Tensor | None, indices: Indices | None
) -> SelectedPairs:
    """Return the pairs that a miner selected, or all pairs if `indices` is None.

    If `indices` is None, and `labels` and `ref_labels` are the same tensor object, the i-th anchor and the i-th
    reference do not form a pair. pytorch-metric-learning does the same.
    """
    if indices is None:
        same, diff = pair_masks(batch.labels, None if ref_labels is labels else batch.ref_labels)
        return select_all(same, diff)
    shape = len(batch.emb), len(batch.emb if batch.ref_emb is None else batch.ref_emb)
    a1, p, a2, n = (index.to(batch.emb.device).long() for index in as_pairs(indices))
    same, diff = (torch.zeros(shape, dtype=torch.bool, device=batch.emb.device) for _ in range(2))
    same[a1, p] = True
    diff[a2, n] = True
    both = (same & diff).nonzero()
    if len(both):
        raise ConflictingPairsError(
            f"indices_tuple has {both[0].tolist()} both as a positive and as a negative pair: remove one of the two"
        )
    repeats = None
    if len(a1) > torch.count_nonzero(same) or len(a2) > torch.count_nonzero(diff):
        positions = torch.cat([a1 * shape[1] + p, a2 * shape[1] + n])
        repeats = batch.emb.new_zeros(shape).flatten().index_add_(0, positions, batch.emb.new_ones(len(positions)))
        repeats = repeats.view(shape)
    return SelectedPairs(same, diff, max(len(a1), len(a2)) <= 1, repeats, (a1, p, n) if len(indices) == 3 else None)


def separate_references(batch: PairBatch, indices: Indices) -> tuple[PairBatch, Indices]:
    """Return a batch that contains every reference twice, and new indices into this batch.

    The new indices of positives refer to the first copies, and those of negatives to the second copies. Therefore, no
    pair is selected both as a positive and as a negative pair.
    """
    refs = batch.emb if batch.ref_emb is None else batch.ref_emb
    ref_labels = batch.labels if batch.ref_labels is None else batch.ref_labels
    doubled = replace(batch, ref_emb=torch.cat([refs, refs]), ref_labels=torch.cat([ref_labels, ref_labels]))
    return doubled, (*indices[:-1], indices[-1] + len(refs))


def as_pairs(indices: Indices) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output of a miner, pairs or triplets, as pairs (anchors, positives, anchors, negatives)."""
    if len(indices) == 3:
        a, p, n = indices
        return a, p, a, n
    if len(indices) == 4:
        return cast("tuple[Tensor, Tensor, Tensor, Tensor]", tuple(indices))
    raise ValueError(
        f"indices_tuple must be (anchors, positives, negatives) or (anchors, positives, anchors, negatives), "
        f"got {len(indices)} parts"
    )


def miner_weights(indices: Indices | None, embeddings: Tensor, *, anchors: bool = False) -> Tensor | None:
    """Return how often each sample was selected, divided by the maximum over samples. The result has shape [B].

    Return None if no samples were selected.

    Args:
        indices: The output of a miner.
        embeddings: The embeddings [B, d].
        anchors: If True, count only how often a sample was selected as an anchor. pytorch-metric-learning does this in
            ProxyNCALoss.
    """
    if indices is None or all(len(part) == 0 for part in indices):
        return None
    a1, _, a2, _ = as_pairs(indices)
    parts = indices if not anchors else (a1,) if len(indices) == 3 else (a1, a2)
    selected = torch.cat([part.to(embeddings.device).long() for part in parts])
    counts = embeddings.new_zeros(len(embeddings)).index_add_(0, selected, embeddings.new_ones(len(selected)))
    return counts / counts.max()
