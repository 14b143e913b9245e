"""Settings as fields of dataclasses: `option`, `table` and `section` describe a field, `build` checks its value.

Dataclass metadata is used in place of pydantic or msgspec because it adds no dependency and no import time, and
because the messages can name the full key, the value and the nearest known key.
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
    dict: "a table",
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
    """What is known about one setting besides its type and default.

    Attributes:
        help: One or two sentences for people.
        choices: The allowed values, if they are few.
        least: The smallest allowed value.
        above: A bound that is itself not allowed.
        most: The largest allowed value.
        below: A bound that is itself not allowed.
        neutral: Whether the trained weights and their scores do not depend on the setting. Such a setting may change
            when a run is resumed, and is no part of the identity of a benchmark cell.
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
        """The bounds in words: {"at least": 0, "below": 1}."""
        bounds = zip(COMPARE, (self.least, self.above, self.most, self.below), strict=True)
        return {name: bound for name, bound in bounds if bound is not None}

    def check(self, key: str, value: Any) -> None:
        """Raise a NearfarError if the value is none of the choices or out of bounds."""
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
    """Declare a field of a settings table, see `Setting` for the limits."""
    return field(default=default, metadata={"setting": Setting(help, **limits)})


def table(help: str) -> Any:
    """Declare a field that holds the options of a loss, a pacer or a sampler; its owner checks them."""
    return field(default_factory=dict, metadata={"setting": Setting(help)})


def section(kind: type, help: str) -> Any:
    """Declare a field that holds another table."""
    return field(default_factory=kind, metadata={"setting": Setting(help)})


@cache
def type_hints(table: type) -> dict[str, Any]:
    """Return the types of a table's fields."""
    return get_type_hints(table)


def is_section(hint: Any) -> bool:
    """Return whether a field of this type is a table of settings itself."""
    return isinstance(hint, type) and is_dataclass(hint)


def walk(table: type, prefix: str = "") -> Iterator[tuple[str, Field[Any], Any]]:
    """Yield (key, field, type) of every setting below a table, sections included, in order."""
    for each in fields(table):
        hint = type_hints(table)[each.name]
        yield f"{prefix}{each.name}", each, hint
        if is_section(hint):
            yield from walk(hint, f"{prefix}{each.name}.")


def build(table: type, tree: Any, where: str = "", *, root: type | None = None) -> Any:
    """Make a table (dataclass) from a tree of plain values.

    Args:
        table: The dataclass.
        tree: Its values, as YAML gives them.
        where: The key of the table, for error messages.
        root: The outermost table, whose other sections are searched for the key that was meant.

    Raises:
        NearfarError: If a key is unknown, or a value has the wrong type or is out of bounds.
    """
    if not isinstance(tree, Mapping):
        raise NearfarError(f"{where or 'the configuration'} must be a table of settings, got {tree!r}")
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


def _typed(hint: Any, value: Any, where: str) -> Any:
    kinds = variants(hint)
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        if kind is dict and (isinstance(value, Mapping) or value is None):
            return dict(value or {})
        if kind is tuple and isinstance(value, list | tuple | str):
            return tuple([value] if isinstance(value, str) else value)
        if kind is int and isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0:
            return int(value)
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if kind in (bool, str) and isinstance(value, kind):
            return value
    raise NearfarError(f"{where} must be {' or '.join(KINDS.get(kind, str(kind)) for kind in kinds)}, got {value!r}")
