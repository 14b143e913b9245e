"""Settings as fields of dataclasses. A dataclass of settings is called a table.

`option`, `table` and `section` declare a field with its description. `build` creates a table from plain values and
checks them. We use dataclass metadata instead of pydantic or msgspec because it adds no dependency and no import time,
and because error messages can then name the full key, the value and the closest known key.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from nearfar.config.names import suggest_setting
from nearfar.errors import NearfarError
from nearfar.spelling import suggest

KINDS: dict[Any, str] = {
    type(None): "null",
    tuple: "a list",
    dict: "a mapping",
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "at least": operator.ge,
    "above": operator.gt,
    "at most": operator.le,
    "below": operator.lt,
}


@dataclass(frozen=True)
class Setting:
    """The description of a setting: everything besides its type and default.

    Attributes:
        help: Help text for users, one or two sentences.
        choices: The allowed values; empty if the values are not limited to a list.
        least: Inclusive lower bound.
        above: Exclusive lower bound.
        most: Inclusive upper bound.
        below: Exclusive upper bound.
        neutral: If True, the trained weights and their scores do not depend on the setting. Such a setting may change
            when a run is resumed, and it is not part of the id of a run in a benchmark suite.
    """

    help: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    neutral: bool = False

    @property
    def limits(self) -> dict[str, float]:
        """The bounds of the setting by name, for example {"at least": 0, "below": 1}."""
        bounds = zip(COMPARE, (self.least, self.above, self.most, self.below), strict=True)
        return {name: bound for name, bound in bounds if bound is not None}

    def check(self, key: str, value: Any) -> None:
        """Raise a NearfarError if the value is not one of the choices or is out of bounds."""
        if value is None:
            return
        if self.choices and value not in self.choices:
            raise NearfarError(
                f"{key} must be one of {', '.join(self.choices)}, got {value!r}{suggest(value, self.choices)}"
            )
        for name, bound in self.limits.items():
            if not COMPARE[name](value, bound):
                raise NearfarError(f"{key} must be {name} {_number(bound)}, got {value!r}")


def _number(value: float) -> str:
    return f"{value:,}" if abs(value) < 2**53 else f"2**{int(value).bit_length() - 1}"


def option(default: Any, help: str, **limits: Any) -> Any:
    """Declare a field that holds a single value; see `Setting` for the choices and bounds."""
    return field(default=default, metadata={"setting": Setting(help, **limits)})


def table(help: str) -> Any:
    """Declare a field that holds the options of a loss, a pacer or a sampler, which checks them itself."""
    return field(default_factory=dict, metadata={"setting": Setting(help)})


def section(kind: type, help: str) -> Any:
    """Declare a field that holds a nested table of this kind."""
    return field(default_factory=kind, metadata={"setting": Setting(help)})


@cache
def type_hints(table: type) -> dict[str, Any]:
    """Return the types of a table's fields by name."""
    return get_type_hints(table)


def is_section(hint: Any) -> bool:
    """Return whether a field of this type holds a nested table."""
    return isinstance(hint, type) and is_dataclass(hint)


def walk(table: type, prefix: str = "") -> Iterator[tuple[str, Field[Any], Any]]:
    """Yield (dotted key, field, type) of every field of a table, in order.

    A nested table is followed by its own fields. `prefix` is put before every key.
    """
    for each in fields(table):
        hint = type_hints(table)[each.name]
        yield f"{prefix}{each.name}", each, hint
        if is_section(hint):
            yield from walk(hint, f"{prefix}{each.name}.")


def build(table: type, tree: Any, where: str = "", *, root: type | None = None) -> Any:
    """Create a table from plain values and check them.

    Args:
        table: The dataclass to create.
        tree: Its values as nested dicts, as read from YAML.
        where: The dotted key of the table, for error messages.
        root: The outermost table. For an unknown key, its keys are searched for a suggestion.

    Raises:
        NearfarError: If a key is unknown, or a value has the wrong type or is out of bounds.
    """
    if not isinstance(tree, Mapping):
        raise NearfarError(f"{where or 'the configuration'} must be a mapping of settings, got {tree!r}")
    known = {each.name: each for each in fields(table)}
    values: dict[str, Any] = {}
    for key, value in tree.items():
        place = f"{where}.{key}" if where else str(key)
        if key not in known:
            meant = suggest_setting(str(key), list(known), where, [] if root is None else [k for k, _, _ in walk(root)])
            raise NearfarError(f"{where or 'the configuration'} has no {key!r}{meant} Known: {', '.join(known)}")
        hint = type_hints(table)[key]
        if is_section(hint):
            values[key] = build(hint, {} if value is None else value, place, root=root)
        else:
            values[key] = _typed(hint, value, place)
            described = known[key].metadata.get("setting")
            if described is not None:
                described.check(place, values[key])
    return table(**values)


def variants(hint: Any) -> tuple[Any, ...]:
    """Return the plain types of a union: `int | None` gives (int, NoneType), `tuple[str, ...]` gives (tuple,)."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return tuple(get_origin(part) or part for part in parts)


def _item_type(hint: Any) -> Any:
    """Return the item type of `tuple[item, ...]`, even if the tuple is part of a union. Return None for other types."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return next((get_args(part)[0] for part in parts if get_origin(part) is tuple), None)


def _typed(hint: Any, value: Any, where: str) -> Any:
    kinds = variants(hint)
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        if kind is dict and (isinstance(value, Mapping) or value is None):
            return dict(value or {})
        if kind is tuple and isinstance(value, list | tuple | str):
            items = [value] if isinstance(value, str) else value
            kind_of_item = _item_type(hint)
            if kind_of_item not in KINDS:
                return tuple(items)
            return tuple(_typed(kind_of_item, item, f"{where}[{i}]") for i, item in enumerate(items))
        if kind is int and isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0:
            return int(value)
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if kind in (bool, str) and isinstance(value, kind):
            return value
    raise NearfarError(f"{where} must be {' or '.join(KINDS.get(kind, str(kind)) for kind in kinds)}, got {value!r}")


def to_plain(value: Any) -> Any:
    """Return a tree with its tuples as lists, as YAML and JSON write them."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value
