"""The base classes of reducers, and masked sums and means.

A reducer is called as `reducer(loss_dict, embeddings, labels)`. Each entry of `loss_dict` has "losses" [N], their
"indices" (a tensor of samples, or a tuple of tensors for pairs and triplets) and a "reduction_type": "element",
"pos_pair", "neg_pair", "triplet", or "already_reduced" for a scalar.

The losses of nearfar.compat keep pairs as a matrix and a mask. The reducers with a method `masked` reduce it directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nearfar.compat.utils.common_functions import Recorded
from nearfar.ops.pairs import ratio

LossDict = Mapping[str, Mapping[str, Any]]


class BaseReducer(Recorded):
    """Base class of reducers. A subclass implements the four methods `..._reduction` that it supports."""

    def forward(self, loss_dict: LossDict, embeddings: Tensor, labels: Tensor | None) -> Any:
        """Reduce a dictionary with one entry to a scalar."""
        if len(loss_dict) != 1:
            raise ValueError(
                f"{type(self).__name__} reduces one loss, got {', '.join(loss_dict)}: use MultipleReducers"
            )
        (info,) = loss_dict.values()
        losses = info["losses"]
        if not isinstance(losses, Tensor):
            return embeddings.sum() * 0 + losses
        if self.collect_stats:
            self.losses_size = losses.numel()
        if info["reduction_type"] == "already_reduced":
            return losses.squeeze()
        reduce = getattr(self, f"{info['reduction_type']}_reduction")
        return reduce(losses, info["indices"], embeddings, labels, **self.more_arguments(info))

    def more_arguments(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return further arguments of the methods `..._reduction` from an entry of the dictionary."""
        return {}

    def element_reduction(self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any) -> Any:
        """Reduce the losses of samples."""
        raise NotImplementedError(f"{type(self).__name__} does not support losses of samples")

    def pos_pair_reduction(self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any) -> Any:
        """Reduce the losses of positive pairs."""
        raise NotImplementedError(f"{type(self).__name__} does not support losses of pairs")

    def neg_pair_reduction(self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any) -> Any:
        """Reduce the losses of negative pairs."""
        raise NotImplementedError(f"{type(self).__name__} does not support losses of pairs")

    def triplet_reduction(self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any) -> Any:
        """Reduce the losses of triplets."""
        raise NotImplementedError(f"{type(self).__name__} does not support losses of triplets")

    def zero_loss(self, embeddings: Tensor) -> Tensor:
        """Return 0 with a graph."""
        return embeddings.sum() * 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MaskedReducer(BaseReducer):
    """Base class of reducers that reduce a matrix of losses with a mask, without listing the pairs."""

    def masked(self, losses: Tensor, counts: Tensor) -> Tensor:
        """Reduce the losses to a scalar. The result is 0, with zero gradients, if no loss counts.

        `counts` has the shape of the losses. It is either a mask of the losses that count, or the number of times that
        each loss counts.
        """
        raise NotImplementedError

    def element_reduction(self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any) -> Tensor:
        return self.masked(losses, torch.ones_like(losses, dtype=torch.bool))

    pos_pair_reduction = neg_pair_reduction = triplet_reduction = element_reduction


def masked_sum(losses: Tensor, counts: Tensor) -> Tensor:
    """Compute the sum of the losses in a mask, or of the losses times their counts."""
    if counts.dtype == torch.bool:
        return torch.where(counts, losses, 0.0).sum()
    return (torch.where(counts > 0, losses, 0.0) * counts).sum()


def masked_mean(losses: Tensor, counts: Tensor) -> Tensor:
    """Compute the mean of the losses in a mask, or weighted by their counts; 0 if no loss counts."""
    total = masked_sum(losses, counts)
    return ratio(total, torch.count_nonzero(counts) if counts.dtype == torch.bool else counts.sum())
