"""The cells of a suite: one training run each, with an id that says everything that decides its scores."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from nearfar.config.merge import resolve
from nearfar.config.schema import Config, Data, neutral_settings
from nearfar.config.setting import build
from nearfar.config.tree import apply_settings, merge_trees
from nearfar.data.layouts.archive import is_archive
from nearfar.errors import NearfarError
from nearfar.files import compute_sha256
from nearfar.metrics.names import expand
from nearfar.suites.suite import Method, Source, Suite
from nearfar.training.prepare import make_loss, open_manifest, opening
from nearfar.validation import nearest

Chosen = Mapping[tuple[str, str], tuple[str, ...]]  # settings by data and method


@dataclass(frozen=True)
class Cell:
    """A place in the tables, the configuration that fills it, and its id."""

    data: str
    method: str
    sweep: Any
    seed: int
    config: Config
    id: str

    @property
    def place(self) -> dict[str, Any]:
        """What is written beside the id."""
        return {"data": self.data, "method": self.method, "sweep": self.sweep, "seed": self.seed}

    def __str__(self) -> str:
        value = "" if self.sweep is None else f" at {self.sweep}"
        return f"{self.data}, {self.method}{value}, seed {self.seed}"


@dataclass(frozen=True)
class _Opened:
    kind: str
    width: int | None
    fingerprint: str


def source_of(source: Source, given: Mapping[str, str]) -> str:
    """Where data is: from the command line, else from the suite, where $VARIABLE is looked up."""
    if source.name in given:
        return given[source.name]
    found = None if source.source is None else os.path.expandvars(source.source)
    if not found or "$" in found:
        variable = f"set {source.source}, " if found else ""
        raise NearfarError(
            f"{source.name}: the suite does not say where the data is: {variable}pass --data {source.name}=PATH, "
            "or choose other data of the suite with --only"
        )
    return found


def check_named(what: str, wanted: Iterable[str], known: Sequence[str], *, also: Sequence[str] = ()) -> None:
    """An error that suggests the nearest for a name of data or of a method that the suite does not have.

    also: names that stand for several, as tracks do for their data.
    """
    every = (*known, *also)
    for name in wanted:
        if name not in known:
            raise NearfarError(f"the suite has no {what} {name!r}{nearest(name, every)} Known: {', '.join(every)}")


class CellMaker:
    """Makes the cells of a suite, each data opened once. given: sources by the names of data; only: those to take."""

    def __init__(self, suite: Suite, *, given: Mapping[str, str] | None = None, only: tuple[str, ...] = ()) -> None:
        given = given or {}
        known = [each.name for each in suite.data]
        tracks = sorted({each.track for each in suite.data if each.track is not None})
        check_named("data", given, known)
        check_named("data", only, known, also=tracks)
        self.suite = suite
        self.data = [each for each in suite.data if not only or each.name in only]
        self._where = {each.name: source_of(each, given) for each in self.data}
        self._opened: dict[Data, _Opened] = {}

    def cell(
        self,
        source: Source,
        method: Method,
        value: Any,
        seed: int,
        *,
        tuned: tuple[str, ...] = (),
        test: bool = True,
    ) -> Cell:
        """The cell of a place, with the settings that tuning chose. test: score the test split, before training too."""
        suite = self.suite
        shared = [*suite.settings, *source.settings]
        if any(each.startswith("loss.name=") for each in method.settings):
            shared = [each for each in shared if not each.startswith("loss.")]  # options of another loss
        own = [each.replace("{sweep}", json.dumps(value)) for each in method.settings]
        settings = [*shared, *own, *suite.override, *tuned]
        if method.swept and suite.sweep_key is not None:
            settings.append(f"{suite.sweep_key}={json.dumps(value)}")
        if suite.folds is not None:
            settings += [f"data.folds={suite.folds}", "data.validation=0"]
        where = {"seed": seed, "test": test, "untrained": test, "data": {"source": self._where[source.name]}}
        tree = merge_trees(apply_settings({}, settings), where)
        try:
            found = self._open(build(Data, tree["data"], "data"))
            recipe = method.recipe or method.name
            config = resolve(found.kind, width=found.width, recipe=recipe, file=tree, shared=True)
            config = replace(
                config,
                data=replace(config.data, fingerprint=found.fingerprint),
                metrics=tuple(dict.fromkeys((*config.metrics, *(source.metrics or suite.metrics)))),
            )
            name = config_id(config, files=found.kind == "files")
        except NearfarError as error:
            raise NearfarError(f"{source.name}, {method.name}: {error}") from None
        return Cell(source.name, method.name, value, seed, config, name)

    def cells(self, chosen: Chosen | None = None) -> list[Cell]:
        """All cells in the order of the tables, each of the same work next to the others' seeds.

        Places that come to the same configuration (a method without the sweep) share an id. chosen: what tuning found,
        by data and method.
        """
        suite, found = self.suite, chosen or {}
        return [
            self.cell(source, method, value, seed, tuned=found.get((source.name, method.name), ()))
            for source in self.data
            for value in suite.sweep_values
            for seed in suite.seeds
            for method in suite.methods
        ]

    def _open(self, data: Data) -> _Opened:
        data = opening(data)
        if data not in self._opened:
            manifest = open_manifest(data)
            width = None if manifest.features is None else int(manifest.features.shape[1])
            self._opened[data] = _Opened(manifest.kind, width, manifest.fingerprint)
        return self._opened[data]


def check_parts(cells: Iterable[Cell]) -> None:
    """An error for a loss, its options or a metric that no run could have; data and network show theirs in a run."""
    seen = set()
    for cell in cells:
        config = cell.config
        key = json.dumps([config.loss, config.metrics])
        if key in seen:
            continue
        seen.add(key)
        try:
            make_loss(config, classes=2, dim=2)
            expand(config.metrics, ks=(1,))
        except (NearfarError, ValueError) as error:
            raise NearfarError(f"{cell.data}, {cell.method}: {error}") from None


def suite_cells(
    suite: Suite,
    *,
    given: Mapping[str, str] | None = None,
    only: tuple[str, ...] = (),
    chosen: Chosen | None = None,
) -> list[Cell]:
    """The cells of a suite: see `CellMaker`."""
    return CellMaker(suite, given=given, only=only).cells(chosen)


def _weights(path: Path) -> str:
    try:
        return compute_sha256(path)
    except OSError as error:
        raise NearfarError(
            f"model.pretrained={path}: cannot be read ({error.strerror}): make that run first, or name another file "
            "(docs/benchmarks/suites.md has the command for suites that start warm)"
        ) from None


@lru_cache(maxsize=16)
def _archive(path: Path, size: int, changed: int) -> str:
    try:
        return compute_sha256(path)
    except OSError as error:
        raise NearfarError(f"data.source={path}: cannot be read ({error.strerror})") from None


def _pictures(source: str) -> str:
    """Pictures by the content of their archive; those in folders by where they are, as reading them all takes long."""
    path = Path(source).expanduser()
    if not is_archive(path):
        return source
    state = path.stat()
    return _archive(path, state.st_size, state.st_mtime_ns)


def config_id(config: Config, *, files: bool = False) -> str:
    """A hash of everything that decides a run's scores.

    Arrays are named by their fingerprint, an archive of pictures and a weight file by their content, wherever they lie.
    The fingerprint of picture `files` does not see their bytes, so for those in folders the source counts as well.
    """
    tree = config.to_dict()
    for key in neutral_settings():
        section, _, leaf = key.rpartition(".")
        del (tree[section] if section else tree)[leaf]
    if not tree["batches"]["options"]:
        del tree["batches"]["options"]
    data = tree["data"]
    # runs from before there were these keep their id
    if data["folds"] is None:
        del data["folds"], data["fold"]
    if data["per_class"] is None:
        del data["per_class"]
    data["cache"] = data["cache"] is not None
    if files:
        data["source"] = _pictures(data["source"])
    else:
        for key in ("source", "root", "labels"):
            del data[key]
    start = tree["model"]["pretrained"]
    if isinstance(start, str):
        tree["model"]["pretrained"] = _weights(Path(start).expanduser())
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
