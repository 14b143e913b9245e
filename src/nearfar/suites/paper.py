"""Numbers of a paper's tables, shown beside ours.

paper:
  - data: cub                                  # shown with datasets of the suite that have `paper: cub`
    table: Table 4
    sweep: 8                                   # value of the sweep, if the suite has one
    metrics: [recall@1, map@r]
    methods: {mpa: [69.2, 26.6]}               # methods of the suite, in percent; [69.2, 0.3] is 69.2 ± 0.3
    quoted: {Clustering: [48.2, null]}         # methods that the paper only quotes and the suite does not run
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nearfar.errors import NearfarError
from nearfar.spelling import suggest


@dataclass(frozen=True)
class PaperTable:
    """A paper's numbers on one of its datasets, by method in the order of `metrics`."""

    data: str
    table: str
    metrics: tuple[str, ...]
    methods: dict[str, Any] = field(default_factory=dict)
    quoted: dict[str, Any] = field(default_factory=dict)
    sweep: int | float | str | None = None

    def rows(self, *, quoted: bool) -> dict[str, Any]:
        """Return the numbers of the suite's methods, or of those that the paper only quotes."""
        return self.quoted if quoted else self.methods


@dataclass(frozen=True)
class PrintedNumber:
    """A number as a paper prints it, in percent, with its spread if it has one, and the name of the table."""

    value: float
    spread: float | None
    table: str

    def __str__(self) -> str:
        return f"{self.value}" if self.spread is None else f"{self.value} ± {self.spread}"


def find_numbers(
    tables: Iterable[PaperTable], data: str | None, sweep: Any, method: str, metric: str, *, quoted: bool = False
) -> list[PrintedNumber]:
    """Return the numbers that the tables print for a method and metric, one per table that has it."""
    numbers = []
    for table in tables_of(tables, data, sweep):
        row = table.rows(quoted=quoted).get(method)
        number = None if row is None or metric not in table.metrics else row[table.metrics.index(metric)]
        if number is not None:
            value, spread = number if isinstance(number, list | tuple) else (number, None)
            numbers.append(PrintedNumber(float(value), None if spread is None else float(spread), table.table))
    return numbers


def tables_of(tables: Iterable[PaperTable], data: str | None, sweep: Any) -> list[PaperTable]:
    """Return the tables of a dataset at a value of the sweep."""
    return [table for table in tables if data is not None and table.data == data and table.sweep in (None, sweep)]


def check_paper(tables: Iterable[PaperTable], *, data: Iterable[str], methods: Iterable[str], where: str) -> None:
    """Check that each table has datasets and methods of the suite, and a number from 0 to 100 or null per metric."""
    data, methods = list(data), list(methods)
    for i, table in enumerate(tables):
        place = f"{where}: paper[{i}]"
        if table.data not in data:
            raise NearfarError(f"{place}: no dataset of the suite has paper: {table.data}{suggest(table.data, data)}")
        for method in table.methods:
            if method not in methods:
                raise NearfarError(f"{place}: {method!r} is not a method of the suite{suggest(method, methods)}")
        for name, row in (*table.methods.items(), *table.quoted.items()):
            if not isinstance(row, list | tuple) or len(row) != len(table.metrics):
                raise NearfarError(f"{place}: {name} must have {len(table.metrics)} numbers, got {row!r}")
            for number in row:
                if not _is_valid(number):
                    raise NearfarError(f"{place}: {name}: must be percent, [mean, spread] or null, got {number!r}")


def _is_valid(number: Any) -> bool:
    if isinstance(number, list | tuple):
        return len(number) == 2 and all(part is not None and _is_valid(part) for part in number)
    return number is None or (isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= 100)
