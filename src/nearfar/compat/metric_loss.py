"""The base class of all losses. It combines a distance, a reducer, and a regularizer of the embeddings."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearfar.compat.arguments import refusal, refuse
from nearfar.compat.distances import BaseDistance, LpDistance
from nearfar.compat.distances import checked as checked_distance
from nearfar.compat.indices import Indices
from nearfar.compat.reducer_base import BaseReducer
from nearfar.compat.reducers import DoNothingReducer, MeanReducer, MultipleReducers
from nearfar.compat.regularizers import BaseRegularizer
from nearfar.compat.utils.common_functions import Recorded

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nearfar.compat.options import LossOptions

OPTIONS = ("distance", "reducer", "embedding_regularizer", "embedding_reg_weight", "collect_stats")


class BaseMetricLossFunction(Recorded):
    """Base class of losses.

    To write a loss, implement `compute_loss` in a subclass. Override `get_default_distance`, `get_default_reducer` and
    `_sub_loss_names` where the defaults do not fit.
    """

    only_distance = False  # whether only the default distance is supported
    reducer_kinds: tuple[type[BaseReducer], ...] | None = None  # the supported reducers; None for all

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        super().__init__(collect_stats=options.get("collect_stats"))
        refuse(self, options, but=OPTIONS)
        default = self.get_default_distance()
        self.distance = checked_distance(self, options.get("distance"), default, only=self.only_distance)
        self.embedding_regularizer = checked_regularizer(
            self, "embedding_regularizer", options.get("embedding_regularizer")
        )
        self.embedding_reg_weight = options.get("embedding_reg_weight", 1)
        self.reducer = self.choose_reducer(options.get("reducer"))

    def get_default_distance(self) -> BaseDistance:
        """Return the distance that is used unless the user passes one."""
        return LpDistance()

    def get_default_reducer(self) -> BaseReducer:
        """Return the reducer that is used unless the user passes one."""
        return MeanReducer()

    def _sub_loss_names(self) -> list[str]:
        return ["loss"]

    def sub_loss_names(self) -> list[str]:
        """Return the names of the entries in the dictionary that `compute_loss` returns."""
        return self._sub_loss_names()

    def choose_reducer(self, reducer: BaseReducer | None) -> BaseReducer:
        """Return the reducer for the loss dictionary. Each entry gets its own copy of `reducer`, or of the default.

        MultipleReducers and DoNothingReducer reduce the whole dictionary. They are returned unchanged.
        """
        names = self.sub_loss_names()
        if reducer is not None and not isinstance(reducer, BaseReducer):
            raise refusal(self, "reducer", reducer, "use one from nearfar.compat.reducers")
        kinds = self.reducer_kinds
        if reducer is not None and kinds and not isinstance(reducer, kinds):
            raise refusal(self, "reducer", reducer, f"use {' or '.join(kind.__name__ for kind in kinds)}")
        if isinstance(reducer, MultipleReducers | DoNothingReducer):
            return reducer
        copies = [self.get_default_reducer() if reducer is None else copy.deepcopy(reducer) for _ in names]
        return copies[0] if len(names) == 1 else MultipleReducers(dict(zip(names, copies, strict=True)))

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Indices | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Any:
        """Compute the loss. `PairBased.forward` describes the arguments."""
        check_rows("labels", labels, embeddings)
        labels = None if labels is None else labels.to(embeddings.device)
        if ref_emb is None:
            ref_emb, ref_labels = embeddings, labels
        elif ref_labels is not None:
            check_rows("ref_labels", ref_labels, ref_emb)
            ref_labels = ref_labels.to(ref_emb.device)
        loss_dict = self.compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return self.regularize(self.reducer(loss_dict, embeddings, labels), embeddings)

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: Indices | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, Any]:
        """Return the loss dictionary (see `reducer_base`). If no references are given, `ref_emb` is `embeddings`."""
        raise NotImplementedError

    def zero_loss(self) -> dict[str, Any]:
        """Return an entry of the loss dictionary with the value 0."""
        return {"losses": 0, "indices": None, "reduction_type": "already_reduced"}

    def zero_losses(self) -> dict[str, Any]:
        """Return a loss dictionary whose values are all 0."""
        return {name: self.zero_loss() for name in self.sub_loss_names()}

    def regularize(self, value: Any, embeddings: Tensor) -> Any:
        """Add the regularizer of the embeddings to the loss."""
        return add_regularizer(
            value, "embedding_reg_loss", self.embedding_regularizer, self.embedding_reg_weight, embeddings
        )

    def extra_repr(self) -> str:
        return f"distance={self.distance!r}, reducer={self.reducer!r}"


def add_regularizer(value: Any, name: str, regularizer: BaseRegularizer | None, weight: float, vectors: Tensor) -> Any:
    """Add weight * regularizer(vectors) to a loss, or add it as an entry to a loss dictionary."""
    if regularizer is None:
        return value
    term = regularizer(vectors) * weight
    if isinstance(value, dict):
        return value | {name: {"losses": term, "indices": None, "reduction_type": "already_reduced"}}
    return value + term.to(value.dtype)


def checked_regularizer(what: object, argument: str, regularizer: object) -> BaseRegularizer | None:
    """Return the regularizer. Raise an error if it is not from nearfar.compat."""
    if regularizer is not None and not isinstance(regularizer, BaseRegularizer):
        raise refusal(what, argument, regularizer, "use one from nearfar.compat.regularizers")
    return regularizer


def check_rows(name: str, labels: Tensor | None, embeddings: Tensor) -> None:
    """Raise an error unless there is one label per embedding."""
    if labels is not None and (labels.ndim != 1 or len(labels) != len(embeddings)):
        raise ValueError(
            f"{name} must have shape [{len(embeddings)}], one label per embedding, got shape {list(labels.shape)}"
        )


def comparable_labels(labels: Tensor, *others: Tensor | None) -> Tensor:
    """Return one integer per label. Two integers are equal if and only if their labels are equal.

    Floating-point labels are converted to float64, and the bits are read as integers. `others` are tensors of labels
    that the caller compares with these labels. If one of them is floating point, integer labels are converted too.
    """
    if any(each is not None and each.is_floating_point() for each in (labels, *others)):
        return (labels.double() + 0.0).view(torch.int64)  # adding 0.0 maps -0.0 to 0.0
    return labels
