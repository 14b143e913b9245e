"""A suite compares methods on datasets, over the values of one setting and over seeds. It is written as a YAML file.

    name, mirrors, differs   name of the suite, the table or figure of the paper, and what differs from it
    data                     list of {name, source, settings}; a source may be $VARIABLE or come from --data;
                             or names of shared datasets, or {use: name, ...} with changes (shared_data.py)
    methods                  list of {name, recipe, settings, baseline, swept}; the recipe defaults to the name
    baseline                 the method that the others are compared with, unless they name their own
    seeds                    list of seeds
    settings                 KEY=VALUE for all cells, as for `nearfar train --set`
    sweep                    one key with a list of values
    folds                    number of class-disjoint folds of the training classes, in place of data.validation, as in
                             MLRC: a cell trains one network per fold
    metrics                  columns of the tables, in addition to those of the paper's table
    compared                 metrics with differences to the baseline; `metrics` by default
    paper                    numbers of the paper, shown beside ours (paper.py)
    tune                     {space, trials, seed, metric, at, settings}: search on validation classes (tuning.py)
    override                 settings of the command line (--set), which take precedence over those of the suite

Settings apply in this order, and later ones win: suite, data, method, `override`, tuned settings, sweep, seed. If a
method sets `loss.name`, loss options of the suite and the data do not apply to it. In the settings of a method, {sweep}
stands for the value of the sweep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from nearfar.suites.paper import PaperTable

UNTRAINED = "untrained"


@dataclass(frozen=True)
class Tuning:
    """The search for settings of each method on each dataset. An empty space means no search.

    Attributes:
        space: lists of values by setting. Data and methods may have their own `tune`, which adds keys or replaces
            values.
        trials: number of combinations drawn from the space, the same for every method; None tries all.
        seed: seed of the draw and of the trial runs. It must not be one of the suite's seeds.
        metric: score on the validation classes that decides.
        at: value of the sweep that trials use; None uses the first.
        settings: settings for trials only, which take precedence over all others.
    """

    space: dict[str, Any] = field(default_factory=dict)
    trials: int | None = None
    seed: int = 1000
    metric: str = "map@r"
    at: int | float | str | None = None
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuiteDataset:
    """A dataset of a suite.

    Attributes:
        name: name in tables and on the command line.
        source: as for `nearfar data`; or $VARIABLE; None if the command line gives it.
        settings: settings for this dataset.
        track: group of datasets; `--only` accepts it.
        paper: dataset in the suite's `paper` numbers that this one is shown with.
        differs: what differs from the paper's setup.
        metrics: columns for this dataset; None uses those of the suite and of the paper's table.
        tune: search space for this dataset.
        tune_settings: settings for its trials only, which take precedence over the suite's `tune.settings`.
        tuned_on: another dataset of the suite whose tuned settings are used here too, to save trials.
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
    """A row of the tables.

    Attributes:
        swept: False leaves the swept setting out, so that the method is the same at every value.
        note: a sentence that the tables show.
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
    """The content of a suite file; the module docstring describes the keys."""

    name: str
    data: tuple[SuiteDataset, ...]
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
        """The swept setting."""
        return next(iter(self.sweep)) if self.sweep else None

    @property
    def sweep_values(self) -> tuple[Any, ...]:
        """The values of the swept setting; (None,) without a sweep."""
        return tuple(next(iter(self.sweep.values()))) if self.sweep else (None,)

    @property
    def tuning_value(self) -> Any:
        """The value of the sweep that trials use."""
        return self.sweep_values[0] if self.tune.at is None else self.tune.at

    def baseline_of(self, method: str) -> str | None:
        """Return the method that `method` is compared with; None for the baseline itself."""
        specific = next((other.baseline for other in self.methods if other.name == method), None)
        name = specific or self.baseline
        return None if name == method else name

    def dataset_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Replace each track in `names` by its datasets."""
        tracks: dict[str, list[str]] = {}
        for dataset in self.data:
            if dataset.track is not None:
                tracks.setdefault(dataset.track, []).append(dataset.name)
        return tuple(dict.fromkeys(dataset for name in names for dataset in tracks.get(name, [name])))

    def metrics_of(self, dataset: SuiteDataset) -> tuple[str, ...]:
        """Return the metrics shown for a dataset."""
        return dataset.metrics or self.metrics

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that `suite_from_dict` reads."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
