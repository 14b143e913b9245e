"""Reducers: from the losses of pairs, triplets or samples to one number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nearfar.compat.arguments import absent, refusal
from nearfar.ops.pairs import ratio

__all__ = ["AvgNonZeroReducer", "DivisorReducer", "MeanReducer", "SumReducer", "ThresholdReducer"]


class Reducer:
    """`each` (the shape of the losses) says how often a loss counts: a mask, or numbers; 0 is not there."""

    def __call__(self, losses: Tensor, each: Tensor) -> Tensor:
        """One number; 0 with a graph where nothing counts."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MeanReducer(Reducer):
    """The mean."""

    def __call__(self, losses: Tensor, each: Tensor) -> Tensor:
        total = SumReducer()(losses, each)
        return ratio(total, torch.count_nonzero(each) if each.dtype == torch.bool else each.sum())


class SumReducer(Reducer):
    """The sum."""

    def __call__(self, losses: Tensor, each: Tensor) -> Tensor:
        if each.dtype == torch.bool:
            return torch.where(each, losses, 0.0).sum()
        return (torch.where(each > 0, losses, 0.0) * each).sum()


class ThresholdReducer(Reducer):
    """The mean of the losses above `low` and below `high`."""

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        if low is None and high is None:
            raise ValueError("ThresholdReducer: low and high are both None: give at least one")
        self.low, self.high = low, high

    def __call__(self, losses: Tensor, each: Tensor) -> Tensor:
        within, fixed = each.bool(), losses.detach()
        if self.low is not None:
            within = within & (fixed > self.low)
        if self.high is not None:
            within = within & (fixed < self.high)
        return MeanReducer()(losses, within if each.dtype == torch.bool else torch.where(within, each, 0.0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(low={self.low}, high={self.high})"


class AvgNonZeroReducer(ThresholdReducer):
    """The mean of the losses above 0."""

    def __init__(self) -> None:
        super().__init__(low=0)

    def __repr__(self) -> str:
        return "AvgNonZeroReducer()"


class DivisorReducer(Reducer):
    """The sum over a divisor that the loss names: MarginLoss's and ProxyAnchorLoss's own way."""


def checked(
    what: object, reducer: Reducer | None, default: Reducer, kinds: tuple[type[Reducer], ...] | None = None
) -> Reducer:
    """The reducer, or the default of a loss; one that it cannot take is an error."""
    if reducer is None:
        return default
    if not isinstance(reducer, Reducer):
        raise refusal(what, "reducer", reducer, "take it from nearfar.compat.reducers")
    kinds = kinds or (MeanReducer, SumReducer, ThresholdReducer)
    if not isinstance(reducer, kinds):
        raise refusal(what, "reducer", reducer, f"use {' or '.join(each.__name__ for each in kinds)}")
    return reducer


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("reducers", name, __all__)
