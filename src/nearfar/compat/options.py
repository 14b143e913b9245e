"""Types of the arguments that all losses share, for type checkers. Unsupported values raise an error at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from torch import Tensor

from nearfar.compat.distances import BaseDistance
from nearfar.compat.reducer_base import BaseReducer
from nearfar.compat.regularizers import BaseRegularizer


class LossOptions(TypedDict, total=False):
    """The arguments that all losses share."""

    distance: BaseDistance | None
    reducer: BaseReducer | None
    embedding_regularizer: BaseRegularizer | None
    embedding_reg_weight: float
    collect_stats: bool | None


class ProxyOptions(LossOptions, total=False):
    """The arguments that all losses with proxies share. `weight_init_func` initializes the proxies in place."""

    weight_init_func: Callable[[Tensor], object] | None
    weight_regularizer: BaseRegularizer | None
    weight_reg_weight: float
