"""Distributionally robust optimization (DRO): weight pairs by the worst case within an uncertainty set.

>>> names()
['chi2', 'kl', 'kl-g', 'max', 'mean', 'topk', 'topk-pn']
>>> create("kl", gamma=0.3)
KL(gamma=0.3, weights='softmax_nonzero', truncate=None)
"""

from __future__ import annotations

from typing import Any

from nearfar.losses.dro.chi_square import ChiSquare
from nearfar.losses.dro.grouped_kl import GroupedKL
from nearfar.losses.dro.kl import KL
from nearfar.losses.dro.loss import DROLoss
from nearfar.losses.dro.mean_max import Max, Mean
from nearfar.losses.dro.top_k import TopK, TopKPN
from nearfar.losses.dro.uncertainty import UNCERTAINTY_SETS, SparseSet, UncertaintySet, register


def names() -> list[str]:
    """Return the names of all uncertainty sets, sorted."""
    return UNCERTAINTY_SETS.names()


def create(name: str, **options: Any) -> UncertaintySet:
    """Create an uncertainty set by its name.

    Raises:
        ValueError: If the name or an option is unknown. The message suggests a similar one.
    """
    created: UncertaintySet = UNCERTAINTY_SETS.create(name, **options)
    return created


__all__ = [
    "KL",
    "ChiSquare",
    "DROLoss",
    "GroupedKL",
    "Max",
    "Mean",
    "SparseSet",
    "TopK",
    "TopKPN",
    "UncertaintySet",
    "create",
    "names",
    "register",
]
