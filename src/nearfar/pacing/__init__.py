"""Pacers: sample weights for training that reduce the influence of samples whose label is probably wrong.

>>> pacer = create("self-paced", samples=100, classes=5, mu=0.0)
>>> pacer.weights.shape, pacer.should_update(0)
(torch.Size([100]), True)
"""

from __future__ import annotations

import inspect
from typing import Any

from nearfar.pacing.pacer import PACERS, Pacer, register
from nearfar.pacing.point_wise import PointWise
from nearfar.pacing.prism import PRISM
from nearfar.pacing.self_paced import SelfPaced


def names() -> list[str]:
    """Return the names of all registered pacers."""
    return PACERS.names()


def options(name: str) -> dict[str, inspect.Parameter]:
    """Return the options of a pacer: the settings that it reads from `pacing` in a configuration."""
    return PACERS.options(name, supplied=("samples", "classes"))


def create(name: str, *, samples: int, classes: int, **options: Any) -> Pacer:
    """Create a pacer by its name.

    Args:
        name: A registered name; see `names`.
        samples: Number of training samples.
        classes: Number of training classes.
        options: Options of the pacer; see the function `options`.

    Raises:
        ValueError: If the name or an option is unknown. The message suggests a similar one.

    >>> create("prism", samples=9, classes=2, noise_rat=0.2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: pacer 'prism' has no option 'noise_rat'; did you mean 'noise_rate'? Options: noise_rate, ...
    """
    pacer: Pacer = PACERS.create(name, supplied={"samples": samples, "classes": classes}, **options)
    return pacer


__all__ = ["PRISM", "Pacer", "PointWise", "SelfPaced", "create", "names", "options", "register"]
