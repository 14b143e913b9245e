"""What a miner chose, (anchors, positives, negatives) or (anchors, positives, anchors, negatives), as masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from nearfar.losses.pair_loss import PairBatch
from nearfar.ops.pairs import pair_masks, row_count

Indices = Sequence[Tensor]


@dataclass(frozen=True, eq=False)
class Chosen:
    """Boolean [A, R] of the positive and negative pairs.

    repeats: how often each pair was named, [A, R], where any was named more than once. triplets: as they were named,
    where they were. few: at most one positive and one negative pair, which most pair losses there take for none.
    """

    same: Tensor
    diff: Tensor
    few: bool
    repeats: Tensor | None = None
    triplets: tuple[Tensor, Tensor, Tensor] | None = None

    def triplet_counts(self, dtype: torch.dtype) -> Tensor:
        """In how many triplets each pair is, [A, R]; pairs make every triplet that they can."""
        if self.triplets is not None:
            return self.same.to(dtype) + self.diff.to(dtype) if self.repeats is None else self.repeats.to(dtype)
        if self.repeats is None:
            positives, negatives = (row_count(mask).to(dtype)[:, None] for mask in (self.same, self.diff))
            return torch.where(self.same, negatives, torch.where(self.diff, positives, 0.0))
        same, diff = (torch.where(mask, self.repeats, 0.0).to(dtype) for mask in (self.same, self.diff))
        return same * diff.sum(1, keepdim=True) + diff * same.sum(1, keepdim=True)


def chosen(batch: PairBatch, labels: Tensor | None, ref_labels: Tensor | None, indices: Indices | None) -> Chosen:
    """The pairs that a miner chose, or all of them.

    As there, the i-th anchor and the i-th reference are no pair where both have the very same labels tensor.
    """
    if indices is None:
        same, diff = pair_masks(batch.labels, None if ref_labels is labels else batch.ref_labels)
        return Chosen(same, diff, few=same.numel() <= 2 and int(same.sum()) <= 1 and int(diff.sum()) <= 1)
    shape = len(batch.emb), len(batch.emb if batch.ref_emb is None else batch.ref_emb)
    a1, p, a2, n = (each.to(batch.emb.device).long() for each in as_pairs(indices))
    same, diff = (torch.zeros(shape, dtype=torch.bool, device=batch.emb.device) for _ in range(2))
    same[a1, p] = True
    diff[a2, n] = True
    both = (same & diff).nonzero()
    if len(both):
        raise ValueError(f"indices_tuple has {both[0].tolist()} as a positive and as a negative pair: keep one of them")
    repeats = None
    if len(a1) > torch.count_nonzero(same) or len(a2) > torch.count_nonzero(diff):
        places = torch.cat([a1 * shape[1] + p, a2 * shape[1] + n])
        repeats = batch.emb.new_zeros(shape).flatten().index_add_(0, places, batch.emb.new_ones(len(places)))
        repeats = repeats.view(shape)
    return Chosen(same, diff, max(len(a1), len(a2)) <= 1, repeats, (a1, p, n) if len(indices) == 3 else None)


def as_pairs(indices: Indices) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(anchors, positives, anchors, negatives)."""
    if len(indices) == 3:
        a, p, n = indices
        return a, p, a, n
    if len(indices) == 4:
        return cast("tuple[Tensor, Tensor, Tensor, Tensor]", tuple(indices))
    raise ValueError(
        f"indices_tuple must be (anchors, positives, negatives) or (anchors, positives, anchors, negatives), "
        f"got {len(indices)} parts"
    )


def miner_weights(indices: Indices | None, rows: Tensor, *, anchors: bool = False) -> Tensor | None:
    """How often each sample was chosen over how often the most chosen was, [B]; None: all count once.

    anchors: only how often it was chosen as an anchor (there: ProxyNCALoss).
    """
    if indices is None or all(len(each) == 0 for each in indices):
        return None
    a1, _, a2, _ = as_pairs(indices)
    parts = indices if not anchors else (a1,) if len(indices) == 3 else (a1, a2)
    named = torch.cat([each.to(rows.device).long() for each in parts])
    counts = rows.new_zeros(len(rows)).index_add_(0, named, rows.new_ones(len(named)))
    return counts / counts.max()
