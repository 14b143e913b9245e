"""A suite: methods x data x values of one setting x seeds, as a YAML file, to be compared under the same conditions.

    name, mirrors, differs   what it is, the paper's table or figure, and what is not as there
    data                     a list of {name, source, settings}; a source may be $VARIABLE, or left to the command line
    methods                  a list of {name, recipe, settings, baseline, swept}; recipe: the method's name by default
    baseline                 the method that others are compared to, unless they name their own
    seeds                    a list
    settings                 KEY=VALUE of all cells, as for `nearfar train --set`
    sweep                    one key with a list of values
    metrics                  shown in tables
    override                 settings above all others, of the command line's --set

Settings of the suite come first, then of the data, of the method, `override`, the sweep, the seed; later ones win. In
settings of a method {sweep} stands for the value of the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from nearfar.checks import nearest
from nearfar.errors import NearfarError
from nearfar.training.resolve import build, parse_setting, read_config

UNTRAINED = "untrained"


@dataclass(frozen=True)
class Source:
    """Data by a name; `source` as for `nearfar data`, $VARIABLE, or null: given on the command line."""

    name: str
    source: str | None = None
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Method:
    """A row of the tables. swept: false leaves the sweep's setting out, so the method is the same at every value."""

    name: str
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    baseline: str | None = None
    swept: bool = True


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
    metrics: tuple[str, ...] = ("recall@1", "map@r")
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
settings, baseline, swept
    """
    plain = dict(tree)
    for key in ("name", "data", "methods"):
        if not plain.get(key):
            raise NearfarError(f"{where}: {key} is missing, a suite needs name, data and methods")
    parts: tuple[tuple[str, type], ...] = (("data", Source), ("methods", Method))
    for key, table in parts:
        if not isinstance(plain[key], list):
            raise NearfarError(f"{where}: {key} must be a list of tables, each with a name, got {plain[key]!r}")
        plain[key] = [_part(table, each, f"{where}.{key}[{i}]") for i, each in enumerate(plain[key])]
    suite: Suite = build(Suite, plain, where)
    _check(suite, where)
    return suite


def _part(table: type, tree: Any, where: str) -> Any:
    try:
        return build(table, tree, where)
    except TypeError:  # the one key that both must have
        raise NearfarError(f"{where} must have a name, got {tree!r}") from None


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
            raise NearfarError(f"{where}: baseline {name!r} is none of its methods{nearest(name, methods)}")
    for each in suite.methods:
        for setting in each.settings:
            if "{sweep}" in setting and suite.sweep is None:
                raise NearfarError(f"{where}: {each.name} says {setting!r}, but there is no sweep")
    for setting in _all_settings(suite):
        key = ".".join(parse_setting(setting)[0])
        if key == "seed" or key == suite.sweep_key:
            cure = "seeds" if key == "seed" else "the values of sweep"
            raise NearfarError(f"{where}: {setting!r} would be overwritten, change {cure} instead")
        if key in ("recipe", "data.source", "data.fingerprint", "metrics", "untrained"):
            raise NearfarError(f"{where}: {key} cannot be among the settings, the suite decides on it")


def _values(sweep: Mapping[str, Any], where: str) -> list[Any]:
    values = next(iter(sweep.values()), None)
    if len(sweep) != 1 or not isinstance(values, list | tuple):
        raise NearfarError(f"{where}: sweep must be one key with a list of values, got {dict(sweep)!r}")
    return list(values)


def _all_settings(suite: Suite) -> list[str]:
    parts: list[Source | Method] = [*suite.data, *suite.methods]
    return [*suite.settings, *(setting for part in parts for setting in part.settings), *suite.override]


def _folder() -> Any:
    return files("nearfar.bench") / "suites"
