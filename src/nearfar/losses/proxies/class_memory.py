"""A memory of past embeddings with the exact mean of each class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class ClassMemory(nn.Module):
    """A ring buffer of the last `size` unit embeddings and their class ids, with the sum of each class.

    An embedding is added to the sum of its class when it is stored and subtracted when it is overwritten. Values
    are rounded to multiples of 2^-bits (bits is 36 for size 55,000 and 45 for size 100), which float64 adds exactly, so
    rounding errors do not accumulate. `state_dict` contains embeddings, ids and position; sums and counts are
    recomputed from them.

    Args:
        classes: The number of classes.
        dim: The dimension of the embeddings.
        size: The number of embeddings in the buffer.

    >>> memory = ClassMemory(classes=2, dim=2, size=3)
    >>> memory.add(torch.eye(2), torch.tensor([0, 0]), torch.tensor([True, True]))
    >>> memory.add(torch.eye(2), torch.tensor([0, 1]), torch.tensor([True, True]))  # the first embedding is overwritten
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
        """Overwrite the oldest embeddings with those of `rows` [B, d] that the mask `keep` [B] selects, in order."""
        if len(rows) > self.size:
            raise ValueError(f"memory_size must be at least the batch size {len(rows)}, got {self.size}")
        # Always write B slots, so that shapes do not depend on `keep`. The slots of embeddings that are not kept come
        # last and are written with their old content.
        kept = keep.long()
        offset = torch.where(keep, kept.cumsum(0) - 1, kept.sum() + (1 - kept).cumsum(0) - 1)
        slots = (self.position + offset) % self.size
        old_rows, old_labels = self.rows.index_select(0, slots), self.labels.index_select(0, slots)
        removed = kept * (old_labels >= 0)

        rows = rows.to(self.rows.dtype)
        self.count(
            torch.cat([rows, old_rows]), torch.cat([labels, old_labels.clamp_min(0)]), torch.cat([kept, -removed])
        )
        share = kept.to(rows.dtype)[:, None]  # a product with 0 or 1 is exact, and faster than torch.where
        self.rows.index_copy_(0, slots, (old_rows * (1 - share)).addcmul_(rows, share))
        self.labels.index_copy_(0, slots, torch.where(keep, labels, old_labels))
        self.position.add_(kept.sum()).remainder_(self.size)

    def count(self, rows: Tensor, labels: Tensor, times: Tensor) -> None:
        """Add embeddings to the sums and counts of their classes, each `times` [N] times (1, 0 or -1)."""
        integers = (rows.double() * (times.double() / self.unit)[:, None]).round_()
        self.sums.index_add_(0, labels, integers)
        self.counts.index_add_(0, labels, times)

    @torch.no_grad()
    def recount(self) -> None:
        """Recompute the sums and counts from the stored embeddings."""
        self.sums = torch.zeros_like(self.sums, dtype=torch.float64)
        self.counts = torch.zeros_like(self.counts)
        self.count(self.rows, self.labels.clamp_min(0), (self.labels >= 0).long())

    def mean_dot(self, labels: Tensor, vectors: Tensor) -> Tensor:
        """Compute the mean dot product of vector i and the stored embeddings of class labels[i], [N] in float64.

        It is 0 for a class without embeddings.
        """
        dot = (self.sums.index_select(0, labels) * vectors).sum(1)
        return dot * self.unit / self.counts[labels].clamp_min(1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ClassMemory:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.sums.dtype != torch.float64:  # after .float() and similar calls, which also round the embeddings
            self.recount()
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.recount()
