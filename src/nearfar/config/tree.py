"""Trees of settings, which are nested dicts: read them from YAML, merge them, and change them by KEY=VALUE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError

MOST_VALUES = 10_000


def read_config(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings as nested dicts."""
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NearfarError(f"{path}: the file cannot be read as YAML ({error})") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise NearfarError(f"{path}: the file must contain a mapping of settings, got {type(tree).__name__}")
    return tree


def parse_yaml(text: str) -> Any:
    """Return the plain values of a YAML text.

    Raises:
        ValueError: If the text is not valid YAML or expands to too many values.
    """
    import yaml  # here, so that --help is fast

    try:
        tree = yaml.safe_load(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as error:  # PyYAML does not catch errors from the constructors of int, float and date
        raise ValueError(str(error)) from None
    # A few lines of YAML aliases can expand to more values than fit into memory, or to a list that contains itself.
    waiting, count = [tree], 0
    while waiting:
        value = waiting.pop()
        count += 1
        if count > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
    return tree


def parse_setting(text: str) -> tuple[list[str], Any]:
    """Split `a.b=value` into its keys and its value, which is read as YAML.

    >>> parse_setting("optimizer.lr=1e-4"), parse_setting("track=[tensorboard]")
    ((['optimizer', 'lr'], 0.0001), (['track'], ['tensorboard']))
    """
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise NearfarError(f"a setting must be KEY=VALUE, for example optimizer.lr=1e-4, got {text!r}")
    try:
        parsed = parse_yaml(value) if value.strip() else None
    except ValueError as error:
        raise NearfarError(f"{key}: the value {value!r} is not valid YAML ({error})") from None
    if isinstance(parsed, str):
        with suppress(ValueError):  # YAML 1.1 reads 1e-4 as a string
            parsed = float(parsed)
    return key.strip().split("."), parsed


def apply_settings(tree: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Return the tree with `a.b=value` settings applied in order.

    >>> apply_settings({"loss": {"name": "mpa"}}, ["loss.alpha=16", "steps=5"])
    {'loss': {'name': 'mpa', 'alpha': 16}, 'steps': 5}
    """
    result = dict(tree)
    for text in settings:
        path, value = parse_setting(text)
        for key in reversed(path):
            value = {key: value}
        result = merge_trees(result, value)
    return result


def merge_trees(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `changes`. Nested dicts are merged, other values are replaced.

    >>> merge_trees({"loss": {"name": "mpa", "alpha": 5}, "epochs": 9}, {"loss": {"alpha": 7}})
    {'loss': {'name': 'mpa', 'alpha': 7}, 'epochs': 9}
    """
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge_trees(result[key], value) if both else value
    return result
