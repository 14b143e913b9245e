"""Cross-batch memory: a wrapper for any pair loss that also compares each batch with embeddings of earlier batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nearfar.losses.base import Loss
from nearfar.losses.pair_loss import PairLoss
from nearfar.validation import Labels, as_label_tensor, as_labels

# A function of the ids of A anchors and R references [A] and [R], which returns their relations [A, R].
Relation = Callable[[Tensor, Tensor], Tensor]


class CrossBatchMemory(Loss):
    """Cross-batch memory, XBM (Wang et al., CVPR 2020, arXiv 1912.06798): a pair loss with a memory of past batches.

    The value is loss(batch) + memory_weight * loss(batch against memory). After each call, the detached embeddings of
    the batch replace the oldest embeddings in the memory. The released code stores the batch before it computes the
    loss against the memory; here the batch is stored afterwards, so that no sample is its own positive.

    The memory changes only in `train()` mode. `state_dict` contains its embeddings, labels and sample weights, the
    next position to write, and the numbers of stored embeddings and past batches, so a resumed run continues exactly.
    Class names are stored as 63-bit hashes, which are the same in every run.

    Args:
        loss: The pair loss.
        size: The number of embeddings in the memory. It must be at least the batch size.
        dim: The dimension of the embeddings. They are stored in the dtype of the module.
        classes: The number of classes C if labels are multi-hot [B, C]; None for class ids or names.
        memory_weight: The weight of the loss against the memory.
        start: The number of batches after which the memory is used. The paper uses 1,000; the default 0 is our choice.

    >>> from nearfar.losses import create
    >>> loss = CrossBatchMemory(create("supcon"), size=8, dim=2)
    >>> first = loss(torch.eye(2), torch.tensor([0, 1]))  # the memory is empty and there are no positives
    >>> loss(torch.eye(2), torch.tensor([0, 1])) < 0.01  # each sample finds its copy in the memory
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
            raise ValueError(f"loss must be a pair loss, got {type(loss).__name__}: only pair losses can use a memory")
        for name, value, minimum in (("size", size, 1), ("dim", dim, 1), ("start", start, 0)):
            if value < minimum:
                raise ValueError(f"{name} must be at least {minimum}, got {value}")
        self.loss, self.size, self.dim, self.classes = loss, size, dim, classes
        self.memory_weight, self.start = memory_weight, start
        self.register_buffer("rows", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros((size,) if classes is None else (size, classes), dtype=torch.int64))
        self.register_buffer("weights", torch.zeros(size))
        # `state` holds the next position to write, the number of stored embeddings and the number of past batches.
        # `progress` holds the same three numbers on the host, so that reading them does not wait for a GPU.
        self.register_buffer("state", torch.zeros(3, dtype=torch.int64))
        self.progress = [0, 0, 0]

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels,
        *,
        relation: Relation | None = None,
        weights: Tensor | None = None,
        representatives: int | None = None,
    ) -> Tensor:
        """Compute the loss within the batch and against the memory, then store the batch.

        Args:
            embeddings: The embeddings [B, d].
            labels: Class ids or class names [B], or multi-hot labels [B, C]. With `relation`, integer ids of the
                samples [B].
            relation: A function that returns the relations [A, R] of samples with the ids [A] and [R], for data
                without classes. The relations are those of `PairLoss.forward`. The function is called with the ids of
                the batch twice, and with the ids of the batch and of the memory. The memory can contain an earlier
                embedding of a sample of the batch; return NaN for equal ids to ignore it.
            weights: Sample weights [B].
            representatives: The number of class representatives at the start of a batch from the PROFS sampler (see
                `nearfar.samplers.Profs`). It applies only to the loss within the batch.
        """
        if relation is not None:
            check_sample_ids(labels, relation)
        labels = hash_names(labels, device=getattr(embeddings, "device", None))
        if embeddings.ndim == 2 and (embeddings.shape[0] > self.size or embeddings.shape[1] != self.dim):
            raise ValueError(
                f"embeddings of shape {list(embeddings.shape)} do not fit a memory of {self.size} embeddings "
                f"of dimension {self.dim}: create the memory with size >= batch size and dim = embedding dimension"
            )
        if relation is None:
            value: Tensor = self.loss(embeddings, labels, weights=weights, representatives=representatives)
        else:
            related = relation(labels, labels)
            value = self.loss(embeddings, relation=related, weights=weights, representatives=representatives)
        if labels.shape[1:] != self.labels.shape[1:]:
            raise ValueError(
                f"labels of shape {list(labels.shape)} do not fit the memory, whose labels have shape "
                f"{list(self.labels.shape)}: create the memory with classes=C for multi-hot labels of shape [B, C], "
                "otherwise without classes"
            )
        _, filled, seen = self.progress
        if filled and seen >= self.start:
            # copies, because the memory changes before the backward pass
            stored = self.labels[:filled].clone()
            kinds: dict[str, Any] = (
                {"labels": labels, "ref_labels": stored} if relation is None else {"relation": relation(labels, stored)}
            )
            value = value + self.memory_weight * self.loss(
                embeddings,
                **kinds,
                ref_emb=self.rows[:filled].clone(),
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
        """Replace the oldest embeddings in the memory with the given ones."""
        position, filled, seen = self.progress
        slots = (position + torch.arange(len(embeddings), device=self.rows.device)) % self.size
        self.rows[slots] = embeddings.to(self.rows.dtype)
        self.labels[slots] = labels.to(torch.int64)
        self.weights[slots] = self.weights.new_ones(()) if weights is None else weights.detach().to(self.weights.dtype)
        rows = len(embeddings)
        self.progress = [(position + rows) % self.size, min(filled + rows, self.size), seen + 1]
        for entry, number in zip(self.state, self.progress, strict=True):
            entry.fill_(number)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.progress = self.state.tolist()


def check_sample_ids(ids: Labels, relation: Relation) -> None:
    """Check that `relation` is a function and that the labels that are passed with it are integer ids [B]."""
    if not callable(relation):
        raise ValueError(
            f"relation must be a function of the ids of two sets of samples, got {type(relation).__name__}: the memory "
            "holds samples of earlier batches; with a matrix of all samples, pass their positions as labels and "
            "relation=lambda a, b: matrix[a][:, b]"
        )
    if not isinstance(ids, Tensor) or ids.ndim != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        got = f"{ids.dtype} of shape {list(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"with relation, labels must be a tensor of integer sample ids [B], got {got}")


def hash_names(labels: Labels, *, device: torch.device | None = None) -> Tensor:
    """Convert labels to a tensor. Class names become 63-bit hashes, which do not depend on the other labels.

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
