"""From the results of a suite to what its tables say: means, paired differences, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from nearfar.metrics.intervals import Interval, interval
from nearfar.suites.results import Results
from nearfar.suites.suite import UNTRAINED, Source

Scores = Mapping[str, float]
CONCATENATED = "concatenated"
FORMS = ("separated", CONCATENATED)


@dataclass(frozen=True)
class Row:
    """A method on data, at a value of the sweep.

    scores: means over the seeds that there are, by metric; differences: to the baseline over the seeds that both have.
    seconds: of training without the test, the median, since a machine may pause. selected_by: how epochs were chosen.
    swept: whether the method has the value of the sweep. missing: seeds
    without scores, with the reason.
    batch: rows of one, if the cells say.
    detection: how well the weights of samples find labels made wrong on purpose, "auroc" and "precision", if measured.
    """

    method: str
    baseline: str | None
    expected: int
    n: int
    scores: Mapping[str, Interval]
    differences: Mapping[str, Interval]
    seconds: float | None
    selected_by: tuple[str, ...]
    batch: int | None
    swept: bool
    missing: Mapping[int, str]
    detection: Mapping[str, Interval]

    @property
    def on_test(self) -> bool:
        """Whether epochs were chosen on the test set."""
        return "test" in self.selected_by


@dataclass(frozen=True)
class Block:
    """The rows for data at a value of the sweep; `mixed` says that methods start from different networks.

    form: of a suite with folds, separated (the mean of the folds' models) or concatenated (their embeddings side by
    side); otherwise empty.
    """

    source: Source
    sweep: Any
    rows: tuple[Row, ...]
    mixed: bool
    form: str = ""

    @property
    def data(self) -> str:
        """Its name."""
        return self.source.name

    @property
    def title(self) -> str:
        """Its name, and the form where there are two."""
        return f"{self.data}, {self.form}" if self.form else self.data


def summarize(results: Results) -> list[Block]:
    """A block for each data asked for, value of the sweep and form: the untrained network first, then the methods.

    Embeddings side by side are of trained networks only.
    """
    suite = results.suite
    asked = {place["data"] for place in results.places}
    forms = ("",) if suite.folds is None else FORMS
    return [
        _block(results, each, value, form)
        for each in suite.data
        if each.name in asked
        for value in suite.sweep_values
        for form in forms
    ]


def left_out(results: Results) -> list[str]:
    """The data of the suite that was not asked for."""
    asked = {place["data"] for place in results.places}
    return [each.name for each in results.suite.data if each.name not in asked]


def _block(results: Results, source: Source, value: Any, form: str) -> Block:
    suite = results.suite
    found: dict[str, dict[int, Mapping[str, Any]]] = {UNTRAINED: {}}
    starts: dict[int, Scores] = {}
    mixed = False
    for method in suite.methods:
        found[method.name] = {}
        for seed in suite.seeds:
            cell = results.cell(source.name, method.name, value, seed)
            if cell is None:
                continue
            found[method.name][seed] = {**cell, "test": cell["concatenated"]} if form == CONCATENATED else cell
            start: Scores = cell["untrained"]
            first = starts.setdefault(seed, start)
            mixed |= any(abs(start[name] - first[name]) > 1e-9 for name in suite.metrics_of(source))
    found[UNTRAINED] = {seed: {"test": starts[seed]} for seed in suite.seeds if seed in starts}
    if form == CONCATENATED:
        found[UNTRAINED] = {}
    rows = [_row(results, source, value, method, found) for method in found]
    shown = [row for row in rows if form != CONCATENATED or row.method != UNTRAINED]
    return Block(source, value, tuple(shown), mixed, form)


def _row(
    results: Results, source: Source, value: Any, method: str, found: Mapping[str, Mapping[int, Mapping[str, Any]]]
) -> Row:
    suite = results.suite
    mine, baseline = found[method], suite.baseline_of(method)
    theirs = {} if baseline is None else found[baseline]
    both = [seed for seed in mine if seed in theirs]

    def score(seed: int, metric: str) -> float:
        return float(mine[seed]["test"][metric])

    def difference(seed: int, metric: str) -> float:
        return score(seed, metric) - float(theirs[seed]["test"][metric])

    metrics = suite.metrics_of(source)
    missing = {}
    for seed in suite.seeds:
        if seed not in mine:
            known = None if method == UNTRAINED else results.id(source.name, method, value, seed)
            missing[seed] = results.errors.get(known or "", "not run")
    seconds = [float(cell["seconds"]) for cell in mine.values() if "seconds" in cell]
    return Row(
        method=method,
        baseline=baseline,
        expected=len(suite.seeds),
        n=len(mine),
        scores={metric: interval([score(seed, metric) for seed in mine]) for metric in metrics if mine},
        differences={metric: interval([difference(seed, metric) for seed in both]) for metric in metrics if both},
        seconds=median(seconds) if seconds else None,
        selected_by=tuple(sorted({str(cell["selected_by"]) for cell in mine.values() if "selected_by" in cell})),
        batch=next((int(cell["batch"]) for cell in mine.values() if "batch" in cell), None),
        swept=all(each.swept for each in suite.methods if each.name == method),
        missing=missing,
        detection=_detection(mine.values()),
    )


def _detection(cells: Iterable[Mapping[str, Any]]) -> dict[str, Interval]:
    found = [cell["detection"] for cell in cells if "detection" in cell]
    return {key: interval([float(each[key]) for each in found]) for key in ("auroc", "precision") if found}
