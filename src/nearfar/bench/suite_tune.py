"""Tuning: the same number of trials for every method of a suite, judged on validation classes alone.

A trial is a run with one combination of the suite's `tune.space`, on a seed that no table uses. Its score on the test
split is not kept. The best combination by `tune.metric` becomes part of the method's settings for that data, is written
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

from nearfar.bench.suite import Method, Source, Suite
from nearfar.bench.suite_cells import Cell, CellMaker, Chosen
from nearfar.errors import NearfarError


@dataclass(frozen=True)
class Trial:
    """A cell that is run to choose settings."""

    cell: Cell
    settings: tuple[str, ...]

    def __str__(self) -> str:
        return f"trial on {self.cell.data}, {self.cell.method}, {', '.join(self.settings)}"


def combinations(suite: Suite, source: Source, method: Method) -> list[tuple[str, ...]]:
    """The settings to try, drawn without replacement where there are more than `trials`; the same draw for all methods
    that share a space.

    >>> from nearfar.bench.suite import Tuning
    >>> tune = Tuning(space={"optimiser.lr": [0.1, 0.01], "steps": [5, 10]}, trials=3)
    >>> data, method = Source("a", tune={"steps": [7]}), Method("b")
    >>> combinations(Suite("s", (data,), (method,), tune=tune), data, method)
    [('optimiser.lr=0.1', 'steps=7'), ('optimiser.lr=0.01', 'steps=7')]
    """
    space: dict[str, Any] = {**suite.tune.space, **source.tune, **method.tune}
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


def suite_trials(maker: CellMaker) -> list[Trial]:
    """All trials of a suite; none for a method with at most one combination, which needs no search."""
    suite = maker.suite
    at = suite.sweep_values[0] if suite.tune.at is None else suite.tune.at
    trials = []
    for source in maker.data:
        for method in suite.methods:
            found = combinations(suite, source, method)
            for settings in found if len(found) > 1 else []:
                tuned = (*settings, *suite.tune.settings, *source.tune_settings)
                cell = maker.cell(source, method, at, suite.tune.seed, tuned=tuned, untrained=False)
                if cell.config.data.validation == 0 and cell.config.data.folds is None:
                    cure = "set data.validation=0.2, in tune.settings for trials alone"
                    raise NearfarError(f"{suite.name}: tune needs validation classes: {cure}")
                trials.append(Trial(cell, settings))
    return trials


def choose(suite: Suite, trials: Iterable[Trial], values: Mapping[str, float]) -> Chosen:
    """The best settings by data and method; `values` of the trials by id, one without a value is one that failed."""
    best: dict[tuple[str, str], tuple[float, tuple[str, ...]]] = {}
    for trial in trials:
        place = trial.cell.data, trial.cell.method
        value = values.get(trial.cell.id, -math.inf)
        if place not in best or value > best[place][0]:
            best[place] = value, trial.settings
    for (data, method), (value, _) in best.items():
        if value == -math.inf:
            raise NearfarError(f"{suite.name}: every trial of {method} on {data} failed, so nothing can be chosen")
    found = {place: settings for place, (_, settings) in best.items()}
    for source in suite.data:
        for each in suite.methods:
            alone = combinations(suite, source, each)
            if len(alone) == 1:
                found[source.name, each.name] = alone[0]
    return found


def trial_entry(trial: Trial, outcome: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """The line of the results file: what was tried and its validation score; of the test nothing is kept."""
    entry = {"id": trial.cell.id, **trial.cell.place, "settings": list(trial.settings)}
    if outcome["kind"] == "error":
        return {"kind": "error", **entry, "message": outcome["message"]}
    validation = outcome["validation"]
    if metric not in validation:
        raise NearfarError(f"tune.metric={metric} is not among {', '.join(validation)}")
    kept = {"value": validation[metric], "epoch": outcome["epoch"], "seconds": outcome["seconds"]}
    return {"kind": "trial", **entry, "metric": metric, **kept}


def told(suite: Suite, chosen: Chosen) -> list[str]:
    """How settings were chosen, for the head of the tables."""
    if not chosen:
        return []
    tune = suite.tune
    most = "all combinations" if tune.trials is None else f"at most {tune.trials} combinations"
    own = f", with {', '.join(tune.settings)}" if tune.settings else ""
    return [
        f"Tuned for each method and data: {most} of the space, by {tune.metric} on validation classes with seed "
        f"{tune.seed}, which is none of the tables'{own}."
    ]


def told_of(chosen: Chosen, data: Source) -> list[str]:
    """What was chosen for data, for the foot of its table."""
    parts = [f"{method}: {', '.join(settings)}" for (place, method), settings in chosen.items() if place == data.name]
    own = f" by trials with {', '.join(data.tune_settings)}" if data.tune_settings else ""
    return [f"Chosen{own}: {'; '.join(parts)}"] if parts else []
