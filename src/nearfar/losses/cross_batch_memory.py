"""Cross-batch memory: any pair loss, with the embeddings of earlier batches as further references."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from nearfar.losses.base import Loss
from nearfar.losses.pair_loss import PairLoss
from nearfar.validation import Labels, as_label_tensor, as_labels


class CrossBatchMemory(Loss):
    """Cross-batch memory, XBM (Wang et al., CVPR 2020, arXiv 1912.06798): a pair loss with a memory of past batches.

    value = loss(batch) + memory_weight * loss(batch against memory). The batch is then stored, detached, in place of
    the oldest embeddings. Unlike in the released code, the memory does not contain the batch itself when it is used, so
    no sample is its own positive.

    The memory changes only in `train()` mode. Embeddings, labels, sample weights, position and the number of batches
    are in `state_dict`, so a resumed run is exact. Class names are stored as 63-bit hashes, which are equal in every
    run.

    Args:
        loss: The pair loss.
        size: The number of embeddings in the memory, at least the batch size.
        dim: The dimension of the embeddings. They are stored in the dtype of the module.
        classes: The number of classes C of multi-hot labels [B, C]; None for class ids or names.
        memory_weight: Weight of the loss against the memory.
        start: The number of batches before the memory is used. The paper warms up for 1,000 iterations; 0 is ours.

    >>> from nearfar.losses import create
    >>> loss = CrossBatchMemory(create("supcon"), size=8, dim=2)
    >>> first = loss(torch.eye(2), torch.tensor([0, 1]))  # the memory is empty and there are no positives
    >>> loss(torch.eye(2), torch.tensor([0, 1])) < 0.01  # each meets itself in the memory
    tensor(True)
    """

    rows: Tensor
    labels: Tensor
    weights: Tensor
    state: Tensor

    def __init__(
        self,
        loss: PairLoss,
        *,
        size: int,
        dim: int,
        classes: int | None = None,
        memory_weight: float = 1.0,
        start: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(loss, PairLoss):
            raise ValueError(f"loss must be a pair loss, got {type(loss).__name__}: proxy losses have no references")
        for name, value, minimum in (("size", size, 1), ("dim", dim, 1), ("start", start, 0)):
            if value < minimum:
                raise ValueError(f"{name} must be at least {minimum}, got {value}")
        self.loss, self.size, self.dim, self.classes = loss, size, dim, classes
        self.memory_weight, self.start = memory_weight, start
        self.register_buffer("rows", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros((size,) if classes is None else (size, classes), dtype=torch.int64))
        self.register_buffer("weights", torch.zeros(size))
        # next position, number of stored embeddings, number of batches
        self.register_buffer("state", torch.zeros(3, dtype=torch.int64))

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels,
        *,
        weights: Tensor | None = None,
        representatives: int | None = None,
    ) -> Tensor:
        """Compute the loss within the batch and against the memory, then store the batch.

        Args:
            embeddings: The embeddings [B, d].
            labels: Class ids or class names [B], or multi-hot [B, C].
            weights: Sample weights [B].
            representatives: The first n samples are class representatives (PROFS).
        """
        labels = hash_names(labels, device=getattr(embeddings, "device", None))
        if embeddings.ndim == 2 and (embeddings.shape[0] > self.size or embeddings.shape[1] != self.dim):
            raise ValueError(
                f"embeddings of shape {list(embeddings.shape)} do not fit a memory of {self.size} embeddings "
                f"of dimension {self.dim}: make size at least the batch size, and dim that of the embeddings"
            )
        value: Tensor = self.loss(embeddings, labels, weights=weights, representatives=representatives)
        if labels.shape[1:] != self.labels.shape[1:]:
            raise ValueError(
                f"labels of shape {list(labels.shape)} do not fit those of the memory, {list(self.labels.shape)}: "
                "create it with classes=C for multi-hot labels [B, C], and without for class ids [B]"
            )
        _, filled, seen = self.state.tolist()
        if filled and seen >= self.start:
            value = value + self.memory_weight * self.loss(
                embeddings,
                labels,
                ref_emb=self.rows[:filled].clone(),
                ref_labels=self.labels[:filled].clone(),
                weights=weights,
                ref_weights=self.weights[:filled].clone(),
            )
        if self.training:
            self.remember(embeddings.detach(), labels, weights)
        return value

    @property
    def warmup_epochs(self) -> int:
        return self.loss.warmup_epochs

    def start_epoch(self, n: int) -> None:
        self.loss.start_epoch(n)

    @torch.no_grad()
    def remember(self, embeddings: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Store embeddings in place of the oldest ones."""
        position, filled, seen = self.state.tolist()
        slots = (position + torch.arange(len(embeddings), device=self.rows.device)) % self.size
        self.rows[slots] = embeddings.to(self.rows.dtype)
        self.labels[slots] = labels.to(torch.int64)
        self.weights[slots] = self.weights.new_ones(()) if weights is None else weights.detach().to(self.weights.dtype)
        self.state.copy_(
            torch.tensor([(position + len(embeddings)) % self.size, min(filled + len(embeddings), self.size), seen + 1])
        )


def hash_names(labels: Labels, *, device: torch.device | None = None) -> Tensor:
    """Return labels as a tensor; class names become 63-bit hashes, which do not depend on the batch.

    >>> hash_names(["cat", "dog"])[1] == hash_names(["dog"])[0]
    tensor(True)
    """
    if isinstance(labels, Tensor):
        return labels
    array = as_labels(labels)
    if array.dtype.kind not in "US":
        return as_label_tensor(labels).to(device)
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in array.astype(str).tolist()]
    return torch.tensor([int.from_bytes(digest, "big") >> 1 for digest in digests], device=device)
