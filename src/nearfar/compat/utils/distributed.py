"""Wrappers that compare the samples of a batch with those of all processes."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.compat.base_miner import BaseMiner
from nearfar.compat.indices import Indices
from nearfar.compat.metric_loss import BaseMetricLossFunction
from nearfar.compat.utils.loss_and_miner_utils import get_all_pairs_indices, remove_self_comparisons
from nearfar.compat.wrappers import CrossBatchMemory


def is_distributed() -> bool:
    """Return whether a process group is initialized."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def gather(x: Tensor) -> Tensor:
    """Concatenate the tensors of all processes. The tensor of this process comes first; only it carries gradients."""
    parts = [torch.empty_like(x) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, x.detach().contiguous())
    own = torch.distributed.get_rank()
    return torch.cat([x, *parts[:own], *parts[own + 1 :]])


def gather_optional(x: Tensor | None, like: Tensor) -> Tensor | None:
    """Move x to the device of `like` and call `gather`. Return None if x is None."""
    return None if x is None else gather(x.to(like.device))


class DistributedLossWrapper(nn.Module):
    """Compute a loss over the samples of all processes, multiplied by the number of processes.

    Each process computes gradients only through its own samples, and DistributedDataParallel averages the gradients of
    the processes. Because of the factor, this average is the gradient of the loss over all samples.

    Args:
        loss: The loss. All processes must have batches of the same size.
        efficient: If True, only the samples of this process are anchors. This needs less memory, but the gradient is no
            longer that of the loss over all samples, because samples get no gradient from anchors of other processes.
    """

    def __init__(self, loss: nn.Module, efficient: bool = False) -> None:
        super().__init__()
        if not isinstance(loss, BaseMetricLossFunction | CrossBatchMemory):
            raise TypeError(f"loss must be a loss of nearfar.compat, got {type(loss).__name__}")
        if isinstance(loss, CrossBatchMemory) and efficient:
            raise ValueError("efficient=True is not supported for CrossBatchMemory: use efficient=False")
        self.loss, self.efficient = loss, efficient

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Indices | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        enqueue_mask: Tensor | None = None,
    ) -> Any:
        """Compute the loss. `indices_tuple` indexes the samples of all processes in the order of `gather`."""
        memory = isinstance(self.loss, CrossBatchMemory)
        if memory and (ref_emb is not None or ref_labels is not None):
            raise ValueError("ref_emb and ref_labels are not supported with CrossBatchMemory: remove them")
        more = (enqueue_mask,) if memory else (ref_emb, ref_labels)
        if not is_distributed():
            warnings.warn("DistributedLossWrapper is used without a process group: it has no effect", stacklevel=2)
            return self.loss(embeddings, labels, indices_tuple, *more)
        processes = torch.distributed.get_world_size()
        if processes <= 1:
            return self.loss(embeddings, labels, indices_tuple, *more)
        every, every_labels = gather(embeddings), gather_optional(labels, embeddings)
        refs, every_more = None, tuple(gather_optional(each, embeddings) for each in more)
        if not self.efficient:
            return self.loss(every, every_labels, indices_tuple, *every_more) * processes
        refs, ref_ids = every_more if ref_emb is not None else (every, every_labels)
        if indices_tuple is None and labels is not None and ref_ids is not None:
            indices_tuple = without_itself(get_all_pairs_indices(labels.to(ref_ids.device), ref_ids), labels, ref_ids)
        return self.loss(embeddings, labels, indices_tuple, refs, ref_ids) * processes


class DistributedMinerWrapper(nn.Module):
    """Select pairs or triplets among the samples of all processes.

    Args:
        miner: The miner.
        efficient: If True, only the samples of this process are anchors.
    """

    def __init__(self, miner: BaseMiner, efficient: bool = False) -> None:
        super().__init__()
        if not isinstance(miner, BaseMiner):
            raise TypeError(f"miner must be a miner of nearfar.compat, got {type(miner).__name__}")
        self.miner, self.efficient = miner, efficient

    def forward(
        self, emb: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Any:
        """Return indices into the samples of all processes, in the order of `gather`."""
        if torch.distributed.get_world_size() <= 1:
            return self.miner(emb, labels, ref_emb, ref_labels)
        labels = labels.to(emb.device)
        every, every_labels = gather(emb), gather(labels)
        refs, ref_ids = gather_optional(ref_emb, emb), gather_optional(ref_labels, emb)
        if not self.efficient:
            return self.miner(every, every_labels, refs, ref_ids)
        refs, ref_ids = (every, every_labels) if refs is None or ref_ids is None else (refs, ref_ids)
        return without_itself(self.miner(emb, labels, refs, ref_ids), labels, ref_ids)


def without_itself(pairs: Indices, labels: Tensor, ref_labels: Tensor) -> tuple[Tensor, ...]:
    """Remove the pairs of a sample with itself from `pairs`. The references must begin with the batch."""
    return remove_self_comparisons(pairs, torch.arange(len(labels), device=labels.device), len(ref_labels))
