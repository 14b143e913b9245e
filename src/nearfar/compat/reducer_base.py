"""The base classes of reducers, and masked sums and means.

A reducer is called as `reducer(loss_dict, embeddings, labels)`. Each entry of `loss_dict` is a dictionary with
three keys: the "losses" [N], their "indices" (one tensor for samples, a tuple of tensors for pairs and triplets) and
the "reduction_type", which is "element", "pos_pair", "neg_pair", "triplet", or "already_reduced" for a scalar.

The losses of nearfar.compat store the losses of pairs as a matrix with a mask. Reducers with a method `masked` reduce
the matrix directly.
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
    """Base class of reducers. A subclass implements one or more of the four `..._reduction` methods."""

    def forward(self, loss_dict: LossDict, embeddings: Tensor, labels: Tensor | None) -> Any:
        """Reduce a dictionary with one entry to a scalar."""
        if len(loss_dict) != 1:
            raise ValueError(
                f"{type(self).__name__} reduces only one loss, got {', '.join(loss_dict)}: use MultipleReducers"
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
        """Return extra keyword arguments for the `..._reduction` methods from an entry of the loss dictionary.

        By default, there are none.
        """
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
        """Return 0 as a tensor that depends on the embeddings, so that backward() works."""
        return embeddings.sum() * 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MaskedReducer(BaseReducer):
    """Base class of reducers that reduce a matrix of losses with a mask, without listing the pairs."""

    def masked(self, losses: Tensor, counts: Tensor) -> Tensor:
        """Reduce the losses to a scalar. If `counts` includes no loss, the result and its gradients are 0.

        `counts` has the shape of the losses. It is either a mask of the losses to include, or the number of times that
        each loss counts.
        """
        raise NotImplementedError

    def element_reduction(self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any) -> Tensor:
        return self.masked(losses, torch.ones_like(losses, dtype=torch.bool))

    pos_pair_reduction = neg_pair_reduction = triplet_reduction = element_reduction


def masked_sum(losses: Tensor, counts: Tensor) -> Tensor:
    """Sum the losses where the mask `counts` is True. If `counts` holds numbers, sum the losses times these numbers."""
    if counts.dtype == torch.bool:
        return torch.where(counts, losses, 0.0).sum()
    return (torch.where(counts > 0, losses, 0.0) * counts).sum()


def masked_mean(losses: Tensor, counts: Tensor) -> Tensor:
    """Average the losses where the mask `counts` is True. If `counts` holds numbers, use them as weights.

    If `counts` is all False or all zero, return 0.
    """
    total = masked_sum(losses, counts)
    return ratio(total, torch.count_nonzero(counts) if counts.dtype == torch.bool else counts.sum())
