"""A memory of past embeddings that also stores their sum per class, without accumulating rounding errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class ClassMemory(nn.Module):
    """A ring buffer of the last `size` unit embeddings and their class ids, with the sum of the embeddings per class.

    An embedding is added to the sum of its class when it is stored, and subtracted when it is overwritten. For the
    sums, values are rounded to multiples of 2^-b, where b depends on `size`; for example, b is 36 for size 55,000.
    float64 adds such values exactly, so rounding errors do not accumulate. `state_dict` contains the embeddings, the
    class ids and the position of the next write. The sums and counts are recomputed from the embeddings and class ids.

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
        """Replace the oldest embeddings with those for which `keep` is true.

        Args:
            rows: Unit embeddings of the batch [B, d].
            labels: Class ids of the batch [B].
            keep: The mask of the embeddings to store [B].
        """
        if len(rows) > self.size:
            raise ValueError(
                f"memory_size (loss proxy-isa) or size (pacer prism) must be at least the batch size {len(rows)}, got "
                f"{self.size}"
            )
        # Always write as many slots as the batch has samples, so that shapes do not depend on `keep`. The kept
        # embeddings come first. The slots after them are overwritten with their old content.
        kept = keep.long()
        offset = torch.where(keep, kept.cumsum(0) - 1, kept.sum() + (1 - kept).cumsum(0) - 1)
        slots = (self.position + offset) % self.size
        old_rows, old_labels = self.rows.index_select(0, slots), self.labels.index_select(0, slots)
        removed = kept * (old_labels >= 0)

        rows = rows.to(self.rows.dtype)
        self.count(
            torch.cat([rows, old_rows]), torch.cat([labels, old_labels.clamp_min(0)]), torch.cat([kept, -removed])
        )
        share = kept.to(rows.dtype)[:, None]  # multiplying by 0 or 1 is exact, and faster than torch.where
        self.rows.index_copy_(0, slots, (old_rows * (1 - share)).addcmul_(rows, share))
        self.labels.index_copy_(0, slots, torch.where(keep, labels, old_labels))
        self.position.add_(kept.sum()).remainder_(self.size)

    def count(self, rows: Tensor, labels: Tensor, times: Tensor) -> None:
        """Add embeddings to the sums and counts of their classes, or subtract them.

        Args:
            rows: The embeddings [N, d].
            labels: Their class ids [N].
            times: 1 to add an embedding, -1 to subtract it, 0 to ignore it [N].
        """
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
        """Compute the mean dot product of vectors[i] and the stored embeddings of class labels[i], for every i.

        The result is a float64 tensor [N] with 0 for a class without embeddings.
        """
        dot = (self.sums.index_select(0, labels) * vectors).sum(1)
        return dot * self.unit / self.counts[labels].clamp_min(1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ClassMemory:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.sums.dtype != torch.float64:  # after a call such as module.half(), which rounds the embeddings too
            self.recount()
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.recount()
