"""What a training batch looks like from outside, and warnings with a cure when it looks bad."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.geometry import unit
from nearfar.training.diagnostics import activity, effective_rank

ROWS = 64


def look(
    loss: nn.Module, rows: Tensor, labels: Tensor, *, weights: Tensor | None, representatives: int | None
) -> dict[str, float]:
    """Numbers for the log: length and spread of the embeddings, and for pair losses the share of active pairs.

    spread: 1 - the length of the mean direction, 0 where all embeddings are equal. rank: how many directions the first
    64 rows fill, whatever their lengths.
    """
    some = rows[:ROWS].float()
    directions = unit(some)
    seen = {
        "norm": float(torch.linalg.vector_norm(some, dim=1).mean()),
        "spread": 1 - float(torch.linalg.vector_norm(directions.mean(0))),
        "rank": effective_rank(directions),
    }
    if isinstance(loss, PairLoss):
        seen["active_pairs"], seen["without_positives"] = activity(
            loss, rows, labels, weights=weights, representatives=representatives
        )
    return seen


def warnings(seen: dict[str, float], *, dim: int, rows: int) -> dict[str, str]:
    """What is wrong and what helps, by kind of trouble.

    >>> list(warnings({"norm": 1.0, "spread": 1e-6, "rank": 1.0}, dim=64, rows=64))
    ['collapse']
    """
    found = {}
    if rows > 2 and (seen["spread"] < 1e-3 or (dim > 2 and seen["rank"] < 1.5)):
        found["collapse"] = (
            f"the embeddings have collapsed to one direction (spread {seen['spread']:.1e}, rank {seen['rank']:.1f}): "
            "lower optimizer.lr, or use a loss or mining that does not take only the hardest pairs"
        )
    if seen.get("without_positives", 0.0) > 0.5:
        found["positives"] = (
            f"{seen['without_positives']:.0%} of the anchors have no positive in their batch: "
            "use batches.name=pk with batches.per_class of 2 or more"
        )
    return found
