"""Pacing: how much each sample counts. One file a rule; `create` makes a pacer by its name.

>>> pacer = create("self-paced", samples=100, classes=5, mu=0.0)
>>> pacer.weights.shape, pacer.wants_update(0)
(torch.Size([100]), True)
"""

from __future__ import annotations

import inspect
from typing import Any

from nearfar.pacing.pacer import Pacer
from nearfar.pacing.point_wise import PointWise
from nearfar.pacing.prism import PRISM
from nearfar.pacing.self_paced import SelfPaced
from nearfar.validation import nearest

_PACERS: dict[str, type[Pacer]] = {each.name: each for each in (PointWise, PRISM, SelfPaced)}


def names() -> list[str]:
    """The names that `create` knows."""
    return sorted(_PACERS)


def create(name: str, *, samples: int, classes: int, **options: Any) -> Pacer:
    """Make a pacer by its name; an unknown name or option is a ValueError that suggests the nearest.

    >>> create("prism", samples=9, classes=2, noise_rat=0.2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: pacer 'prism' has no option 'noise_rat'; did you mean 'noise_rate'? Options: noise_rate, ...
    """
    if name not in _PACERS:
        raise ValueError(f"unknown pacer {name!r}{nearest(name, _PACERS)} Known: {', '.join(names())}")
    make = _PACERS[name]
    known = [key for key in inspect.signature(make).parameters if key not in ("samples", "classes")]
    for option in options:
        if option not in known:
            raise ValueError(
                f"pacer {name!r} has no option {option!r}{nearest(option, known)} Options: {', '.join(known)}"
            )
    return make(samples=samples, classes=classes, **options)


__all__ = ["PRISM", "Pacer", "PointWise", "SelfPaced", "create", "names"]
