"""Open the suites that come with nearfar by their names, and other suites from YAML files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from nearfar.config.setting import build
from nearfar.config.tree import read_config
from nearfar.errors import NearfarError
from nearfar.spelling import suggest
from nearfar.suites.paper import PaperTable
from nearfar.suites.shared_data import expand_entry
from nearfar.suites.suite import Method, Suite, SuiteDataset
from nearfar.suites.suite_checks import check_suite


def suite_names() -> list[str]:
    """Return the names of the suites that come with nearfar."""
    return sorted(file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml"))


def open_suite(spec: str) -> Suite:
    """Open a suite by name or from a YAML file."""
    names = suite_names()
    if spec in names:
        return suite_from_dict(yaml.safe_load((_folder() / f"{spec}.yaml").read_text(encoding="utf-8")), spec)
    if not Path(spec).is_file():
        raise NearfarError(
            f"{spec!r} is neither the name of a suite nor a file{suggest(spec, names)} Known: {', '.join(names)}"
        )
    return suite_from_dict(read_config(Path(spec)), spec)


def suite_from_dict(tree: Mapping[str, Any], where: str = "the suite") -> Suite:
    """Build a suite from plain values and check it.

    Args:
        tree: the content of a suite file.
        where: name of the file for error messages.

    >>> suite_from_dict({"name": "a", "data": [{"name": "sketches", "source": "sketches"}], "methods": [{"nam": "x"}]})
    Traceback (most recent call last):
    ...
    nearfar.errors.NearfarError: the suite.methods[0] has no 'nam'; did you mean 'name'? Known: name, recipe, \
settings, baseline, swept, tune, note
    """
    values = dict(tree)
    for key in ("name", "data", "methods"):
        if not values.get(key):
            raise NearfarError(f"{where}: {key} is missing; a suite needs name, data and methods")
    values.setdefault("paper", [])
    parts: tuple[tuple[str, type], ...] = (("data", SuiteDataset), ("methods", Method), ("paper", PaperTable))
    for key, table in parts:
        if not isinstance(values[key], list):
            raise NearfarError(f"{where}: {key} must be a list, got {values[key]!r}")
        entries = []
        for i, entry in enumerate(values[key]):
            path = f"{where}.{key}[{i}]"
            entries.append(_build_part(table, expand_entry(entry, path) if key == "data" else entry, path))
        values[key] = entries
    suite = _add_metrics(build(Suite, values, where))
    check_suite(suite, where)
    return suite


def _add_metrics(suite: Suite) -> Suite:
    """Fill in the metrics of each dataset, and set the metrics of the suite to their union."""

    def metrics_of(dataset: SuiteDataset) -> tuple[str, ...]:
        if dataset.metrics:
            return dataset.metrics
        printed = [metric for table in suite.paper if table.data == dataset.paper for metric in table.metrics]
        return tuple(dict.fromkeys((*suite.metrics, *printed)))

    data = tuple(replace(dataset, metrics=metrics_of(dataset)) for dataset in suite.data)
    metrics = tuple(
        dict.fromkeys((*suite.metrics, *(metric for dataset in suite.data for metric in metrics_of(dataset))))
    )
    return replace(suite, data=data, metrics=metrics, compared=suite.compared or suite.metrics)


def _build_part(table: type, tree: Any, where: str) -> Any:
    try:
        return build(table, tree, where)
    except TypeError:  # a required key is missing
        required = [item.name for item in fields(table) if item.default is item.default_factory is MISSING]
        raise NearfarError(f"{where} needs the keys {', '.join(required)}, got {tree!r}") from None


def _folder() -> Any:
    return files("nearfar.suites") / "definitions"
