"""The one pass over the similarities: a block of queries against the whole gallery, ranks, metrics, next block."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nearfar.metrics.exact.positions import by_device_sort, positive_ranks
from nearfar.metrics.names import depth_of
from nearfar.metrics.relevance import Relevance
from nearfar.metrics.retrieval import Columns, empty_columns, fill
from nearfar.metrics.similarity import Gallery
from nearfar.validation import Ints

MOST_ROWS = 1024


def stream(
    names: Sequence[str],
    gallery: Gallery,
    queries: Tensor,
    who: Relevance,
    *,
    rows: Ints,
    same_set: bool,
    ignored: Sequence[Ints] | None,
    memory_mb: int,
) -> Columns:
    """The named metrics of the queries `rows`, each [len(rows)], and three columns for error analysis.

    "positives" is R, "first" the rank of the best positive, "nearest" the gallery position ranked first.
    A query without a positive has R = 0 and NaN elsewhere (its "nearest" is still told).
    Queries with many positives come first and share blocks, so that the tables of positives hold little padding.
    """
    size, device = len(gallery.rows), gallery.rows.device
    columns = empty_columns(names, len(rows))
    bound = who.at_most()[rows]
    order = np.argsort(-bound, kind="stable")
    store = torch.empty(0, dtype=gallery.dtype, device=device)
    start = 0
    while start < len(order):
        widest = max(int(bound[order[start]]), 1)
        # The similarities, their copy for a selection (or a sort's tables), and the tables of positives.
        row_bytes = (2 if device.type == "cpu" else 8) * store.element_size() * size + 64 * widest
        here = order[start : start + min(max(memory_mb * 2**20 // row_bytes, 1), MOST_ROWS)]
        start += len(here)
        if store.numel() < len(here) * size:
            store = torch.empty(len(here) * size, dtype=store.dtype, device=device)
        block = rows[here]
        scores = store[: len(here) * size].view(-1, size)
        gallery.similarities(queries[torch.from_numpy(block).to(queries.device)], scores)
        _leave_out(scores, block, same_set, ignored)
        ranks, positives, nearest = _rank(scores, who.positions(block), depth_of(names, widest, size))
        fill(columns, names, here, ranks, positives, nearest)
    return columns


def _leave_out(scores: Tensor, block: Ints, same_set: bool, ignored: Sequence[Ints] | None) -> None:
    line = np.arange(len(block))
    if same_set:
        scores[line, block] = -torch.inf
    if ignored is not None:
        lists = [ignored[row] for row in block]
        scores[np.repeat(line, [len(each) for each in lists]), np.concatenate(lists)] = -torch.inf


def _rank(scores: Tensor, positions: Ints, depth: int) -> tuple[Ints, Ints, Ints]:
    places = torch.from_numpy(positions).to(scores.device)
    left_out = scores.gather(1, places.clamp_min(0)) == -torch.inf
    places = places.masked_fill(left_out, -1)
    positives = (places >= 0).sum(1).cpu().numpy()
    if scores.device.type != "cpu":
        return by_device_sort(scores, places).cpu().numpy(), positives, scores.argmax(1).cpu().numpy()
    table = scores.numpy()
    return positive_ranks(table, places.numpy(), depth), positives, table.argmax(axis=1)
