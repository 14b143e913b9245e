"""Tuning: choose the settings of each method on each dataset by scores on validation classes.

A trial is a run with one combination of values from the search space, with a seed that no table uses. It does not read
the test split. `tune.trials` limits the number of combinations to the same maximum for every method. The combination
with the best `tune.metric` becomes part of the method's settings for the dataset. The chosen combinations are written
to the results file and shown below the tables.
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
from nearfar.suites.cells import Cell, CellMaker, TunedSettings
from nearfar.suites.suite import Method, Suite, SuiteDataset

TriedValues = Mapping[tuple[str, str], Mapping[str, list[Any]]]


@dataclass(frozen=True)
class Trial:
    """A run with one combination of settings. Its validation score is used to choose the best combination."""

    cell: Cell
    settings: tuple[str, ...]

    @property
    def place(self) -> tuple[str, str]:
        """Dataset and method."""
        return self.cell.data, self.cell.method

    def __str__(self) -> str:
        return f"trial on {self.cell.data}, {self.cell.method}, {', '.join(self.settings)}"


def combinations(suite: Suite, dataset: SuiteDataset, method: Method) -> list[tuple[str, ...]]:
    """Return the combinations of settings to try.

    If the search space has more than `tune.trials` combinations, that many are drawn at random without replacement.
    Methods with the same search space get the same combinations.

    With `tune.one_by_one`, settings are tuned one after another. The result is then only the first round: all values of
    the first setting, each with the first value of every other setting.

    >>> from nearfar.suites.suite import Tuning
    >>> tune = Tuning(space={"optimizer.lr": [0.1, 0.01], "steps": [5, 10]}, trials=3)
    >>> data, method = SuiteDataset("a", tune={"steps": [7]}), Method("b")
    >>> combinations(Suite("s", (data,), (method,), tune=tune), data, method)
    [('optimizer.lr=0.1', 'steps=7'), ('optimizer.lr=0.01', 'steps=7')]
    """
    space = search_space(suite, dataset, method)
    if not space:
        return []
    if suite.tune.one_by_one:
        space = {key: values if i == 0 else values[:1] for i, (key, values) in enumerate(space.items())}
    grid = [
        tuple(as_setting(key, value) for key, value in zip(space, values, strict=True))
        for values in product(*space.values())
    ]
    trials = suite.tune.trials
    if trials is None or len(grid) <= trials:
        return grid
    indices = np.random.default_rng(suite.tune.seed).choice(len(grid), trials, replace=False)
    return [grid[i] for i in sorted(indices.tolist())]


def as_setting(key: str, value: Any) -> str:
    """Return KEY=VALUE.

    >>> as_setting("optimizer.lr", 0.1)
    'optimizer.lr=0.1'
    """
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"


def search_space(suite: Suite, dataset: SuiteDataset, method: Method) -> dict[str, Any]:
    """Return a dict that maps each setting to the values to try. Settings given on the command line are left out."""
    if not dataset.tuned:
        return {}
    fixed = tuple(".".join(parse_setting(setting)[0]) for setting in suite.override)
    space = {**suite.tune.space, **tuning_dataset(suite, dataset).tune, **method.tune}
    return {
        key: [_parse_value(value) for value in values]
        for key, values in space.items()
        if not any(key == other or key.startswith(f"{other}.") for other in fixed)
    }


def _parse_value(value: Any) -> Any:
    """Parse a text value like the VALUE of a KEY=VALUE setting, and return other values unchanged.

    Numbers such as 1e-3 need this, because YAML reads numbers in scientific notation without a decimal point as text.

    >>> _parse_value("1e-3"), _parse_value("cosine"), _parse_value(5)
    (0.001, 'cosine', 5)
    """
    return parse_setting(f"x={value}")[1] if isinstance(value, str) else value


def tuning_dataset(suite: Suite, dataset: SuiteDataset) -> SuiteDataset:
    """Return the dataset whose trials choose the settings for `dataset`: the one in `tuned_on`, or `dataset` itself."""
    return next((other for other in suite.data if other.name == dataset.tuned_on), dataset)


def suite_trials(maker: CellMaker) -> list[Trial]:
    """Return all trials of a suite. A method with fewer than two combinations needs no trials."""
    suite = maker.suite
    names = [dataset.name for dataset in maker.data]
    trials = []
    for dataset in maker.data:
        leader = tuning_dataset(suite, dataset)
        for method in suite.methods:
            candidates = combinations(suite, dataset, method)
            if len(candidates) < 2:
                continue
            if leader.name not in names:
                keys = "=... --set ".join(search_space(suite, dataset, method))
                raise NearfarError(
                    f"{dataset.name} uses the settings that are tuned on {leader.name}: add --only {leader.name} "
                    f"(finished runs are not repeated), or give the values: --set {keys}=..."
                )
            trials += [make_trial(maker, dataset, method, settings) for settings in candidates if leader is dataset]
    return trials


def make_trial(maker: CellMaker, dataset: SuiteDataset, method: Method, settings: tuple[str, ...]) -> Trial:
    """Make the trial of one combination of settings."""
    suite = maker.suite
    # Trials select the epoch on validation classes, even if the suite selects it on the test set.
    tuned = (*settings, *suite.tune.settings, *dataset.tune_settings, "select.by=auto")
    cell = maker.cell(dataset, method, suite.tuning_value, suite.tune.seed, tuned=tuned, test=False)
    if cell.config.data.validation == 0 and cell.config.data.folds is None:
        raise NearfarError(
            f"{suite.name}: tuning needs validation classes, but data.validation is 0: add data.validation=0.2 to "
            "settings or, for trials only, to tune.settings"
        )
    if suite.tune.metric not in cell.config.metrics:
        raise NearfarError(
            f"{suite.name}: tune.metric={suite.tune.metric} is not measured: choose from "
            f"{', '.join(cell.config.metrics)}"
        )
    return Trial(cell, settings)


def choose(suite: Suite, trials: Iterable[Trial], values: Mapping[str, float]) -> TunedSettings:
    """Return a dict that maps (dataset, method) to the best settings. Pairs whose trials all failed are left out.

    Args:
        suite: the suite.
        trials: the trials to choose from.
        values: maps the id of each trial to its validation score; failed trials are absent.
    """
    best: dict[tuple[str, str], tuple[float, tuple[str, ...]]] = {}
    for trial in trials:
        value = values.get(trial.cell.id, -math.inf)
        if value > best.get(trial.place, (-math.inf,))[0]:
            best[trial.place] = value, trial.settings
    tuned: dict[tuple[str, str], tuple[str, ...]] = {}
    for dataset in suite.data:
        for method in suite.methods:
            candidates = combinations(suite, dataset, method)
            place = tuning_dataset(suite, dataset).name, method.name
            if len(candidates) == 1:
                tuned[dataset.name, method.name] = candidates[0]
            elif place in best:
                tuned[dataset.name, method.name] = best[place][1]
    return tuned


def tuned_places(maker: CellMaker, trials: Iterable[Trial]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return a dict whose keys are the tuned (dataset, method) pairs.

    The value of a pair is the (dataset, method) pair whose trials choose its settings.
    """
    places = {trial.place for trial in trials}
    return {
        (dataset.name, method): (name, method)
        for dataset in maker.data
        for name, method in places
        if name == tuning_dataset(maker.suite, dataset).name
    }


def trial_entry(trial: Trial, outcome: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return the line to write to the results file for a trial: its settings and validation score, or its error."""
    entry = {"id": trial.cell.id, **trial.cell.place, "settings": list(trial.settings)}
    if outcome["kind"] == "error":
        return {"kind": "error", **entry, "message": outcome["message"]}
    scores = {"value": outcome["validation"][metric], "epoch": outcome["epoch"], "seconds": outcome["seconds"]}
    return {"kind": "trial", **entry, "metric": metric, **scores, "validation": outcome["validation"]}


def trial_values(lines: Iterable[Mapping[str, Any]], metric: str) -> dict[str, float]:
    """Return a dict that maps the id of each finished trial in a results file to its validation score.

    Trials for which this metric was not measured are left out.
    """
    values = {}
    for line in lines:
        scores = {line["metric"]: line["value"], **line.get("validation", {})} if line["kind"] == "trial" else {}
        if metric in scores:
            values[line["id"]] = float(scores[metric])
    return values


def tried_values(trials: Iterable[Trial], values: Mapping[str, float]) -> TriedValues:
    """Return a dict that maps (dataset, method) to the values that finished trials used for each setting.

    Args:
        trials: the trials.
        values: maps the id of each finished trial to its validation score.
    """
    tried: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for trial in trials:
        if trial.cell.id in values:
            for setting in trial.settings:
                path, value = parse_setting(setting)
                found = tried.setdefault(trial.place, {}).setdefault(".".join(path), [])
                if value not in found:
                    found.append(value)
    return tried


def describe_tuning(suite: Suite, tuned: TunedSettings) -> list[str]:
    """Return a list with the paragraph on how settings were tuned. The list is empty if nothing was tuned."""
    methods = {method.name: method for method in suite.methods}
    if not any(
        len(combinations(suite, dataset, methods[method])) > 1
        for dataset in suite.data
        for name, method in tuned
        if name == dataset.name and method in methods
    ):
        return []
    tune = suite.tune
    at = "" if suite.sweep_key is None else f" at {suite.sweep_key} = {suite.tuning_value}"
    if tune.one_by_one:
        count = "one setting of the search space after the other, with the others at their best or first value,"
    else:
        number = "all" if tune.trials is None else f"at most {tune.trials}"
        count = f"{number} combinations of the search space,"
    settings = f", with {', '.join(tune.settings)}" if tune.settings else ""
    extended = (
        f" Where the best value of a setting is at an end of its range, up to {tune.extend} values beyond it are tried."
        if tune.extend
        else ""
    )
    return [
        f"Settings are tuned for each method and dataset: {count} scored by {tune.metric} on "
        f"validation classes{at}, with seed {tune.seed}, which no table uses{settings}.{extended}"
    ]


def describe_choice(
    suite: Suite, tuned: TunedSettings, dataset: SuiteDataset, tried: TriedValues | None = None
) -> list[str]:
    """Return a list with the note on tuned settings for a table. It marks values at an end of the search range.

    Args:
        suite: the suite.
        tuned: the tuned settings.
        dataset: the dataset of the table.
        tried: the values that were tried. By default, those of the search space.
    """
    methods = {method.name: method for method in suite.methods}
    leader = tuning_dataset(suite, dataset)
    choices = {method: settings for (name, method), settings in tuned.items() if name == dataset.name}
    counts = {name: len(combinations(suite, dataset, methods[name])) for name in choices if name in methods}
    parts = []
    for name, settings in choices.items():
        space = search_space(suite, dataset, methods[name]) if name in methods else {}
        space = {**space, **(tried or {}).get((leader.name, name), {})}
        text = ", ".join(f"{setting}{_mark_end(setting, space)}" for setting in settings)
        count = f" (of {counts[name]} trials)" if name in counts and len(set(counts.values())) > 1 else ""
        parts.append(f"{name}: {text}{count}")
    # with folds, data.validation has no effect
    own = [s for s in leader.tune_settings if suite.folds is None or not s.startswith("data.validation=")]
    on = f" on {leader.name}" if leader is not dataset else ""
    how = on + (f" in trials with {', '.join(own)}" if own else "")
    return [f"Chosen settings{how}: {'; '.join(parts)}"] if parts else []


def _mark_end(setting: str, space: Mapping[str, Any]) -> str:
    """Return a mark for a value at an end of the search range, where a value outside the range might be better.

    >>> _mark_end("optimizer.lr=0.1", {"optimizer.lr": [0.001, 0.01, 0.1]})
    ' (largest tried)'
    """
    path, value = parse_setting(setting)
    values = space.get(".".join(path), [])
    if len(values) < 2 or not all(isinstance(number, int | float) for number in (value, *values)):
        return ""
    return {max(values): " (largest tried)", min(values): " (smallest tried)"}.get(value, "")
