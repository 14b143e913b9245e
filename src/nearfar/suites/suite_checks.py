"""Checks that find mistakes in a suite before its first run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nearfar.config.tree import parse_setting
from nearfar.errors import NearfarError
from nearfar.spelling import suggest
from nearfar.suites.paper import check_paper
from nearfar.suites.suite import UNTRAINED, Suite

# settings that nearfar sets for each run; a suite must not set them
FIXED = ("recipe", "data.source", "data.fingerprint", "data.folds", "data.fold", "metrics", "test", "untrained")


def check_suite(suite: Suite, where: str) -> None:
    """Raise an error that names the first mistake in a suite."""
    _check_lists(suite, where)
    _check_methods(suite, where)
    check_paper(
        suite.paper,
        data=[dataset.paper for dataset in suite.data if dataset.paper],
        methods=[method.name for method in suite.methods],
        where=where,
    )
    for metric in suite.compared:
        if metric not in suite.metrics:
            raise NearfarError(
                f"{where}: compared contains {metric!r}, which is not in metrics{suggest(metric, suite.metrics)}"
            )
    _check_tuning(suite, where)
    if suite.folds is not None and suite.folds < 2:
        raise NearfarError(f"{where}: folds must be at least 2, got {suite.folds}")
    for setting in _all_settings(suite):
        key = ".".join(parse_setting(setting)[0])
        if key == "seed" or key == suite.sweep_key:
            origin = "seeds" if key == "seed" else "sweep"
            raise NearfarError(
                f"{where}: remove {key} from the settings and from tune: each run gets its value from {origin}"
            )
        if key in FIXED:
            raise NearfarError(f"{where}: remove {key} from the settings: nearfar sets it for each run")


def _check_lists(suite: Suite, where: str) -> None:
    lists: tuple[tuple[str, list[Any]], ...] = (
        ("data", [dataset.name for dataset in suite.data]),
        ("methods", [method.name for method in suite.methods]),
        ("seeds", list(suite.seeds)),
        ("sweep", list(suite.sweep_values) if suite.sweep is None else _sweep_values(suite.sweep, where)),
    )
    for key, values in lists:
        duplicates = [value for i, value in enumerate(values) if value in values[:i]]
        if duplicates:
            raise NearfarError(f"{where}: {key} contains {duplicates[0]!r} twice")
        if not values:
            raise NearfarError(f"{where}: {key} is empty")
    for seed in suite.seeds:
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise NearfarError(f"{where}: seeds must be integers, got {seed!r}")


def _check_methods(suite: Suite, where: str) -> None:
    names = [method.name for method in suite.methods]
    if UNTRAINED in names:
        raise NearfarError(
            f"{where}: method name {UNTRAINED!r} is reserved for the row of the untrained network: rename the method"
        )
    for baseline in (suite.baseline, *(method.baseline for method in suite.methods)):
        if baseline is not None and baseline not in (*names, UNTRAINED):
            raise NearfarError(
                f"{where}: baseline {baseline!r} is not a method of the suite{suggest(baseline, names)} "
                f"Known: {', '.join(names)}"
            )
    for method in suite.methods:
        for setting in method.settings:
            if "{sweep}" in setting and suite.sweep is None:
                raise NearfarError(f"{where}: {method.name} has {setting!r}, but the suite has no sweep")


def _check_tuning(suite: Suite, where: str) -> None:
    leaders = [dataset.name for dataset in suite.data if dataset.tuned_on is None]
    for dataset in suite.data:
        if dataset.tuned_on is not None and dataset.tuned_on not in leaders:
            raise NearfarError(
                f"{where}: {dataset.name} has tuned_on {dataset.tuned_on!r}, which is not a dataset of the suite, or "
                f"has a tuned_on itself{suggest(dataset.tuned_on, leaders)} Known: {', '.join(leaders)}"
            )
    for key, values in _search_spaces(suite):
        if not isinstance(values, list | tuple) or not values:
            raise NearfarError(f"{where}: tune needs a non-empty list of values for {key}, got {values!r}")
    if suite.tune.seed in suite.seeds:
        raise NearfarError(f"{where}: tune.seed={suite.tune.seed} is also in seeds: choose another tune.seed")
    if suite.tune.trials is not None and suite.tune.trials < 1:
        raise NearfarError(f"{where}: tune.trials must be at least 1, got {suite.tune.trials}")


def _sweep_values(sweep: Mapping[str, Any], where: str) -> list[Any]:
    values = next(iter(sweep.values()), None)
    if len(sweep) != 1 or not isinstance(values, list | tuple):
        raise NearfarError(f"{where}: sweep must be one key with a list of values, got {dict(sweep)!r}")
    return list(values)


def _all_settings(suite: Suite) -> list[str]:
    return [
        *suite.settings,
        *(setting for dataset in suite.data for setting in (*dataset.settings, *dataset.tune_settings)),
        *(setting for method in suite.methods for setting in method.settings),
        *(f"{key}=" for key, _ in _search_spaces(suite)),
        *suite.tune.settings,
        *suite.override,
    ]


def _search_spaces(suite: Suite) -> list[tuple[str, Any]]:
    spaces = [suite.tune.space, *(dataset.tune for dataset in suite.data), *(method.tune for method in suite.methods)]
    return [item for space in spaces for item in space.items()]
