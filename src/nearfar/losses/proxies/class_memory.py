"""A memory of past embeddings that knows the mean of each class without looking through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class ClassMemory(nn.Module):
    """A ring buffer of the last `size` unit rows with their class ids, and the sum of the rows of each class.

    A row is added to its class's sum when it comes and subtracted when it is overwritten. Entries enter the sums as
    whole numbers of 2^-bits, small enough for float64 to add them exactly: nothing drifts however long it runs, and the
    sums are at any time, bit for bit, those of the rows in the buffer (bits is 36 for 55,000 rows, 45 for 100).
    Rows, ids and position are in `state_dict`; sums and counts follow from them.

    >>> memory = ClassMemory(classes=2, dim=2, size=3)
    >>> memory.add(torch.eye(2), torch.tensor([0, 0]), torch.tensor([True, True]))
    >>> memory.add(torch.eye(2), torch.tensor([0, 1]), torch.tensor([True, True]))  # the first row is overwritten
    >>> memory.counts, memory.mean_dot(torch.tensor([0]), torch.tensor([[1.0, 3.0]]))
    (tensor([2, 1]), tensor([2.], dtype=torch.float64))
    """

    rows: Tensor
    labels: Tensor
    position: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(self, *, classes: int, dim: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.unit = 2.0 ** -(52 - size.bit_length())
        self.register_buffer("rows", torch.zeros(size, dim))
        self.register_buffer("labels", torch.full((size,), -1))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(classes, dim, dtype=torch.float64), persistent=False)
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64), persistent=False)

    @torch.no_grad()
    def add(self, rows: Tensor, labels: Tensor, keep: Tensor) -> None:
        """Write the rows [B, d] that `keep` [B] marks over the oldest ones, in their order."""
        if len(rows) > self.size:
            raise ValueError(f"memory_size must be at least the batch size, got {self.size} for {len(rows)} rows")
        # B slots are visited whatever is kept, so that shapes do not depend on it: first those of the kept rows, then
        # as many for the others, which get back what they hold
        kept = keep.long()
        place = torch.where(keep, kept.cumsum(0) - 1, kept.sum() + (1 - kept).cumsum(0) - 1)
        slots = (self.position + place) % self.size
        old_rows, old_labels = self.rows.index_select(0, slots), self.labels.index_select(0, slots)
        gone = kept * (old_labels >= 0)

        rows = rows.to(self.rows.dtype)
        self.count(torch.cat([rows, old_rows]), torch.cat([labels, old_labels.clamp_min(0)]), torch.cat([kept, -gone]))
        share = kept.to(rows.dtype)[:, None]  # a product with 0 or 1 is exact, and faster than a choice by rows
        self.rows.index_copy_(0, slots, (old_rows * (1 - share)).addcmul_(rows, share))
        self.labels.index_copy_(0, slots, torch.where(keep, labels, old_labels))
        self.position.add_(kept.sum()).remainder_(self.size)

    def count(self, rows: Tensor, labels: Tensor, times: Tensor) -> None:
        """Add rows to the sums and counts of their classes, `times` [N] (1, 0 or -1) times each."""
        whole = (rows.double() * (times.double() / self.unit)[:, None]).round_()
        self.sums.index_add_(0, labels, whole)
        self.counts.index_add_(0, labels, times)

    @torch.no_grad()
    def recount(self) -> None:
        """Sums and counts from the rows themselves."""
        self.sums = torch.zeros_like(self.sums, dtype=torch.float64)
        self.counts = torch.zeros_like(self.counts)
        self.count(self.rows, self.labels.clamp_min(0), (self.labels >= 0).long())

    def mean_dot(self, labels: Tensor, vectors: Tensor) -> Tensor:
        """The mean, over the remembered rows of class labels_i, of their product with vector i, [N] in float64.

        It is 0 for a class without rows.
        """
        dot = (self.sums.index_select(0, labels) * vectors).sum(1)
        return dot * self.unit / self.counts[labels].clamp_min(1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ClassMemory:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.sums.dtype != torch.float64:  # .float() and its like also round the rows
            self.recount()
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.recount()
