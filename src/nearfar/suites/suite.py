"""A suite: methods x data x values of one setting x seeds, as a YAML file, to be compared under the same conditions.

    name, mirrors, differs   what it is, the paper's table or figure, and what is not as there
    data                     a list of {name, source, settings}; a source may be $VARIABLE, or left to the command line;
                             or names of shared data, or {use: name, ...} with what differs (suite_data.py)
    methods                  a list of {name, recipe, settings, baseline, swept}; recipe: the method's name by default
    baseline                 the method that others are compared to, unless they name their own
    seeds                    a list
    settings                 KEY=VALUE of all cells, as for `nearfar train --set`
    sweep                    one key with a list of values
    folds                    so many class-disjoint folds of the training classes in place of data.validation, as MLRC
                             does: a cell is a run for each, scored by their mean and by their embeddings side by side
    metrics                  shown in tables; for data with numbers of the paper, that table's too
    compared                 those of them with differences to the baseline: `metrics` as written, unless given
    paper                    the paper's numbers, beside ours (suite_paper.py)
    tune                     {space, trials, seed, metric, at, settings}: what is searched on validation classes
                             (suite_tune.py)
    override                 settings above all others, of the command line's --set

Settings of the suite come first, then of the data, of the method, `override`, what tuning chose, the sweep, the seed;
later ones win. A method with a `loss.name` of its own takes no options of a loss from suite and data. In settings of a
method {sweep} stands for the value of the sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from nearfar.config.setting import build
from nearfar.config.tree import parse_setting, read_config
from nearfar.errors import NearfarError
from nearfar.suites.data import expanded
from nearfar.suites.paper import PaperTable, check_paper
from nearfar.validation import nearest

UNTRAINED = "untrained"
# what a suite decides on, so that no setting may
OWN = ("recipe", "data.source", "data.fingerprint", "data.folds", "data.fold", "metrics", "test", "untrained")


@dataclass(frozen=True)
class Tuning:
    """What is searched for each method and data, and how; an empty space is no search.

    space: lists of values by setting; data and methods may have a `tune` of their own, which adds to it or replaces
    values. trials: how many combinations are drawn of it, the same number for every method (null: all). seed: of the
    draw and of the runs, none of the suite's. metric: on the validation classes. at: the sweep's value (null: its
    first). settings: of trials alone, above all others (fewer epochs, or classes held out that the runs train on).
    """

    space: dict[str, Any] = field(default_factory=dict)
    trials: int | None = None
    seed: int = 1000
    metric: str = "map@r"
    at: int | float | str | None = None
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Data by a name; `source` as for `nearfar data`, $VARIABLE, or null: given on the command line.

    track: what stands for it and its like after --only. paper: the data set of the suite's `paper` numbers that it is
    shown with, and differs: what is not as there. metrics: shown for it; null: the suite's and those of these numbers.
    tune_settings: of its trials alone, above the suite's `tune.settings`. tuned_on: other data of the suite, whose
    choice serves here too, where trials are dear.
    """

    name: str
    source: str | None = None
    settings: tuple[str, ...] = ()
    track: str | None = None
    paper: str | None = None
    differs: str = ""
    metrics: tuple[str, ...] | None = None
    tune: dict[str, Any] = field(default_factory=dict)
    tune_settings: tuple[str, ...] = ()
    tuned_on: str | None = None


@dataclass(frozen=True)
class Method:
    """A row of the tables. swept: false leaves the sweep's setting out, so the method is the same at every value.

    note: what the tables say of it.
    """

    name: str
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    baseline: str | None = None
    swept: bool = True
    tune: dict[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Suite:
    """What the file says."""

    name: str
    data: tuple[Source, ...]
    methods: tuple[Method, ...]
    mirrors: str = ""
    differs: str = ""
    baseline: str | None = None
    seeds: tuple[int, ...] = (0,)
    settings: tuple[str, ...] = ()
    sweep: dict[str, Any] | None = None
    folds: int | None = None
    metrics: tuple[str, ...] = ("recall@1", "map@r")
    compared: tuple[str, ...] = ()
    paper: tuple[PaperTable, ...] = ()
    tune: Tuning = field(default_factory=Tuning)
    override: tuple[str, ...] = ()

    @property
    def sweep_key(self) -> str | None:
        """The setting that is swept."""
        return next(iter(self.sweep)) if self.sweep else None

    @property
    def sweep_values(self) -> tuple[Any, ...]:
        """Its values; one null without a sweep."""
        return tuple(next(iter(self.sweep.values()))) if self.sweep else (None,)

    def baseline_of(self, method: str) -> str | None:
        """The name of what a method is compared to; none for the baseline itself."""
        own = next((each.baseline for each in self.methods if each.name == method), None)
        name = own or self.baseline
        return None if name == method else name

    def data_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Names of data, where a track stands for all of its data."""
        tracks = {each.track for each in self.data}
        return tuple(
            dict.fromkeys(
                found
                for name in names
                for found in ([each.name for each in self.data if each.track == name] if name in tracks else [name])
            )
        )

    def metrics_of(self, source: Source) -> tuple[str, ...]:
        """What is shown for data."""
        return source.metrics or self.metrics

    def to_dict(self) -> dict[str, Any]:
        """As plain values, which `suite_from_dict` reads."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def suite_names() -> list[str]:
    """The suites that come with nearfar."""
    return sorted(f.name.removesuffix(".yaml") for f in _folder().iterdir() if f.name.endswith(".yaml"))


def open_suite(spec: str) -> Suite:
    """A suite by its name, or from a YAML file."""
    if spec in suite_names():
        return suite_from_dict(yaml.safe_load((_folder() / f"{spec}.yaml").read_text(encoding="utf-8")), spec)
    if not Path(spec).is_file():
        known = suite_names()
        raise NearfarError(f"no suite and no file {spec!r}{nearest(spec, known)} Known: {', '.join(known)}")
    return suite_from_dict(read_config(Path(spec)), spec)


def suite_from_dict(tree: Mapping[str, Any], where: str = "the suite") -> Suite:
    """A suite from plain values, checked; `where` is named in errors.

    >>> suite_from_dict({"name": "a", "data": [{"name": "sketches", "source": "sketches"}], "methods": [{"nam": "x"}]})
    Traceback (most recent call last):
    ...
    nearfar.errors.NearfarError: the suite.methods[0] has no 'nam'; did you mean 'name'? Known: name, recipe, \
settings, baseline, swept, tune, note
    """
    plain = dict(tree)
    for key in ("name", "data", "methods"):
        if not plain.get(key):
            raise NearfarError(f"{where}: {key} is missing, a suite needs name, data and methods")
    plain.setdefault("paper", [])
    parts: tuple[tuple[str, type], ...] = (("data", Source), ("methods", Method), ("paper", PaperTable))
    for key, table in parts:
        if not isinstance(plain[key], list):
            raise NearfarError(f"{where}: {key} must be a list of tables, each with a name, got {plain[key]!r}")
        places = [f"{where}.{key}[{i}]" for i in range(len(plain[key]))]
        if key == "data":
            plain[key] = [expanded(each, place) for each, place in zip(plain[key], places, strict=True)]
        plain[key] = [_part(table, each, place) for each, place in zip(plain[key], places, strict=True)]
    suite = _with_metrics(build(Suite, plain, where))
    _check(suite, where)
    return suite


def _with_metrics(suite: Suite) -> Suite:
    """What is shown for each data, and all of it as what is measured."""

    def shown(source: Source) -> tuple[str, ...]:
        if source.metrics:
            return source.metrics
        printed = [metric for each in suite.paper if each.data == source.paper for metric in each.metrics]
        return tuple(dict.fromkeys((*suite.metrics, *printed)))

    data = tuple(replace(each, metrics=shown(each)) for each in suite.data)
    measured = tuple(dict.fromkeys((*suite.metrics, *(metric for each in suite.data for metric in shown(each)))))
    return replace(suite, data=data, metrics=measured, compared=suite.compared or suite.metrics)


def _part(table: type, tree: Any, where: str) -> Any:
    try:
        return build(table, tree, where)
    except TypeError:  # a key without a default
        needed = [each.name for each in fields(table) if each.default is each.default_factory is MISSING]
        raise NearfarError(f"{where} must have a {', '.join(needed)}, got {tree!r}") from None


def _check(suite: Suite, where: str) -> None:
    methods = [each.name for each in suite.methods]
    parts: tuple[tuple[str, list[Any]], ...] = (
        ("data", [each.name for each in suite.data]),
        ("methods", methods),
        ("seeds", list(suite.seeds)),
        ("sweep", list(suite.sweep_values) if suite.sweep is None else _values(suite.sweep, where)),
    )
    for key, found in parts:
        twice = [each for i, each in enumerate(found) if each in found[:i]]
        if twice:
            raise NearfarError(f"{where}: {key} has {twice[0]!r} twice")
        if not found:
            raise NearfarError(f"{where}: {key} is empty")
    if UNTRAINED in methods:
        raise NearfarError(f"{where}: {UNTRAINED!r} is in every table already, give the method another name")
    for seed in suite.seeds:
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise NearfarError(f"{where}: seeds must be whole numbers, got {seed!r}")
    for name in (suite.baseline, *(each.baseline for each in suite.methods)):
        if name is not None and name not in (*methods, UNTRAINED):
            known = ", ".join(methods)
            raise NearfarError(
                f"{where}: baseline {name!r} is none of its methods{nearest(name, methods)} Known: {known}"
            )
    for each in suite.methods:
        for setting in each.settings:
            if "{sweep}" in setting and suite.sweep is None:
                raise NearfarError(f"{where}: {each.name} says {setting!r}, but there is no sweep")
    check_paper(suite.paper, data=[each.paper for each in suite.data if each.paper], methods=methods, where=where)
    for metric in suite.compared:
        if metric not in suite.metrics:
            raise NearfarError(
                f"{where}: compared has {metric!r}, which is none of metrics{nearest(metric, suite.metrics)}"
            )
    leaders = [each.name for each in suite.data if each.tuned_on is None]
    for source in suite.data:
        if source.tuned_on is not None and source.tuned_on not in leaders:
            raise NearfarError(
                f"{where}: {source.name} has tuned_on {source.tuned_on!r}, which is no data of the suite with trials "
                f"of its own{nearest(source.tuned_on, leaders)} Known: {', '.join(leaders)}"
            )
    for key, values in _searched(suite):
        if not isinstance(values, list | tuple) or not values:
            raise NearfarError(f"{where}: tune needs a list of values for {key}, got {values!r}")
    if suite.tune.seed in suite.seeds:
        raise NearfarError(f"{where}: tune.seed={suite.tune.seed} is one of seeds, give it one of its own")
    if suite.folds is not None and suite.folds < 2:
        raise NearfarError(f"{where}: folds must be at least 2, got {suite.folds}")
    if suite.tune.trials is not None and suite.tune.trials < 1:
        raise NearfarError(f"{where}: tune.trials must be at least 1, got {suite.tune.trials}")
    for setting in _all_settings(suite):
        key = ".".join(parse_setting(setting)[0])
        if key == "seed" or key == suite.sweep_key:
            cure = "seeds" if key == "seed" else "the values of sweep"
            raise NearfarError(f"{where}: {setting!r} would be overwritten, change {cure} instead")
        if key in OWN:
            raise NearfarError(f"{where}: {key} cannot be among the settings, the suite decides on it")


def _values(sweep: Mapping[str, Any], where: str) -> list[Any]:
    values = next(iter(sweep.values()), None)
    if len(sweep) != 1 or not isinstance(values, list | tuple):
        raise NearfarError(f"{where}: sweep must be one key with a list of values, got {dict(sweep)!r}")
    return list(values)


def _all_settings(suite: Suite) -> list[str]:
    parts: list[Source | Method] = [*suite.data, *suite.methods]
    searched = [f"{key}=" for key, _ in _searched(suite)]
    own = (setting for part in parts for setting in part.settings)
    trials = (setting for each in suite.data for setting in each.tune_settings)
    return [*suite.settings, *own, *searched, *suite.tune.settings, *trials, *suite.override]


def _searched(suite: Suite) -> list[tuple[str, Any]]:
    spaces = [suite.tune.space, *(each.tune for each in suite.data), *(each.tune for each in suite.methods)]
    return [item for space in spaces for item in space.items()]


def _folder() -> Any:
    return files("nearfar.suites") / "definitions"
