"""Errors for arguments that nearfar.compat does not support.

An unsupported argument raises an error. The only exception is `collect_stats`: classes without statistics ignore it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nearfar.spelling import suggest


class InvalidInputError(ValueError, AssertionError):
    """An error about an argument. It is also an AssertionError, the error that pytorch-metric-learning raises."""


def refusal(what: object, argument: str, value: object, cure: str = "remove it") -> ValueError:
    """Return the error for an argument that is not supported.

    `what` is the object that received the argument, or the name of that object. `cure` says what to do instead.

    >>> print(refusal("CosineSimilarity", "p", 1, "use 2"))
    CosineSimilarity: p=1 is not supported by nearfar.compat: use 2, or use pytorch_metric_learning if it supports this
    """
    name = what if isinstance(what, str) else type(what).__name__
    shown = " ".join(repr(value).split())  # without line breaks
    return ValueError(
        f"{name}: {argument}={shown} is not supported by nearfar.compat: {cure}, "
        "or use pytorch_metric_learning if it supports this"
    )


def refuse(what: object, options: Mapping[str, object], *, but: Iterable[str]) -> None:
    """Raise an error if `options` contains an argument that is not in `but`."""
    for argument, value in options.items():
        if argument not in but:
            raise TypeError(f"{type(what).__name__} has no argument {argument}, got {value!r}{suggest(argument, but)}")


def refuse_indices(what: object, indices: object) -> None:
    """Raise an error if a miner's output was passed to a loss that does not support it."""
    if indices is not None:
        raise ValueError(f"{type(what).__name__}: indices_tuple is not supported: remove it")


def absent(module: str, name: str, available: Iterable[str]) -> AttributeError:
    """Return the error for a name that a module of nearfar.compat does not have."""
    names = sorted(available)
    return AttributeError(
        f"nearfar.compat.{module} has no {name!r}{suggest(name, names)} It has {', '.join(names)}: use "
        f"pytorch_metric_learning.{module} for others"
    )
