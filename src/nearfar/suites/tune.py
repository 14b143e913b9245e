"""Tuning: the same number of trials for every method of a suite, judged on validation classes alone.

A trial is a run with one combination of the suite's `tune.space`, on a seed that no table uses. It does not look at the
test split. The best combination by `tune.metric` becomes part of the method's settings for that data, is written
to the results file and is told under the tables.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from nearfar.config.tree import parse_setting
from nearfar.errors import NearfarError
from nearfar.suites.cells import Cell, CellMaker, Chosen
from nearfar.suites.suite import Method, Source, Suite


@dataclass(frozen=True)
class Trial:
    """A cell that is run to choose settings."""

    cell: Cell
    settings: tuple[str, ...]

    @property
    def place(self) -> tuple[str, str]:
        """Data and method."""
        return self.cell.data, self.cell.method

    def __str__(self) -> str:
        return f"trial on {self.cell.data}, {self.cell.method}, {', '.join(self.settings)}"


def combinations(suite: Suite, source: Source, method: Method) -> list[tuple[str, ...]]:
    """The settings to try, drawn without replacement where there are more than `trials`; the same draw for all methods
    that share a space.

    >>> from nearfar.suites.suite import Tuning
    >>> tune = Tuning(space={"optimizer.lr": [0.1, 0.01], "steps": [5, 10]}, trials=3)
    >>> data, method = Source("a", tune={"steps": [7]}), Method("b")
    >>> combinations(Suite("s", (data,), (method,), tune=tune), data, method)
    [('optimizer.lr=0.1', 'steps=7'), ('optimizer.lr=0.01', 'steps=7')]
    """
    space = searched(suite, source, method)
    if not space:
        return []
    every = [
        tuple(
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in zip(space, values, strict=True)
        )
        for values in product(*space.values())
    ]
    trials = suite.tune.trials
    if trials is None or len(every) <= trials:
        return every
    drawn = np.random.default_rng(suite.tune.seed).choice(len(every), trials, replace=False)
    return [every[i] for i in sorted(drawn.tolist())]


def searched(suite: Suite, source: Source, method: Method) -> dict[str, Any]:
    """The values to try by key, without what was set on the command line."""
    given = tuple(".".join(parse_setting(each)[0]) for each in suite.override)
    space = {**suite.tune.space, **_leader(suite, source).tune, **method.tune}
    return {
        key: [_value(each) for each in values]
        for key, values in space.items()
        if not any(key == each or key.startswith(f"{each}.") for each in given)
    }


def _value(written: Any) -> Any:
    """As a setting is read: YAML takes 1e-3 for text, which needs a dot for a number.

    >>> _value("1e-3"), _value("cosine"), _value(5)
    (0.001, 'cosine', 5)
    """
    return parse_setting(f"x={written}")[1] if isinstance(written, str) else written


def suite_trials(maker: CellMaker) -> list[Trial]:
    """All trials of a suite; none for a method with at most one combination, which needs no search."""
    suite = maker.suite
    at = suite.sweep_values[0] if suite.tune.at is None else suite.tune.at
    trials = []
    names = [each.name for each in maker.data]
    for source in maker.data:
        leader = _leader(suite, source)
        for method in suite.methods:
            found = combinations(suite, source, method)
            if len(found) > 1 and leader.name not in names:
                raise NearfarError(
                    f"{source.name} takes what is chosen on {leader.name}: add --only {leader.name} (what was run "
                    f"stays), or set what is searched: --set {'=... --set '.join(searched(suite, source, method))}=..."
                )
            for settings in found if len(found) > 1 and leader is source else []:
                # whatever chooses the epoch in the tables, a trial knows the validation classes only
                tuned = (*settings, *suite.tune.settings, *source.tune_settings, "select.by=auto")
                cell = maker.cell(source, method, at, suite.tune.seed, tuned=tuned, test=False)
                if cell.config.data.validation == 0 and cell.config.data.folds is None:
                    cure = "set data.validation=0.2, in tune.settings for trials alone"
                    raise NearfarError(f"{suite.name}: tune needs validation classes: {cure}")
                if suite.tune.metric not in cell.config.metrics:
                    raise NearfarError(
                        f"{suite.name}: tune.metric={suite.tune.metric} is not among {', '.join(cell.config.metrics)}"
                    )
                trials.append(Trial(cell, settings))
    return trials


def choose(suite: Suite, trials: Iterable[Trial], values: Mapping[str, float]) -> Chosen:
    """The best settings by data and method; `values` of the trials by id, one without a value is one that failed.

    Where all failed there is no choice.
    """
    best: dict[tuple[str, str], tuple[float, tuple[str, ...]]] = {}
    for trial in trials:
        value = values.get(trial.cell.id, -math.inf)
        if value > best.get(trial.place, (-math.inf,))[0]:
            best[trial.place] = value, trial.settings
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for source in suite.data:
        for each in suite.methods:
            alone, tried = combinations(suite, source, each), (_leader(suite, source).name, each.name)
            if len(alone) == 1:
                found[source.name, each.name] = alone[0]
            elif tried in best:
                found[source.name, each.name] = best[tried][1]
    return found


def tuned_places(maker: CellMaker, trials: Iterable[Trial]) -> dict[tuple[str, str], tuple[str, str]]:
    """The data and methods whose settings trials choose, each with that whose trials do: itself, unless taken over."""
    tried = {trial.place for trial in trials}
    return {
        (source.name, method): (data, method)
        for source in maker.data
        for data, method in tried
        if data == _leader(maker.suite, source).name
    }


def _leader(suite: Suite, source: Source) -> Source:
    """The data whose trials choose for this one."""
    return next((each for each in suite.data if each.name == source.tuned_on), source)


def trial_entry(trial: Trial, outcome: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """The line of the results file: what was tried and its validation score."""
    entry = {"id": trial.cell.id, **trial.cell.place, "settings": list(trial.settings)}
    if outcome["kind"] == "error":
        return {"kind": "error", **entry, "message": outcome["message"]}
    kept = {"value": outcome["validation"][metric], "epoch": outcome["epoch"], "seconds": outcome["seconds"]}
    return {"kind": "trial", **entry, "metric": metric, **kept}


def told(suite: Suite, chosen: Chosen) -> list[str]:
    """How settings were chosen, for the head of the tables."""
    methods = {each.name: each for each in suite.methods}
    if not any(
        len(combinations(suite, data, methods[name])) > 1
        for data in suite.data
        for place, name in chosen
        if place == data.name and name in methods
    ):
        return []
    tune = suite.tune
    at = suite.sweep_values[0] if tune.at is None else tune.at
    where = "" if suite.sweep_key is None else f" at {suite.sweep_key} = {at}"
    most = "all combinations" if tune.trials is None else f"at most {tune.trials} combinations"
    own = f", with {', '.join(tune.settings)}" if tune.settings else ""
    return [
        f"Tuned for each method and data: {most} of the space, by {tune.metric} on validation classes{where} with seed "
        f"{tune.seed}, which is none of the tables'{own}."
    ]


def told_of(suite: Suite, chosen: Chosen, data: Source) -> list[str]:
    """What was chosen for data, for the foot of its table, and what a reader should know of the choice."""
    methods = {each.name: each for each in suite.methods}
    leader = _leader(suite, data)
    counts = {
        name: len(combinations(suite, data, methods[name]))
        for place, name in chosen
        if place == data.name and name in methods
    }
    parts = []
    for (place, name), settings in chosen.items():
        if place == data.name:
            known = searched(suite, data, methods[name]) if name in methods else {}
            told = ", ".join(f"{each}{_end(each, known)}" for each in settings)
            number = f" (of {counts[name]} trials)" if name in counts and len(set(counts.values())) > 1 else ""
            parts.append(f"{name}: {told}{number}")
    # folds hold out classes of their own
    own = [each for each in leader.tune_settings if suite.folds is None or not each.startswith("data.validation=")]
    on = f" on {leader.name}" if leader is not data else ""
    how = on + (f" by trials with {', '.join(own)}" if own else "")
    return [f"Chosen{how}: {'; '.join(parts)}"] if parts else []


def _end(setting: str, space: Mapping[str, Any]) -> str:
    """Whether a value is an end of what was tried: further on there might be a better one.

    >>> _end("optimizer.lr=0.1", {"optimizer.lr": [0.001, 0.01, 0.1]})
    ' (the largest tried)'
    """
    path, value = parse_setting(setting)
    values = space.get(".".join(path), [])
    if len(values) < 2 or not all(isinstance(each, int | float) for each in (value, *values)):
        return ""
    return {max(values): " (the largest tried)", min(values): " (the smallest tried)"}.get(value, "")
