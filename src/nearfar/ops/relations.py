"""Relations between samples in place of labels.

They are given as a matrix of 1 (positive pair), 0 (negative pair) and NaN (unknown pair), or as a list of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nearfar.host_reads import should_check_values

Indices = Tensor | Sequence[int]
PairList = tuple[Indices, Indices, Indices]


def relation_of_pairs(first: Indices, second: Indices, sign: Indices, rows: int, columns: int | None = None) -> Tensor:
    """Return the relation matrix of a list of pairs: 1 for positive pairs, 0 for negative pairs, NaN for all others.

    Args:
        first: The indices of the first samples.
        second: The indices of the second samples.
        sign: +1 for a positive pair, -1 or 0 for a negative pair.
        rows: The number of anchors.
        columns: The number of references. By default the references are the anchors, and the matrix is symmetric.

    >>> relation_of_pairs([0, 1], [1, 2], [1, -1], 3)  # (0, 1) is positive, (1, 2) is negative
    tensor([[nan, 1., nan],
            [1., nan, 0.],
            [nan, 0., nan]])
    """
    i, j, s = (torch.as_tensor(part) for part in (first, second, sign))
    size = rows if columns is None else columns
    if not i.ndim == j.ndim == s.ndim == 1 or not len(i) == len(j) == len(s):
        shapes = ", ".join(str(list(part.shape)) for part in (i, j, s))
        raise ValueError(f"a list of pairs needs three sequences (first, second, sign) of equal length, got {shapes}")
    relation = torch.full((rows, size), torch.nan, device=s.device)
    if not len(i):
        return relation
    for name, part, end in (("first", i, rows), ("second", j, size)):
        if part.is_floating_point() or part.dtype == torch.bool:
            raise ValueError(f"{name} must be integer indices, got {part.dtype}")
        outside = part[(part < 0) | (part >= end)]
        if len(outside):
            raise ValueError(f"{name} must be in 0..{end - 1}, got {int(outside[0])}: pass indices of samples")
    odd = s[(s != 1) & (s != 0) & (s != -1)]
    if len(odd):
        raise ValueError(f"sign must be +1, -1 or 0, got {odd[0].item()}: pass grades as a matrix of relations")
    if columns is None and bool((i == j).any()):
        k = int(i[i == j][0])
        raise ValueError(f"the pair ({k}, {k}) relates a sample to itself: remove it")
    value = (s > 0).to(relation.dtype)
    relation[i, j] = value
    if columns is None:
        relation[j, i] = value
    is_conflict = relation[i, j] != value
    if bool(is_conflict.any()):
        k = int(is_conflict.nonzero()[0])
        raise ValueError(f"the pair ({int(i[k])}, {int(j[k])}) is listed as positive and as negative: keep one of them")
    return relation


def relation_masks(
    relation: Tensor, rows: int, columns: int | None, *, graded: bool, dtype: torch.dtype, cure: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    """Check relations, and convert them to the masks (same, diff) and the grades, each [A, R].

    A grade is a relation as a number, or 0 if it is unknown. Pairs with a grade above 0 are in `same`, and pairs known
    to have grade 0 are in `diff`.

    Args:
        relation: The relations [A, R], either boolean or numbers: 1 for positive, 0 for negative, NaN for unknown.
        rows: The number of anchors A.
        columns: The number of references R. None means that the references are the anchors: the diagonal is then
            ignored, and if only one of (i, j) and (j, i) is known, it is used for both.
        graded: Whether values between 0 and 1 are allowed.
        dtype: The dtype of the grades.
        cure: Advice that is added to the error about a value other than 0, 1 and NaN.
    """
    shape = [rows, rows if columns is None else columns]
    if not isinstance(relation, Tensor):
        raise ValueError(f"relation must be a tensor {shape} or a tuple (i, j, sign), got {type(relation).__name__}")
    if list(relation.shape) != shape:
        raise ValueError(f"relation must have shape {shape}, got {list(relation.shape)}")
    if relation.is_complex():
        raise ValueError(f"relation must be boolean or real numbers, got {relation.dtype}")
    known = ~relation.isnan() if relation.is_floating_point() else torch.ones_like(relation, dtype=torch.bool)
    grade = torch.where(known, relation, 0).to(dtype)
    if columns is None:
        is_conflict = known & known.T & (grade != grade.T)
        grade, known = torch.where(known, grade, grade.T), (known | known.T).fill_diagonal_(False)
    else:
        is_conflict = torch.zeros_like(known)
    if should_check_values(relation):
        bad = grade[~((grade >= 0) & (grade <= 1))] if graded else grade[(grade != 0) & (grade != 1)]
        if len(bad) and graded:
            raise ValueError(
                f"relation must be between 0 and 1, or NaN for unknown pairs, got {float(bad[0]):g}: rescale the values"
            )
        if len(bad):
            raise ValueError(f"relation must be 0, 1 or NaN, got {float(bad[0]):g}: round graded relations{cure}")
        if bool(is_conflict.any()):
            i, j = is_conflict.nonzero()[0].tolist()
            raise ValueError(f"relation[{i}, {j}] and relation[{j}, {i}] differ: make them equal")
    return known & (grade > 0), known & (grade == 0), grade


def aligned_relation(
    anchors: Tensor, negatives: int, anchor_ids: Tensor | None = None, positive_ids: Tensor | None = None
) -> Tensor:
    """Return the relations [B, B + N] of B anchors to their B positives and N further negatives.

    Positive i belongs to anchor i, and is a negative for any other anchor j. But if the anchor ids or the positive ids
    of i and j are equal, the relation is unknown (NaN).
    """
    relation = torch.eye(len(anchors), dtype=anchors.dtype, device=anchors.device)
    for name, ids in (("anchor_ids", anchor_ids), ("positive_ids", positive_ids)):
        if ids is None:
            continue
        if not isinstance(ids, Tensor) or ids.shape != (len(anchors),):
            got = f"shape {list(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            raise ValueError(f"{name} must be a tensor of shape [{len(anchors)}], one id per anchor, got {got}")
        repeated = (ids[:, None] == ids).to(anchors.device)
        relation = relation.masked_fill(repeated & (relation == 0), torch.nan)
    return torch.cat([relation, relation.new_zeros(len(anchors), negatives)], 1)
