"""Reducers: modules that reduce the losses of pairs, triplets or samples to a scalar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nearfar.compat.arguments import absent
from nearfar.compat.reducer_base import BaseReducer, LossDict, MaskedReducer, masked_mean, masked_sum
from nearfar.ops.pairs import ratio

__all__ = [
    "AvgNonZeroReducer",
    "BaseReducer",
    "ClassWeightedReducer",
    "DivisorReducer",
    "DoNothingReducer",
    "MeanReducer",
    "MultipleReducers",
    "PerAnchorReducer",
    "SumReducer",
    "ThresholdReducer",
]


class MeanReducer(MaskedReducer):
    """The mean of the losses."""

    def masked(self, losses: Tensor, counts: Tensor) -> Tensor:
        return masked_mean(losses, counts)

    def element_reduction(self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any) -> Tensor:
        return losses.mean() if losses.numel() else self.zero_loss(embeddings)

    pos_pair_reduction = neg_pair_reduction = triplet_reduction = element_reduction


class SumReducer(MaskedReducer):
    """The sum of the losses."""

    def masked(self, losses: Tensor, counts: Tensor) -> Tensor:
        return masked_sum(losses, counts)


class ThresholdReducer(MaskedReducer):
    """The mean of the losses above `low` and below `high`."""

    def __init__(
        self, low: float | None = None, high: float | None = None, *, collect_stats: bool | None = None
    ) -> None:
        super().__init__(collect_stats=collect_stats)
        if low is None and high is None:
            raise ValueError("ThresholdReducer: low and high are both None: pass at least one")
        self.low, self.high = low, high

    def within(self, losses: Tensor) -> Tensor:
        """Return the mask of the losses between the thresholds."""
        fixed = losses.detach()
        mask = torch.ones_like(fixed, dtype=torch.bool) if self.low is None else fixed > self.low
        return mask if self.high is None else mask & (fixed < self.high)

    def masked(self, losses: Tensor, counts: Tensor) -> Tensor:
        within = counts.bool() & self.within(losses)
        if self.collect_stats:
            self.num_past_filter = int(within.sum())
        return masked_mean(losses, within if counts.dtype == torch.bool else torch.where(within, counts, 0.0))

    def element_reduction(self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any) -> Tensor:
        within = losses[self.within(losses)]
        if self.collect_stats:
            self.num_past_filter = len(within)
        return within.mean() if len(within) else self.zero_loss(embeddings)

    pos_pair_reduction = neg_pair_reduction = triplet_reduction = element_reduction

    def __repr__(self) -> str:
        return f"{type(self).__name__}(low={self.low}, high={self.high})"


class AvgNonZeroReducer(ThresholdReducer):
    """The mean of the losses above 0."""

    def __init__(self, *, collect_stats: bool | None = None) -> None:
        super().__init__(low=0, collect_stats=collect_stats)

    def __repr__(self) -> str:
        return "AvgNonZeroReducer()"


class DivisorReducer(BaseReducer):
    """The sum of the losses, divided by the divisor. Each entry of the loss dictionary has a key "divisor"."""

    def more_arguments(self, info: Mapping[str, Any]) -> dict[str, Any]:
        return {"divisor": info["divisor"]}

    def element_reduction(
        self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any, divisor: Tensor | float = 1
    ) -> Tensor:
        return ratio(losses.sum(), torch.as_tensor(divisor, device=losses.device))

    pos_pair_reduction = neg_pair_reduction = triplet_reduction = element_reduction


class PerAnchorReducer(BaseReducer):
    """Aggregate the losses of the pairs of each anchor, then reduce the results of all anchors.

    Args:
        reducer: The reducer for the anchors, by default the mean. An anchor without pairs has the loss 0.
        aggregation_func: A function that takes the matrix of losses, with one row per anchor and 0 where there is no
            pair, and the number of pairs in each row. It returns one loss per row. The default is the mean over the
            pairs.
        collect_stats: Whether to store statistics.
    """

    def __init__(
        self,
        reducer: BaseReducer | None = None,
        aggregation_func: Callable[[Tensor, Tensor], Tensor] | None = None,
        *,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(collect_stats=collect_stats)
        self.reducer = MeanReducer() if reducer is None else reducer
        self.aggregation_func = row_means if aggregation_func is None else aggregation_func

    def element_reduction(self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any) -> Any:
        entry = {"losses": losses, "indices": loss_indices, "reduction_type": "element"}
        return self.reducer({"loss": entry}, embeddings, labels)

    def pos_pair_reduction(self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any) -> Any:
        anchors, others = (index.to(losses.device) for index in loss_indices)
        columns = max(len(embeddings), int(others.max()) + 1 if len(others) else 0)
        matrix = losses.new_zeros(len(embeddings), columns).index_put((anchors, others), losses)
        has = torch.zeros(matrix.shape, dtype=torch.bool, device=losses.device)
        has[anchors, others] = True
        rows = torch.arange(len(embeddings), device=losses.device)
        return self.element_reduction(self.aggregation_func(matrix, has.sum(1)), rows, embeddings, labels)

    neg_pair_reduction = pos_pair_reduction


class ClassWeightedReducer(BaseReducer):
    """The mean of the losses, each multiplied by the weight of the class of its anchor.

    Args:
        weights: The weights of the classes [C].
        collect_stats: Whether to store statistics.
    """

    def __init__(self, weights: Tensor, *, collect_stats: bool | None = None) -> None:
        super().__init__(collect_stats=collect_stats)
        self.weights = weights

    def element_reduction(self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Any) -> Tensor:
        anchors = loss_indices if isinstance(loss_indices, Tensor) else loss_indices[0]
        weights = self.weights.to(losses)[labels.to(losses.device).long()[anchors.to(losses.device)]]
        return (losses * weights).mean() if losses.numel() else self.zero_loss(embeddings)

    pos_pair_reduction = neg_pair_reduction = triplet_reduction = element_reduction


class DoNothingReducer(BaseReducer):
    """Return the loss dictionary unchanged."""

    def forward(self, loss_dict: LossDict, embeddings: Tensor, labels: Tensor | None) -> LossDict:
        return loss_dict


class MultipleReducers(BaseReducer):
    """Reduce each entry of a loss dictionary with its own reducer, and add the results.

    Args:
        reducers: A mapping from names of losses to their reducers.
        default_reducer: The reducer for all other losses, by default the mean.
        collect_stats: Whether to store statistics.
    """

    def __init__(
        self,
        reducers: Mapping[str, BaseReducer],
        default_reducer: BaseReducer | None = None,
        *,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(collect_stats=collect_stats)
        self.reducers = nn.ModuleDict(reducers)
        self.default_reducer = MeanReducer() if default_reducer is None else default_reducer

    def of(self, name: str) -> BaseReducer:
        """Return the reducer for the loss with this name."""
        reducer = self.reducers[name] if name in self.reducers else self.default_reducer  # noqa: SIM401 - ModuleDict has no get
        assert isinstance(reducer, BaseReducer)
        return reducer

    def forward(self, loss_dict: LossDict, embeddings: Tensor, labels: Tensor | None) -> Tensor:
        values = [self.of(name)({name: info}, embeddings, labels) for name, info in loss_dict.items()]
        return self.sub_loss_reduction(torch.stack(values), embeddings, labels)

    def sub_loss_reduction(
        self, sub_losses: Tensor, embeddings: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        """Combine the reduced losses [n]. The default is the sum."""
        return sub_losses.sum()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name!r}: {reducer!r}" for name, reducer in self.reducers.items())
        return f"MultipleReducers({{{shown}}})"


def row_means(matrix: Tensor, counts: Tensor) -> Tensor:
    """Divide the sum of each row of a matrix by the row's entry in `counts`. The result is 0 where that entry is 0."""
    return ratio(matrix.sum(1), counts)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("reducers", name, __all__)
