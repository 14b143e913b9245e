"""The columns of a suite's table: our scores, differences from the baseline, and the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nearfar.metrics.intervals import Interval
from nearfar.suites.paper import PaperTable, PrintedNumber, find_numbers, tables_of
from nearfar.suites.suite import Suite
from nearfar.suites.summary import Block, Row

ON_TEST = "epoch selected on the test set, as in the paper"
NOT_SWEPT = "not swept"
QUOTED = "quoted"
NONE = "–"
# measures of how well sample weights detect added label noise: maps the key in the results to the column heading
DETECTION = {"auroc": "wrong labels: AUROC", "precision": "wrong labels: precision"}


@dataclass(frozen=True)
class CellText:
    """The content of a table cell."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: heading.
        ours: returns the content for a row with our results.
        quoted: returns the content for a method (by name) whose numbers the paper quotes from other papers.
    """

    head: str
    ours: Callable[[Row], CellText]
    quoted: Callable[[str], CellText] = lambda _: CellText(NONE)


def columns(suite: Suite, block: Block) -> list[Column]:
    """Return the columns of the table that shows a block.

    Differences from the baseline, numbers from the paper and the detection of wrong labels are left out if there are
    none.
    """
    has_baseline = any(row.baseline for row in block.rows)
    result = [Column("method", _name, lambda name: CellText(f"{name} ({QUOTED})"))]
    if has_baseline:
        result.append(Column("against", lambda row: CellText(row.baseline or NONE)))
    for metric in suite.metrics_of(block.source):
        result.append(_score(metric))
        if has_baseline and metric in suite.compared:
            result.append(_difference(metric))
        if any(metric in table.metrics for table in paper_tables(suite, block)):
            result.append(_paper(suite, block, metric))
    for key, head in DETECTION.items():
        if any(row.detection for row in block.rows):
            result.append(_detection(key, head))
    result.append(Column("seconds", lambda row: CellText(NONE if row.seconds is None else f"{row.seconds:.1f}")))
    result.append(
        Column("n", lambda row: CellText(f"{row.n}" if row.n == row.expected else f"{row.n} of {row.expected}"))
    )
    return result


def paper_tables(suite: Suite, block: Block) -> list[PaperTable]:
    """Return the paper's tables whose numbers are shown next to ours in the table of a block."""
    return tables_of(suite.paper, block.source.paper, block.sweep)


def quoted_names(suite: Suite, block: Block) -> list[str]:
    """Return the names of the methods whose numbers the paper quotes from other papers, in the paper's order."""
    return list(dict.fromkeys(name for table in paper_tables(suite, block) for name in table.quoted))


def paper_numbers(suite: Suite, block: Block, method: str, metric: str, *, quoted: bool = False) -> list[PrintedNumber]:
    """Return the paper's numbers for a method and metric.

    `quoted` must be True if the paper quotes the numbers of this method from another paper.
    """
    return find_numbers(suite.paper, block.source.paper, block.sweep, method, metric, quoted=quoted)


def format_mean(value: Interval) -> str:
    """Format a mean and the half-width of its interval, both in percent. With a single value, format only the mean.

    >>> format_mean(Interval(0.5, 0.49, 0.51, 3)), format_mean(Interval(0.5, -float("inf"), float("inf"), 1))
    ('50.00 ± 1.00', '50.00')
    """
    return f"{100 * value.mean:.2f}" + (f" ± {100 * value.half:.2f}" if value.n > 1 else "")


def marks(row: Row) -> list[str]:
    """Return remarks on how the numbers of a row were obtained."""
    return [*([ON_TEST] if row.on_test else []), *([] if row.swept else [NOT_SWEPT])]


def _name(row: Row) -> CellText:
    return CellText(f"{row.method} ({'; '.join(marks(row))})" if marks(row) else row.method)


def _score(metric: str) -> Column:
    return Column(metric, lambda row: CellText(format_mean(row.scores[metric]) if row.n else "missing"))


def _difference(metric: str) -> Column:
    def ours(row: Row) -> CellText:
        difference = row.differences.get(metric)
        if difference is None:
            return CellText(NONE if row.baseline is None else "missing")
        text = f"{100 * difference.mean:+.2f}"
        if difference.n > 1:
            text += f" [{100 * difference.low:+.2f}, {100 * difference.high:+.2f}]"
        if difference.n != row.n:
            text += f" (n = {difference.n})"
        return CellText(text, bold=difference.excludes_zero)

    return Column(f"{metric}, difference", ours)


def _paper(suite: Suite, block: Block, metric: str) -> Column:
    several = sum(metric in table.metrics for table in paper_tables(suite, block)) > 1

    def text(numbers: Iterable[PrintedNumber]) -> CellText:
        return CellText(
            "; ".join(f"{number} ({number.table})" if several else f"{number}" for number in numbers) or NONE
        )

    return Column(
        f"{metric}, paper",
        lambda row: text(paper_numbers(suite, block, row.method, metric)),
        lambda name: text(paper_numbers(suite, block, name, metric, quoted=True)),
    )


def _detection(key: str, head: str) -> Column:
    return Column(head, lambda row: CellText(format_mean(row.detection[key]) if row.detection else NONE))
