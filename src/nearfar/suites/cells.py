"""The cells of a suite. A cell is a combination of dataset, method, seed and value of the swept setting.

With cross-validation folds, a cell trains one network per fold.
"""

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

TunedSettings = Mapping[tuple[str, str], tuple[str, ...]]  # tuned settings by (dataset name, method name)


@dataclass(frozen=True)
class Cell:
    """A cell of a suite: one method, trained on one dataset with one seed and one value of the swept setting.

    Attributes:
        data: name of the dataset.
        method: name of the method.
        sweep: value of the swept setting; None if the suite has no sweep.
        seed: seed of the run.
        config: configuration of the run.
        id: hash of the configuration (`config_id`).
    """

    data: str
    method: str
    sweep: Any
    seed: int
    config: Config
    id: str

    @property
    def place(self) -> dict[str, Any]:
        """Dataset, method, swept value and seed: the place of the cell in the tables, as stored in a results file."""
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
    """Return the path of a dataset: its entry in `sources`, or else its path in the suite, with $VARIABLE replaced."""
    if dataset.name in sources:
        return sources[dataset.name]
    source = None if dataset.source is None else os.path.expandvars(dataset.source)
    if not source or "$" in source:
        variable = f"set {dataset.source}, " if source else ""
        raise NearfarError(
            f"{dataset.name}: the path of this dataset is unknown: {variable}pass --data {dataset.name}=PATH, "
            "or choose other datasets of the suite with --only"
        )
    return source


def check_names(what: str, names: Iterable[str], known: Sequence[str], *, groups: Sequence[str] = ()) -> None:
    """Raise an error with a spelling suggestion if one of `names` is not in `known`.

    Args:
        what: what the names stand for, such as "method"; used in the error message.
        names: names to check.
        known: valid names.
        groups: further names that the error message lists, such as tracks. They are not valid in `names`, because the
            caller has already replaced each group with its members.
    """
    suggestions = (*known, *groups)
    for name in names:
        if name not in known:
            raise NearfarError(
                f"the suite has no {what} {name!r}{suggest(name, suggestions)} Known: {', '.join(suggestions)}"
            )


class CellMaker:
    """Factory for the cells of a suite. It opens each dataset only once.

    Args:
        suite: the suite.
        sources: paths by dataset name; they take precedence over the paths in the suite.
        only: names of the datasets to use; all if empty.
    """

    def __init__(self, suite: Suite, *, sources: Mapping[str, str] | None = None, only: tuple[str, ...] = ()) -> None:
        sources = sources or {}
        names = [dataset.name for dataset in suite.data]
        tracks = sorted({dataset.track for dataset in suite.data if dataset.track is not None})
        check_names("dataset", sources, names)
        check_names("dataset", only, names, groups=tracks)
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
            value: value of the swept setting; None if the suite has no sweep.
            seed: seed of the run.
            tuned: settings that tuning chose.
            test: whether to score the test split, both before and after training.
        """
        suite = self.suite
        shared = [*suite.settings, *dataset.settings]
        if any(setting.startswith("loss.name=") for setting in method.settings):
            # the loss options of the suite and the dataset belong to a different loss
            shared = [setting for setting in shared if not setting.startswith("loss.")]
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
        """Make all cells, ordered by dataset, value of the sweep, seed and method.

        Cells with the same configuration share an id. For example, a method with `swept: false` has the same id at
        every value of the sweep.
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
    """Raise an error if a cell has an invalid loss, loss option or metric, before any run starts."""
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
