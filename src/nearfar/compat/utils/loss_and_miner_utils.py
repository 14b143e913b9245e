"""Index tuples of pairs and triplets. The API is that of pytorch-metric-learning's `utils.loss_and_miner_utils`.

Most losses of nearfar.compat do not list pairs or triplets. These functions are mainly for user code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.compat.indices import Indices, as_pairs
from nearfar.ops.pairs import log_sum_exp, pair_masks

Pairs = tuple[Tensor, Tensor, Tensor, Tensor]
Triplets = tuple[Tensor, Tensor, Tensor]


def logsumexp(x: Tensor, keep_mask: Tensor | None = None, add_one: bool = True, dim: int = 1) -> Tensor:
    """Compute log(sum e^x) along the dimension `dim` of a matrix, over the entries where `keep_mask` is True.

    If `add_one` is True, 1 is added to the sum. The dimension is kept with size 1. Where the mask has no True entry,
    the result is 0.
    """
    z, mask = (x, keep_mask) if dim == 1 else (x.T, None if keep_mask is None else keep_mask.T)
    mask = torch.ones_like(z, dtype=torch.bool) if mask is None else mask
    value = log_sum_exp(z, mask, plus_one=add_one).masked_fill(~mask.any(1), 0.0)
    return value.unsqueeze(dim)


def get_matches_and_diffs(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the mask of the positive pairs and the mask of the negative pairs, with dtype uint8.

    They have one row per label and one column per reference label.
    """
    same, diff = pair_masks(labels, None if ref_labels is labels else ref_labels)
    return same.byte(), diff.byte()


def get_all_pairs_indices(labels: Tensor, ref_labels: Tensor | None = None) -> Pairs:
    """Return all pairs as (anchors, positives, anchors, negatives)."""
    same, diff = get_matches_and_diffs(labels, ref_labels)
    return (*torch.where(same), *torch.where(diff))  # type: ignore[return-value]


def convert_to_pairs(indices_tuple: Indices | None, labels: Tensor, ref_labels: Tensor | None = None) -> Pairs:
    """Return pairs or triplets as (anchors, positives, anchors, negatives). None stands for all pairs."""
    return get_all_pairs_indices(labels, ref_labels) if indices_tuple is None else as_pairs(indices_tuple)


def get_all_triplets_indices(labels: Tensor, ref_labels: Tensor | None = None) -> Triplets:
    """Return all triplets as (anchors, positives, negatives), sorted."""
    return get_all_triplets_indices_vectorized_method(*get_matches_and_diffs(labels, ref_labels))


def get_all_triplets_indices_vectorized_method(all_matches: Tensor, all_diffs: Tensor) -> Triplets:
    """Return all triplets from the matrices of positive and negative pairs."""
    a, p = torch.where(all_matches)
    row, n = torch.where(all_diffs[a])
    return a[row], p[row], n


def get_all_triplets_indices_loop_method(labels: Tensor, all_matches: Tensor, all_diffs: Tensor) -> Triplets:
    """Return the same as `get_all_triplets_indices_vectorized_method`. `labels` is not used."""
    return get_all_triplets_indices_vectorized_method(all_matches, all_diffs)


def get_random_triplet_indices(
    labels: Tensor, ref_labels: Tensor | None = None, t_per_anchor: int | None = None, weights: Tensor | None = None
) -> Triplets:
    """Draw triplets with replacement.

    Args:
        labels: The labels of the anchors [A].
        ref_labels: The labels of the references [R], by default those of the anchors.
        t_per_anchor: The number of triplets per anchor. By default, the number of references with the anchor's label.
        weights: The weights [A, R] for drawing negatives. By default, all are equal. If all negatives of an anchor have
            weight 0, the anchor has no triplets.
    """
    same, diff = (mask.bool() for mask in get_matches_and_diffs(labels, ref_labels))
    chances = diff.float() if weights is None else torch.where(diff, weights.float(), 0.0)
    anchors = (same.any(1) & (chances.sum(1) > 0)).nonzero().flatten()
    if len(anchors) == 0:
        return anchors, anchors.clone(), anchors.clone()
    own = 1 if ref_labels is None or ref_labels is labels else 0
    counts = same[anchors].sum(1) + own if t_per_anchor is None else anchors.new_full((len(anchors),), t_per_anchor)
    most = int(counts.max())
    drawn = torch.arange(most, device=labels.device) < counts[:, None]
    p, n = (torch.multinomial(each[anchors], most, replacement=True)[drawn] for each in (same.float(), chances))
    return anchors.repeat_interleave(counts), p, n


def convert_to_triplets(
    indices_tuple: Indices | None, labels: Tensor, ref_labels: Tensor | None = None, t_per_anchor: int | str = 100
) -> Triplets:
    """Convert pairs or triplets to triplets (anchors, positives, negatives).

    If `indices_tuple` contains pairs, each positive pair is combined with each negative pair of the same anchor. If it
    is None, `t_per_anchor` triplets are drawn for each anchor; t_per_anchor="all" returns all triplets.
    """
    if indices_tuple is None:
        if isinstance(t_per_anchor, str):
            return get_all_triplets_indices(labels, ref_labels)
        return get_random_triplet_indices(labels, ref_labels, t_per_anchor)
    if len(indices_tuple) == 3:
        a, p, n = indices_tuple
        return a, p, n
    a1, p, a2, n = as_pairs(indices_tuple)
    first, second = torch.where(a1[:, None] == a2)
    return a1[first], p[first], n[second]


def convert_to_weights(
    indices_tuple: Indices | None, labels: Tensor, dtype: torch.dtype, using_ref: bool = False
) -> Tensor:
    """Return how often each sample occurs in the tuple, divided by the maximum over samples.

    If the tuple is None or empty, all weights are 1. With `using_ref`, only anchors are counted, because the other
    indices refer to references.
    """
    if indices_tuple is None or all(len(part) == 0 for part in indices_tuple):
        return torch.ones(len(labels), dtype=dtype, device=labels.device)
    parts = (indices_tuple[0], *indices_tuple[2:-1]) if using_ref else tuple(indices_tuple)
    if using_ref and len(indices_tuple) == 3:
        parts = (indices_tuple[0],)
    counts = torch.bincount(torch.cat(parts), minlength=len(labels)).to(dtype)
    return counts / counts.max()


def remove_self_comparisons(
    indices_tuple: Indices, curr_batch_idx: Tensor, ref_size: int, ref_is_subset: bool = False
) -> tuple[Tensor, ...]:
    """Remove the positive pairs of a sample with itself, which occur if the references contain the batch.

    Args:
        indices_tuple: The pairs or triplets.
        curr_batch_idx: The position of each sample of the batch among the references.
        ref_size: The number of references. Not used; accepted for compatibility.
        ref_is_subset: If True, the references are a part of the batch, and `curr_batch_idx` is the position of each
            reference in the batch.
    """
    a, p = indices_tuple[0], indices_tuple[1]
    whole, part = (a, p) if ref_is_subset else (p, a)
    differ = whole != curr_batch_idx.to(part.device)[part]
    others = [each[differ] for each in indices_tuple[2:]] if len(indices_tuple) == 3 else list(indices_tuple[2:])
    return a[differ], p[differ], *others
