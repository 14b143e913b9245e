"""Cross-batch memory: any pair loss, with the embeddings of earlier batches as further references."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfar.losses.pair_loss import PairLoss


class CrossBatchMemory(nn.Module):
    """A pair loss within the batch plus the same loss against a memory of earlier batches (XBM).

    value = loss(batch) + memory_weight * loss(batch against memory), then the batch is put into the memory, detached,
    in place of the oldest rows (Wang et al., CVPR 2020, arXiv 1912.06798). Unlike the released code the memory that the
    batch meets does not hold the batch itself yet, so no sample is its own positive. The memory is used once it holds
    anything and `start` batches have gone by (the paper warms up for 1,000 iterations; 0, at once, is ours).

    Sample weights are remembered with their rows. The memory changes only in `train()` mode; rows, labels, weights,
    position and the number of batches are in `state_dict`, so a resumed run goes on exactly. `classes=C` makes room for
    multi-hot labels [B, C]; rows are kept in the module's dtype.

    >>> from nearfar.losses import create
    >>> loss = CrossBatchMemory(create("supcon"), size=8, dim=2)
    >>> first = loss(torch.eye(2), torch.tensor([0, 1]))  # nothing in memory, no positives
    >>> loss(torch.eye(2), torch.tensor([0, 1])) < 0.01  # both meet themselves of the batch before
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
            raise ValueError(f"loss must be a pair loss, got {type(loss).__name__}: a proxy loss has no references")
        for name, value, least in (("size", size, 1), ("dim", dim, 1), ("start", start, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.loss, self.size, self.dim, self.classes = loss, size, dim, classes
        self.memory_weight, self.start = memory_weight, start
        self.register_buffer("rows", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros((size,) if classes is None else (size, classes), dtype=torch.int64))
        self.register_buffer("weights", torch.zeros(size))
        self.register_buffer("state", torch.zeros(3, dtype=torch.int64))  # next place, rows filled, batches seen

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        weights: Tensor | None = None,
        representatives: int | None = None,
    ) -> Tensor:
        if embeddings.ndim == 2 and (embeddings.shape[0] > self.size or embeddings.shape[1] != self.dim):
            raise ValueError(
                f"embeddings of shape {list(embeddings.shape)} do not fit a memory of {self.size} rows of {self.dim}: "
                "make the memory larger than a batch and its dim that of the embeddings"
            )
        value: Tensor = self.loss(embeddings, labels, weights=weights, representatives=representatives)
        if labels.shape[1:] != self.labels.shape[1:]:
            raise ValueError(
                f"labels of shape {list(labels.shape)} do not fit the memory's {list(self.labels.shape)}: "
                "pass classes=C for multi-hot labels [B, C], and nothing for class ids [B]"
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

    @torch.no_grad()
    def remember(self, embeddings: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Put rows into the memory in place of the oldest."""
        place, filled, seen = self.state.tolist()
        where = (place + torch.arange(len(embeddings), device=self.rows.device)) % self.size
        self.rows[where] = embeddings.to(self.rows.dtype)
        self.labels[where] = labels.to(torch.int64)
        self.weights[where] = self.weights.new_ones(()) if weights is None else weights.detach().to(self.weights.dtype)
        self.state.copy_(
            torch.tensor([(place + len(embeddings)) % self.size, min(filled + len(embeddings), self.size), seen + 1])
        )
