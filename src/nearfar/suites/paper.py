"""Numbers from a paper's tables, which our tables show next to our own numbers. In a suite file, they look like this:

paper:
  - data: cub                                  # shown with datasets of the suite that have `paper: cub`
    table: Table 4
    sweep: 8                                   # value of the sweep, if the suite has one
    metrics: [recall@1, map@r]
    methods: {mpa: [69.2, 26.6]}               # one percentage per metric; for 69.2 ± 0.3 write [69.2, 0.3]
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
    """Numbers from one table of a paper for one dataset.

    `methods` maps the name of each method to its numbers, in the order of `metrics`. `quoted` does the same for methods
    whose numbers the paper quotes from other papers.
    """

    data: str
    table: str
    metrics: tuple[str, ...]
    methods: dict[str, Any] = field(default_factory=dict)
    quoted: dict[str, Any] = field(default_factory=dict)
    sweep: int | float | str | None = None

    def rows(self, *, quoted: bool) -> dict[str, Any]:
        """Return `methods` or, if `quoted` is True, the methods whose numbers the paper quotes from other papers."""
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
    """Return the numbers that the tables print for a method and metric, one for each table that prints it.

    Args:
        tables: the paper's tables.
        data: the dataset, as the tables name it.
        sweep: value of the swept setting.
        method: name of the method.
        metric: name of the metric.
        quoted: whether the paper quotes the numbers of this method from another paper.
    """
    numbers = []
    for table in tables_of(tables, data, sweep):
        row = table.rows(quoted=quoted).get(method)
        number = None if row is None or metric not in table.metrics else row[table.metrics.index(metric)]
        if number is not None:
            value, spread = number if isinstance(number, list | tuple) else (number, None)
            numbers.append(PrintedNumber(float(value), None if spread is None else float(spread), table.table))
    return numbers


def tables_of(tables: Iterable[PaperTable], data: str | None, sweep: Any) -> list[PaperTable]:
    """Return the tables for a dataset and a value of the sweep; a table without `sweep` applies to every value."""
    return [table for table in tables if data is not None and table.data == data and table.sweep in (None, sweep)]


def check_paper(tables: Iterable[PaperTable], *, data: Iterable[str], methods: Iterable[str], where: str) -> None:
    """Check that each table names a dataset and methods of the suite and has a valid number for each metric.

    Args:
        tables: tables to check.
        data: values of the key `paper` in the suite's datasets.
        methods: names of the suite's methods.
        where: name of the suite file, for error messages.
    """
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
                raise NearfarError(
                    f"{place}: {name} must have one number per metric ({len(table.metrics)}), got {row!r}"
                )
            for number in row:
                if not _is_valid(number):
                    raise NearfarError(
                        f"{place}: {name}: each number must be a percentage, [mean, spread] or null, got {number!r}"
                    )


def _is_valid(number: Any) -> bool:
    if isinstance(number, list | tuple):
        return len(number) == 2 and all(part is not None and _is_valid(part) for part in number)
    return number is None or (isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= 100)
