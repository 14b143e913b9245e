"""Exact evaluation in blocks of queries. Each block is compared with the whole gallery."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nearfar.metrics.exact.positions import compute_positions, sort_positions_on_device
from nearfar.metrics.names import required_depth
from nearfar.metrics.relevance import Relevance
from nearfar.metrics.retrieval import Columns, empty_columns, fill_columns
from nearfar.metrics.similarity import Gallery
from nearfar.validation import Ints

MAX_ROWS = 1024


def evaluate_blocks(
    names: Sequence[str],
    gallery: Gallery,
    queries: Tensor,
    relevance: Relevance,
    *,
    rows: Ints,
    same_set: bool,
    ignored: Sequence[Ints] | None,
    memory_mb: int,
) -> Columns:
    """Compute the metrics `names` for the queries with indices `rows`.

    Return one array [len(rows)] per metric and three more for error analysis: "positives" (the number R of positives),
    "first" (the position of the best positive) and "nearest" (the gallery index of the nearest sample). For a query
    without positives, "positives" is 0, "nearest" is set, and all others are NaN.
    """
    size, device = len(gallery.rows), gallery.rows.device
    columns = empty_columns(names, len(rows))
    bound = relevance.max_positives()[rows]
    # queries with similar numbers of positives share a block, so that the tables of positives have little padding
    order = np.argsort(-bound, kind="stable")
    store = torch.empty(0, dtype=gallery.dtype, device=device)
    start = 0
    while start < len(order):
        widest = max(int(bound[order[start]]), 1)
        # A query needs memory for its similarities and its positives. On a CPU, `select_positions` copies the
        # similarities; on a GPU, sorting them needs several more tensors.
        row_bytes = (2 if device.type == "cpu" else 8) * store.element_size() * size + 64 * widest
        part = order[start : start + min(max(memory_mb * 2**20 // row_bytes, 1), MAX_ROWS)]
        start += len(part)
        if store.numel() < len(part) * size:
            store = torch.empty(len(part) * size, dtype=store.dtype, device=device)
        block = rows[part]
        scores = store[: len(part) * size].view(-1, size)
        gallery.similarities(queries[torch.from_numpy(block).to(queries.device)], scores)
        leave_out(scores, block, same_set, ignored)
        depth = required_depth(names, widest, size)
        positions, positives, nearest = _find_positions(scores, relevance.positives(block), depth)
        fill_columns(columns, names, part, positions, positives, nearest)
    return columns


def leave_out(scores: Tensor, block: Ints, same_set: bool, ignored: Sequence[Ints] | None) -> None:
    """Set the similarity of each query to itself (if `same_set`) and to its ignored samples to -inf, in place.

    `block` has the indices of the queries.
    """
    rows = np.arange(len(block))
    if same_set:
        scores[rows, block] = -torch.inf
    if ignored is not None:
        lists = [ignored[row] for row in block]
        scores[np.repeat(rows, [len(indices) for indices in lists]), np.concatenate(lists)] = -torch.inf


def _find_positions(scores: Tensor, positives: Ints, depth: int) -> tuple[Ints, Ints, Ints]:
    indices = torch.from_numpy(positives).to(scores.device)
    is_left_out = scores.gather(1, indices.clamp_min(0)) == -torch.inf
    indices = indices.masked_fill(is_left_out, -1)
    counts = (indices >= 0).sum(1).cpu().numpy()
    if scores.device.type != "cpu":
        return sort_positions_on_device(scores, indices).cpu().numpy(), counts, scores.argmax(1).cpu().numpy()
    table = scores.numpy()
    return compute_positions(table, indices.numpy(), depth), counts, table.argmax(axis=1)
