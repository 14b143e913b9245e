"""A suite compares methods on datasets, over the values of one setting and over seeds. It is written as a YAML file.

    name                     name of the suite
    mirrors, differs         the table or figure of a paper that the suite reproduces, and how the suite differs from it
    data                     list of datasets, each one of: {name, source, settings}, where the source may contain
                             $VARIABLE or come from --data; the name of a shared dataset; or {use: name, ...}, a shared
                             dataset with changes (shared_data.py)
    methods                  list of {name, recipe, settings, baseline, swept, tune, note}; the default recipe is the
                             one with the name of the method
    baseline                 the method that the others are compared with, unless a method sets another baseline
    seeds                    list of seeds
    settings                 list of KEY=VALUE for all runs, as for `nearfar train --set`
    sweep                    one setting and the list of values to train with: {KEY: [VALUE, ...]}
    folds                    number of class-disjoint folds of the training classes, used instead of data.validation as
                             in Musgrave et al., ECCV 2020: one network is trained per fold
    last_epoch               true shows the scores of the last epoch in addition to those of the selected epoch
    metrics                  columns of the tables, in addition to the metrics of the paper's table
    compared                 metrics for which tables show differences from the baseline; `metrics` by default
    paper                    numbers from the paper, shown next to ours (paper.py)
    tune                     {space, trials, one_by_one, seed, metric, extend, at, settings}: search on validation
                             classes (tuning.py)
    override                 settings from the command line (--set), which take precedence over those of the suite

Settings apply in this order, and later ones win: suite, data, method, `override`, tuned settings, sweep, seed. If a
method sets `loss.name`, the loss options of the suite and the data do not apply to it. In the settings of a method,
{sweep} is replaced with the value of the sweep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from nearfar.suites.paper import PaperTable

UNTRAINED = "untrained"


@dataclass(frozen=True)
class Tuning:
    """The search for good settings of each method on each dataset. With an empty space, there is no search.

    Attributes:
        space: maps each setting to the list of values to try. Datasets and methods may add settings, or replace the
            list of a setting, with their own `tune`.
        trials: maximum number of combinations in the first round, the same for every method. If the space has more
            combinations, `trials` of them are drawn at random. None tries all. `one_by_one` and `extend` add rounds
            that do not count toward this maximum.
        one_by_one: if True, tune one setting after the other, in the order of the space. The other settings keep their
            best value so far, or their first value if they have not been tuned yet. This needs few trials even if there
            are many settings.
        seed: seed of the random draw of combinations and of the trial runs. It must not be one of the suite's seeds.
        metric: metric on the validation classes by which the best combination is chosen.
        extend: maximum number of rounds that try one more value beyond the range of a numeric setting whose best value
            is at an end of the range.
        at: value of the sweep that trials use; None means the first.
        settings: settings for trials only. Only the `tune_settings` of a dataset take precedence over them.
    """

    space: dict[str, Any] = field(default_factory=dict)
    trials: int | None = None
    one_by_one: bool = False
    seed: int = 1000
    metric: str = "map@r"
    extend: int = 0
    at: int | float | str | None = None
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuiteDataset:
    """A dataset of a suite.

    Attributes:
        name: name in tables and on the command line.
        source: a source as for `nearfar data`, which may contain $VARIABLE; None if it must come from the command line.
        settings: settings for this dataset.
        track: group that the dataset belongs to; `--only TRACK` selects the group.
        paper: the suite's `paper` tables that have this value of `data` are shown for this dataset.
        differs: what differs from the paper's setup.
        metrics: metrics to show for this dataset; None means those of the suite and of the paper's table.
        tune: search space for this dataset.
        tuned: if False, there is no search on this dataset: every method keeps its settings.
        tune_settings: settings for trials on this dataset only, which take precedence over the suite's
            `tune.settings`.
        tuned_on: another dataset of the suite. Its tuned settings are also used for this dataset, which saves trials.
    """

    name: str
    source: str | None = None
    settings: tuple[str, ...] = ()
    track: str | None = None
    paper: str | None = None
    differs: str = ""
    metrics: tuple[str, ...] | None = None
    tune: dict[str, Any] = field(default_factory=dict)
    tuned: bool = True
    tune_settings: tuple[str, ...] = ()
    tuned_on: str | None = None


@dataclass(frozen=True)
class Method:
    """A method of a suite: one row of the tables.

    Attributes:
        name: name in tables and on the command line.
        recipe: recipe to train with; None means the recipe called `name`.
        settings: settings for this method.
        baseline: method to compare this one with; None means the suite's baseline.
        swept: whether the swept setting applies to the method. If False, the method is the same at every value of the
            sweep.
        tune: search space for this method.
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
    last_epoch: bool = False
    metrics: tuple[str, ...] = ("recall@1", "map@r")
    compared: tuple[str, ...] = ()
    paper: tuple[PaperTable, ...] = ()
    tune: Tuning = field(default_factory=Tuning)
    override: tuple[str, ...] = ()

    @property
    def sweep_key(self) -> str | None:
        """The swept setting, or None without a sweep."""
        return next(iter(self.sweep)) if self.sweep else None

    @property
    def sweep_values(self) -> tuple[Any, ...]:
        """The values of the swept setting; (None,) without a sweep."""
        return tuple(next(iter(self.sweep.values()))) if self.sweep else (None,)

    @property
    def tuning_value(self) -> Any:
        """The value of the swept setting that tuning trials use."""
        return self.sweep_values[0] if self.tune.at is None else self.tune.at

    def baseline_of(self, method: str) -> str | None:
        """Return the method that `method` is compared with; None if `method` is a baseline or there is no baseline."""
        specific = next((other.baseline for other in self.methods if other.name == method), None)
        name = specific or self.baseline
        return None if name == method else name

    def dataset_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return `names` with each track (group of datasets) replaced by the names of its datasets."""
        tracks: dict[str, list[str]] = {}
        for dataset in self.data:
            if dataset.track is not None:
                tracks.setdefault(dataset.track, []).append(dataset.name)
        return tuple(dict.fromkeys(dataset for name in names for dataset in tracks.get(name, [name])))

    def metrics_of(self, dataset: SuiteDataset) -> tuple[str, ...]:
        """Return the metrics shown for a dataset."""
        return dataset.metrics or self.metrics

    def to_dict(self) -> dict[str, Any]:
        """Return the suite as a dict of plain values, which `suite_from_dict` reads."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
