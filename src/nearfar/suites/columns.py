"""The columns of a suite's table: ours, the differences to the baseline, and what the paper prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nearfar.metrics.intervals import Interval
from nearfar.suites.paper import PaperTable, Printed, printed, tables_of
from nearfar.suites.suite import Suite
from nearfar.suites.summary import Block, Row

ON_TEST = "as in the paper, chosen on the test set"
NOT_SWEPT = "not swept"
QUOTED = "quoted"
NONE = "–"
# how well the weights of samples find labels made wrong on purpose: the key of a cell, and the head of its column
DETECTION = {"auroc": "wrong labels: AUROC", "precision": "precision at their number"}


@dataclass(frozen=True)
class Text:
    """What stands in a field of a table."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Column:
    """A head, the field of a row of ours, and the field of a method that the paper only quotes."""

    head: str
    ours: Callable[[Row], Text]
    quoted: Callable[[str], Text] = lambda _: Text(NONE)


def columns(suite: Suite, block: Block) -> list[Column]:
    """All columns of a block; what no row has is left out."""
    compared = any(row.baseline for row in block.rows)
    found = [Column("method", _name, lambda name: Text(f"{name} ({QUOTED})"))]
    if compared:
        found.append(Column("against", lambda row: Text(row.baseline or NONE)))
    for metric in suite.metrics_of(block.source):
        found.append(_score(metric))
        if compared and metric in suite.compared:
            found.append(_difference(metric))
        if any(metric in each.metrics for each in paper_tables(suite, block)):
            found.append(_paper(suite, block, metric))
    for key, head in DETECTION.items():
        if any(row.detection for row in block.rows):
            found.append(_detection(key, head))
    found.append(Column("seconds", lambda row: Text(NONE if row.seconds is None else f"{row.seconds:.1f}")))
    found.append(Column("n", lambda row: Text(f"{row.n}" if row.n == row.expected else f"{row.n} of {row.expected}")))
    return found


def paper_tables(suite: Suite, block: Block) -> list[PaperTable]:
    """The paper's tables that a block stands beside."""
    return tables_of(suite.paper, block.source.paper, block.sweep)


def quoted_names(suite: Suite, block: Block) -> list[str]:
    """The methods that the paper quotes there, in its order."""
    return list(dict.fromkeys(name for each in paper_tables(suite, block) for name in each.quoted))


def paper_numbers(suite: Suite, block: Block, method: str, metric: str, *, quoted: bool = False) -> list[Printed]:
    """What the paper prints for a row."""
    return printed(suite.paper, block.source.paper, block.sweep, method, metric, quoted=quoted)


def mean_text(found: Interval) -> str:
    """In per cent.

    >>> mean_text(Interval(0.5, 0.49, 0.51, 3)), mean_text(Interval(0.5, -float("inf"), float("inf"), 1))
    ('50.00 ± 1.00', '50.00')
    """
    return f"{100 * found.mean:.2f}" + (f" ± {100 * found.half:.2f}" if found.n > 1 else "")


def marks(row: Row) -> list[str]:
    """What a reader must know of a method's numbers."""
    return [*([ON_TEST] if row.on_test else []), *([] if row.swept else [NOT_SWEPT])]


def _name(row: Row) -> Text:
    return Text(f"{row.method} ({'; '.join(marks(row))})" if marks(row) else row.method)


def _score(metric: str) -> Column:
    return Column(metric, lambda row: Text(mean_text(row.scores[metric]) if row.n else "missing"))


def _difference(metric: str) -> Column:
    def ours(row: Row) -> Text:
        found = row.differences.get(metric)
        if found is None:
            return Text(NONE if row.baseline is None else "missing")
        text = f"{100 * found.mean:+.2f}"
        if found.n > 1:
            text += f" [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
        if found.n != row.n:
            text += f" (n = {found.n})"
        return Text(text, bold=found.clear)

    return Column(f"{metric}, difference", ours)


def _paper(suite: Suite, block: Block, metric: str) -> Column:
    several = sum(metric in each.metrics for each in paper_tables(suite, block)) > 1

    def text(numbers: Iterable[Printed]) -> Text:
        return Text("; ".join(f"{each} ({each.table})" if several else f"{each}" for each in numbers) or NONE)

    return Column(
        f"{metric}, paper",
        lambda row: text(paper_numbers(suite, block, row.method, metric)),
        lambda name: text(paper_numbers(suite, block, name, metric, quoted=True)),
    )


def _detection(key: str, head: str) -> Column:
    return Column(head, lambda row: Text(mean_text(row.detection[key]) if row.detection else NONE))
