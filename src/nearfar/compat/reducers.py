"""Reducers: functions that reduce the losses of pairs, triplets or samples to a scalar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nearfar.compat.arguments import absent, refusal
from nearfar.ops.pairs import ratio

__all__ = ["AvgNonZeroReducer", "DivisorReducer", "MeanReducer", "SumReducer", "ThresholdReducer"]


class Reducer:
    """Base class of reducers.

    `counts` has the shape of the losses. It is either a mask of the losses that count, or the number of times that each
    loss counts.
    """

    def __call__(self, losses: Tensor, counts: Tensor) -> Tensor:
        """Reduce the losses to a scalar. The result is 0, with zero gradients, if no loss counts."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MeanReducer(Reducer):
    """The mean of the losses."""

    def __call__(self, losses: Tensor, counts: Tensor) -> Tensor:
        total = SumReducer()(losses, counts)
        return ratio(total, torch.count_nonzero(counts) if counts.dtype == torch.bool else counts.sum())


class SumReducer(Reducer):
    """The sum of the losses."""

    def __call__(self, losses: Tensor, counts: Tensor) -> Tensor:
        if counts.dtype == torch.bool:
            return torch.where(counts, losses, 0.0).sum()
        return (torch.where(counts > 0, losses, 0.0) * counts).sum()


class ThresholdReducer(Reducer):
    """The mean of the losses above `low` and below `high`."""

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        if low is None and high is None:
            raise ValueError("ThresholdReducer: low and high are both None: pass at least one")
        self.low, self.high = low, high

    def __call__(self, losses: Tensor, counts: Tensor) -> Tensor:
        within, fixed = counts.bool(), losses.detach()
        if self.low is not None:
            within = within & (fixed > self.low)
        if self.high is not None:
            within = within & (fixed < self.high)
        return MeanReducer()(losses, within if counts.dtype == torch.bool else torch.where(within, counts, 0.0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(low={self.low}, high={self.high})"


class AvgNonZeroReducer(ThresholdReducer):
    """The mean of the losses above 0."""

    def __init__(self) -> None:
        super().__init__(low=0)

    def __repr__(self) -> str:
        return "AvgNonZeroReducer()"


class DivisorReducer(Reducer):
    """The sum of the losses, divided by a number that the loss defines.

    Only MarginLoss and ProxyAnchorLoss accept this reducer, and they compute the value themselves.
    """


def checked(
    what: object, reducer: Reducer | None, default: Reducer, kinds: tuple[type[Reducer], ...] | None = None
) -> Reducer:
    """Return the reducer, or the default if it is None. Raise an error if the loss does not support it.

    Args:
        what: The loss, for the error message.
        reducer: The reducer that the user passed.
        default: The default of the loss.
        kinds: The supported classes, by default all except DivisorReducer.
    """
    if reducer is None:
        return default
    if not isinstance(reducer, Reducer):
        raise refusal(what, "reducer", reducer, "use one from nearfar.compat.reducers")
    kinds = kinds or (MeanReducer, SumReducer, ThresholdReducer)
    if not isinstance(reducer, kinds):
        raise refusal(what, "reducer", reducer, f"use {' or '.join(kind.__name__ for kind in kinds)}")
    return reducer


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("reducers", name, __all__)
