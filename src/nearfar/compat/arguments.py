"""Errors for what nearfar.compat does not do: the argument, its value, and the cure; nothing is ever ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nearfar.spelling import suggest

REFUSED = ("embedding_regularizer", "weight_regularizer", "collect_stats")
WITHOUT_EFFECT = ("embedding_reg_weight", "weight_reg_weight")  # they weight a regularizer, and there is none


def refusal(what: object, argument: str, value: object, cure: str = "leave it out") -> ValueError:
    """The error for an argument that cannot be honored.

    >>> print(refusal("TripletMarginLoss", "swap", True))
    TripletMarginLoss: swap=True is not in nearfar.compat: leave it out, or keep pytorch_metric_learning for it
    """
    name = what if isinstance(what, str) else type(what).__name__
    shown = " ".join(repr(value).split())  # on one line, whatever it is
    return ValueError(
        f"{name}: {argument}={shown} is not in nearfar.compat: {cure}, or keep pytorch_metric_learning for it"
    )


def refuse(what: object, options: Mapping[str, object], *, but: Iterable[str]) -> None:
    """Refuse arguments `but` these: unknown ones, and those that are known there, unless they are off."""
    for argument, value in options.items():
        if argument in but or argument in WITHOUT_EFFECT:
            continue
        if argument in REFUSED:
            if value is not None and value is not False:
                raise refusal(what, argument, value)
        else:
            raise TypeError(
                f"{type(what).__name__} has no argument {argument}, got {value!r}{suggest(argument, (*but, *REFUSED))}"
            )


def absent(module: str, name: str, there: Iterable[str]) -> AttributeError:
    """The error for a name that a module of nearfar.compat does not have."""
    known = sorted(there)
    return AttributeError(
        f"nearfar.compat.{module} has no {name!r}{suggest(name, known)} It has {', '.join(known)}: keep "
        f"pytorch_metric_learning.{module} for others"
    )
