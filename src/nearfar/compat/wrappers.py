"""Wrappers of losses: a memory of past batches, two views of each sample, and several losses at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.compat.arguments import InvalidInputError
from nearfar.compat.indices import Indices, as_pairs
from nearfar.compat.pair_based import PairBased
from nearfar.compat.utils.common_functions import Recorded
from nearfar.compat.utils.loss_and_miner_utils import (
    convert_to_triplets,
    get_all_pairs_indices,
    remove_self_comparisons,
)

TWO_VIEWS = (
    "AngularLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "GeneralizedLiftedStructureLoss",
    "IntraPairVarianceLoss",
    "LiftedStructureLoss",
    "MultiSimilarityLoss",
    "NCALoss",
    "NTXentLoss",
    "SignalToNoiseRatioContrastiveLoss",
    "SupConLoss",
    "TripletMarginLoss",
    "TupletMarginLoss",
)


class BaseLossWrapper(Recorded):
    """Base class of wrappers that support only some losses."""

    def __init__(self, loss: nn.Module, *, collect_stats: bool | None = None) -> None:
        super().__init__(collect_stats=collect_stats)
        self.check_loss_support(type(loss).__name__)
        self.loss = loss

    @staticmethod
    def supported_losses() -> list[str]:
        """Return the class names of the supported losses."""
        raise NotImplementedError

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Raise an error if a loss is not supported."""
        if loss_name not in cls.supported_losses():
            raise ValueError(
                f"{cls.__name__} does not support {loss_name}: use one of {', '.join(cls.supported_losses())}"
            )


class CrossBatchMemory(BaseLossWrapper):
    """Compare each batch with itself and with a queue of past embeddings (Wang et al., CVPR 2020, XBM).

    The batch is first stored in the queue. Then every sample is compared with the whole queue, except with itself.

    Args:
        loss: The loss, one of `supported_losses()`.
        embedding_size: The dimension of the embeddings.
        memory_size: The number of embeddings in the queue.
        miner: A miner that selects pairs of the batch and the queue. By default, all pairs are used.
        collect_stats: Accepted for compatibility. Wrappers store no statistics.
    """

    embedding_memory: Tensor
    label_memory: Tensor
    curr_batch_idx: Tensor

    def __init__(
        self,
        loss: nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: nn.Module | None = None,
        *,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(loss, collect_stats=collect_stats)
        self.miner, self.embedding_size, self.memory_size = miner, embedding_size, memory_size
        self.reset_queue()

    @staticmethod
    def supported_losses() -> list[str]:
        return sorted([*TWO_VIEWS, "MarginLoss"])

    def reset_queue(self) -> None:
        """Remove all embeddings from the queue."""
        self.register_buffer("embedding_memory", torch.zeros(self.memory_size, self.embedding_size))
        self.register_buffer("label_memory", torch.zeros(self.memory_size, dtype=torch.int64))
        self.has_been_filled, self.queue_idx = False, 0

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Indices | None = None,
        enqueue_mask: Tensor | None = None,
    ) -> Any:
        """Store the batch and compute the loss.

        Args:
            embeddings: The embeddings [B, d].
            labels: The class ids [B].
            indices_tuple: Pairs or triplets to use in addition to those of the miner. Anchors are indices into the
                batch. Positives and negatives are indices into the queue.
            enqueue_mask: The mask of the samples that are stored [B]. The loss is computed only for the other samples.
                By default, all samples are stored, and the loss is computed for all.
        """
        if indices_tuple is not None and enqueue_mask is not None:
            raise ValueError("indices_tuple and enqueue_mask cannot be combined: pass one of them")
        stored = len(embeddings) if enqueue_mask is None else int(enqueue_mask.sum())
        if stored > self.memory_size:
            raise InvalidInputError(
                f"memory_size={self.memory_size} is too small to store {stored} embeddings: increase memory_size"
            )
        labels = labels.to(embeddings.device)
        self.embedding_memory = self.embedding_memory.to(embeddings)
        self.label_memory = self.label_memory.to(labels)
        if enqueue_mask is None:
            self.add_to_memory(embeddings, labels, len(embeddings))
        else:
            enqueue_mask = enqueue_mask.to(embeddings.device)
            self.add_to_memory(embeddings[enqueue_mask], labels[enqueue_mask], stored)
            embeddings, labels = embeddings[~enqueue_mask], labels[~enqueue_mask]
        filled = self.memory_size if self.has_been_filled else self.queue_idx
        rows, row_labels = self.embedding_memory[:filled], self.label_memory[:filled]
        if len(embeddings) == 0 or filled == 0:
            return embeddings.sum() * 0  # nothing to compare: all samples were only stored, or the queue is empty
        if self.miner is None and indices_tuple is None and isinstance(self.loss, PairBased):
            own = self.curr_batch_idx if enqueue_mask is None else None
            return self.loss.against_queue(embeddings, labels, rows, row_labels, own)
        pairs = self.create_indices_tuple(
            embeddings, labels, rows, row_labels, indices_tuple, do_remove_self_comparisons=enqueue_mask is None
        )
        return self.loss(embeddings, labels, pairs, rows, row_labels)

    def create_indices_tuple(
        self,
        embeddings: Tensor,
        labels: Tensor,
        E_mem: Tensor,
        L_mem: Tensor,
        input_indices_tuple: Indices | None,
        do_remove_self_comparisons: bool,
    ) -> tuple[Tensor, ...]:
        """Return the pairs or triplets of batch and queue (E_mem, L_mem), then those in `input_indices_tuple`."""
        mine = _all_pairs if self.miner is None else self.miner
        pairs: tuple[Tensor, ...] = mine(embeddings, labels, E_mem, L_mem)
        if do_remove_self_comparisons:
            pairs = remove_self_comparisons(pairs, self.curr_batch_idx, self.memory_size)
        if input_indices_tuple is None:
            return pairs
        more = convert_to_triplets(input_indices_tuple, labels) if len(pairs) == 3 else as_pairs(input_indices_tuple)
        return tuple(torch.cat([x, y.to(x.device)]) for x, y in zip(pairs, more, strict=True))

    @torch.no_grad()
    def add_to_memory(self, embeddings: Tensor, labels: Tensor, batch_size: int) -> None:
        """Store the embeddings and labels of a batch in the queue, in place of the oldest ones."""
        start = self.queue_idx
        self.curr_batch_idx = (start + torch.arange(batch_size, device=labels.device)) % self.memory_size
        self.embedding_memory[self.curr_batch_idx] = embeddings.detach()
        self.label_memory[self.curr_batch_idx] = labels.detach()
        self.queue_idx = (start + batch_size) % self.memory_size
        self.has_been_filled = self.has_been_filled or start + batch_size >= self.memory_size


def _all_pairs(embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> tuple[Tensor, ...]:
    return get_all_pairs_indices(labels, ref_labels)


class SelfSupervisedLoss(BaseLossWrapper):
    """Use two views of each sample as a positive pair. It is called as `loss(embeddings, ref_emb)`, without labels.

    Args:
        loss: The loss, one of `supported_losses()`.
        symmetric: If True, all views in both tensors serve as anchors and as references. If False, the views in the
            first tensor are the anchors, and the views in the second tensor are the references.
        collect_stats: Accepted for compatibility. Wrappers store no statistics.
    """

    def __init__(self, loss: nn.Module, symmetric: bool = True, *, collect_stats: bool | None = None) -> None:
        super().__init__(loss, collect_stats=collect_stats)
        self.symmetric = symmetric

    @staticmethod
    def supported_losses() -> list[str]:
        return list(TWO_VIEWS)

    def forward(self, embeddings: Tensor, ref_emb: Tensor) -> Any:
        """Compute the loss of two views [B, d] of the same samples."""
        labels = torch.arange(len(embeddings), device=embeddings.device)
        if self.symmetric:
            return self.loss(torch.cat([embeddings, ref_emb]), torch.cat([labels, labels]))
        return self.loss(embeddings, labels, ref_emb=ref_emb, ref_labels=labels.clone())


class MultipleLosses(nn.Module):
    """The weighted sum of several losses.

    Args:
        losses: The losses, as a list or as a dictionary.
        miners: The miners of the losses. A list has one entry per loss, which is None for a loss without a miner. A
            dictionary may omit losses without a miner.
        weights: The weights of the losses, as a list or as a dictionary with the same keys. By default, all are 1.
    """

    def __init__(
        self,
        losses: Sequence[nn.Module] | Mapping[str, nn.Module],
        miners: Sequence[nn.Module | None] | Mapping[str, nn.Module] | None = None,
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.is_dict = isinstance(losses, Mapping)
        self.losses = nn.ModuleDict(losses) if isinstance(losses, Mapping) else nn.ModuleList(losses)
        keys: list[Any] = list(losses) if isinstance(losses, Mapping) else list(range(len(losses)))
        for name, given in (("miners", miners), ("weights", weights)):
            if given is None:
                continue
            found = list(given) if isinstance(given, Mapping) else list(range(len(given)))
            fits = set(found) <= set(keys) if name == "miners" and self.is_dict else set(found) == set(keys)
            if isinstance(given, Mapping) != self.is_dict or not fits:
                expected = f"a dictionary with the keys {keys}" if self.is_dict else f"a list of {len(keys)} entries"
                shown = f"the keys {found}" if isinstance(given, Mapping) else f"a list of {len(found)} entries"
                raise InvalidInputError(f"{name} must be {expected}, like losses, got {shown}")
        self.miners: nn.ModuleDict | nn.ModuleList | None = None
        if miners is not None:
            self.miners = nn.ModuleDict(miners) if isinstance(miners, Mapping) else nn.ModuleList(miners)  # type: ignore[arg-type]
        self.weights: Any = weights if weights is not None else dict.fromkeys(keys, 1)

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: Indices | None = None) -> Tensor:
        """Compute the sum. `indices_tuple` is passed to all losses and cannot be combined with miners."""
        if self.miners is not None and indices_tuple is not None:
            raise InvalidInputError("indices_tuple cannot be combined with miners: pass one of them")
        total: Any = 0
        items = self.losses.items() if isinstance(self.losses, nn.ModuleDict) else enumerate(self.losses)
        for key, loss in items:
            mined = indices_tuple
            if isinstance(self.miners, nn.ModuleList) or (self.miners is not None and str(key) in self.miners):
                miner = self.miners[key]  # type: ignore[index]
                mined = None if miner is None else miner(embeddings, labels)
            total = total + self.weights[key] * loss(embeddings, labels, mined)
        value: Tensor = total
        return value
