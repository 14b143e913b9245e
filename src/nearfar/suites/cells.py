"""The cells of a suite. A cell is one training run, or one per fold, with an id made of its configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nearfar.config.merge import resolve
from nearfar.config.schema import Config, Data
from nearfar.config.setting import build
from nearfar.config.tree import apply_settings, merge_trees
from nearfar.errors import NearfarError
from nearfar.metrics.names import expand_names
from nearfar.spelling import suggest
from nearfar.suites.config_id import config_id
from nearfar.suites.suite import Method, Suite, SuiteDataset
from nearfar.training.components import make_loss
from nearfar.training.splits import manifest_settings, open_manifest

TunedSettings = Mapping[tuple[str, str], tuple[str, ...]]  # settings by dataset and method


@dataclass(frozen=True)
class Cell:
    """A place in the tables, the configuration of its run, and the id of that configuration."""

    data: str
    method: str
    sweep: Any
    seed: int
    config: Config
    id: str

    @property
    def place(self) -> dict[str, Any]:
        """The keys that a results file holds beside the id."""
        return {"data": self.data, "method": self.method, "sweep": self.sweep, "seed": self.seed}

    def __str__(self) -> str:
        value = "" if self.sweep is None else f" at {self.sweep}"
        return f"{self.data}, {self.method}{value}, seed {self.seed}"


@dataclass(frozen=True)
class _DataSummary:
    kind: str
    width: int | None
    fingerprint: str


def find_source(dataset: SuiteDataset, sources: Mapping[str, str]) -> str:
    """Return the path of a dataset: from the command line, or else from the suite, with $VARIABLE expanded."""
    if dataset.name in sources:
        return sources[dataset.name]
    source = None if dataset.source is None else os.path.expandvars(dataset.source)
    if not source or "$" in source:
        variable = f"set {dataset.source}, " if source else ""
        raise NearfarError(
            f"{dataset.name}: the path of this data is not known: {variable}pass --data {dataset.name}=PATH, "
            "or choose other data of the suite with --only"
        )
    return source


def check_names(what: str, names: Iterable[str], known: Sequence[str], *, groups: Sequence[str] = ()) -> None:
    """Raise an error with a suggestion if a name is not known.

    Args:
        what: kind of the names, for the message.
        names: names to check.
        known: valid names.
        groups: further names to suggest, such as tracks, which the caller has expanded already.
    """
    suggestions = (*known, *groups)
    for name in names:
        if name not in known:
            raise NearfarError(
                f"the suite has no {what} {name!r}{suggest(name, suggestions)} Known: {', '.join(suggestions)}"
            )


class CellMaker:
    """Makes the cells of a suite and opens each dataset once.

    Args:
        suite: the suite.
        sources: paths by dataset name; they take precedence over the suite.
        only: names of the datasets to use; all if empty.
    """

    def __init__(self, suite: Suite, *, sources: Mapping[str, str] | None = None, only: tuple[str, ...] = ()) -> None:
        sources = sources or {}
        names = [dataset.name for dataset in suite.data]
        tracks = sorted({dataset.track for dataset in suite.data if dataset.track is not None})
        check_names("data", sources, names)
        check_names("data", only, names, groups=tracks)
        self.suite = suite
        self.data = [dataset for dataset in suite.data if not only or dataset.name in only]
        self._paths = {dataset.name: find_source(dataset, sources) for dataset in self.data}
        self._opened: dict[Data, _DataSummary] = {}

    def cell(
        self,
        dataset: SuiteDataset,
        method: Method,
        value: Any,
        seed: int,
        *,
        tuned: tuple[str, ...] = (),
        test: bool = True,
    ) -> Cell:
        """Make one cell.

        Args:
            dataset: dataset of the suite.
            method: method of the suite.
            value: value of the sweep.
            seed: seed of the run.
            tuned: settings that tuning chose.
            test: score the test split, before training too.
        """
        suite = self.suite
        shared = [*suite.settings, *dataset.settings]
        if any(setting.startswith("loss.name=") for setting in method.settings):
            shared = [setting for setting in shared if not setting.startswith("loss.")]  # options of another loss
        specific = [setting.replace("{sweep}", json.dumps(value)) for setting in method.settings]
        settings = [*shared, *specific, *suite.override, *tuned]
        if method.swept and suite.sweep_key is not None:
            settings.append(f"{suite.sweep_key}={json.dumps(value)}")
        if suite.folds is not None:
            settings += [f"data.folds={suite.folds}", "data.validation=0"]
        fixed = {"seed": seed, "test": test, "untrained": test, "data": {"source": self._paths[dataset.name]}}
        try:
            tree = merge_trees(apply_settings({}, settings), fixed)
            summary = self._open(build(Data, tree["data"], "data"))
            recipe = method.recipe or method.name
            config = resolve(summary.kind, width=summary.width, recipe=recipe, file=tree, shared=True)
            config = replace(
                config,
                data=replace(config.data, fingerprint=summary.fingerprint),
                metrics=tuple(dict.fromkeys((*config.metrics, *suite.metrics_of(dataset)))),
            )
            id_ = config_id(config, files=summary.kind == "files")
        except NearfarError as error:
            raise NearfarError(f"{dataset.name}, {method.name}: {error}") from None
        return Cell(dataset.name, method.name, value, seed, config, id_)

    def cells(self, tuned: TunedSettings | None = None) -> list[Cell]:
        """Make all cells in the order of the tables; all methods of a seed are next to each other.

        Places with the same configuration, such as a method that is not swept, share an id.
        """
        suite, tuned = self.suite, tuned or {}
        return [
            self.cell(dataset, method, value, seed, tuned=tuned.get((dataset.name, method.name), ()))
            for dataset in self.data
            for value in suite.sweep_values
            for seed in suite.seeds
            for method in suite.methods
        ]

    def _open(self, data: Data) -> _DataSummary:
        data = manifest_settings(data)
        if data not in self._opened:
            manifest = open_manifest(data)
            width = None if manifest.features is None else int(manifest.features.shape[1])
            self._opened[data] = _DataSummary(manifest.kind, width, manifest.fingerprint)
        return self._opened[data]


def check_losses_and_metrics(cells: Iterable[Cell]) -> None:
    """Raise an error for a loss, loss option or metric that is not valid, before the first run."""
    checked = set()
    for cell in cells:
        config = cell.config
        key = json.dumps([config.loss, config.metrics])
        if key in checked:
            continue
        checked.add(key)
        try:
            make_loss(config, classes=2, dim=2)
            expand_names(config.metrics, ks=(1,))
        except (NearfarError, ValueError) as error:
            raise NearfarError(f"{cell.data}, {cell.method}: {error}") from None


def suite_cells(
    suite: Suite,
    *,
    sources: Mapping[str, str] | None = None,
    only: tuple[str, ...] = (),
    tuned: TunedSettings | None = None,
) -> list[Cell]:
    """Make the cells of a suite; see `CellMaker`."""
    return CellMaker(suite, sources=sources, only=only).cells(tuned)
