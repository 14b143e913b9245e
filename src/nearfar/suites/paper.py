"""The numbers of a paper's tables, to stand beside ours.

paper:
  - data: cub                                  # the data of the suite whose `paper` says so
    table: Table 4
    sweep: 8                                   # where the suite has a sweep: at this value of it
    metrics: [recall@1, map@r]
    methods: {mpa: [69.2, 26.6]}               # rows of the suite, in per cent; [69.2, 0.3] is 69.2 ± 0.3
    quoted: {Clustering: [48.2, null]}         # rows that the paper only quotes: nothing of ours
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nearfar.errors import NearfarError
from nearfar.validation import nearest


@dataclass(frozen=True)
class PaperTable:
    """A paper's numbers on one of its data sets, by method in the order of `metrics`."""

    data: str
    table: str
    metrics: tuple[str, ...]
    methods: dict[str, Any] = field(default_factory=dict)
    quoted: dict[str, Any] = field(default_factory=dict)
    sweep: int | float | str | None = None

    def rows(self, *, quoted: bool) -> dict[str, Any]:
        """The numbers of the suite's own methods, or of those that the paper quotes."""
        return self.quoted if quoted else self.methods


@dataclass(frozen=True)
class Printed:
    """A number as a paper prints it, in per cent, its spread if it has one, and the table."""

    value: float
    spread: float | None
    table: str

    def __str__(self) -> str:
        return f"{self.value}" if self.spread is None else f"{self.value} ± {self.spread}"


def printed(
    tables: Iterable[PaperTable], data: str | None, sweep: Any, method: str, metric: str, *, quoted: bool = False
) -> list[Printed]:
    """What the tables print for a place: nothing, a number, or one for each table that has it."""
    found = []
    for each in tables_of(tables, data, sweep):
        row = each.rows(quoted=quoted).get(method)
        number = None if row is None or metric not in each.metrics else row[each.metrics.index(metric)]
        if number is not None:
            value, spread = number if isinstance(number, list | tuple) else (number, None)
            found.append(Printed(float(value), None if spread is None else float(spread), each.table))
    return found


def tables_of(tables: Iterable[PaperTable], data: str | None, sweep: Any) -> list[PaperTable]:
    """The tables for data, at a value of the sweep."""
    return [each for each in tables if data is not None and each.data == data and each.sweep in (None, sweep)]


def check_paper(tables: Iterable[PaperTable], *, data: Iterable[str], methods: Iterable[str], where: str) -> None:
    """Every table is about data and methods of the suite, with a number from 0 to 100, or null, for each metric."""
    known, named = list(data), list(methods)
    for i, each in enumerate(tables):
        place = f"{where}: paper[{i}]"
        if each.data not in known:
            raise NearfarError(f"{place}: no data of the suite has paper: {each.data}{nearest(each.data, known)}")
        for method in each.methods:
            if method not in named:
                raise NearfarError(f"{place}: {method!r} is none of the methods{nearest(method, named)}")
        for name, row in (*each.methods.items(), *each.quoted.items()):
            if not isinstance(row, list | tuple) or len(row) != len(each.metrics):
                raise NearfarError(f"{place}: {name} must have {len(each.metrics)} numbers, got {row!r}")
            for number in row:
                if not _is_printed(number):
                    raise NearfarError(f"{place}: {name}: must be per cent, [mean, spread] or null, got {number!r}")


def _is_printed(number: Any) -> bool:
    if isinstance(number, list | tuple):
        return len(number) == 2 and all(each is not None and _is_printed(each) for each in number)
    return number is None or (isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= 100)
