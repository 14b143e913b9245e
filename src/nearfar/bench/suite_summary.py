"""From the results of a suite to what its tables say: means, paired differences, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nearfar.bench.suite import UNTRAINED
from nearfar.bench.suite_interval import Interval, interval
from nearfar.bench.suite_results import Results

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """A method on data, at a value of the sweep.

    scores: means over the seeds that there are, by metric; differences: to the baseline over the seeds that both have.
    seconds: of training, the mean. selected_by: how epochs were chosen. missing: seeds without scores, with the reason.
    """

    method: str
    baseline: str | None
    expected: int
    n: int
    scores: Mapping[str, Interval]
    differences: Mapping[str, Interval]
    seconds: float | None
    selected_by: tuple[str, ...]
    missing: Mapping[int, str]

    @property
    def on_test(self) -> bool:
        """Whether epochs were chosen on the test set."""
        return "test" in self.selected_by


@dataclass(frozen=True)
class Block:
    """The rows for data at a value of the sweep; `mixed` says that methods start from different networks."""

    data: str
    sweep: Any
    rows: tuple[Row, ...]
    mixed: bool


def summarise(results: Results) -> list[Block]:
    """A block for each data and value of the sweep, the untrained network first in it, then the methods."""
    suite = results.suite
    return [_block(results, source.name, value) for source in suite.data for value in suite.sweep_values]


def _block(results: Results, data: str, value: Any) -> Block:
    suite = results.suite
    found: dict[str, dict[int, Mapping[str, Any]]] = {UNTRAINED: {}}
    starts: dict[int, Scores] = {}
    mixed = False
    for method in suite.methods:
        found[method.name] = {}
        for seed in suite.seeds:
            cell = results.cell(data, method.name, value, seed)
            if cell is None:
                continue
            found[method.name][seed] = cell
            start: Scores = cell["untrained"]
            first = starts.setdefault(seed, start)
            mixed |= any(abs(start[name] - first[name]) > 1e-9 for name in suite.metrics)
    found[UNTRAINED] = {seed: {"test": starts[seed]} for seed in suite.seeds if seed in starts}
    rows = [_row(results, data, value, method, found) for method in found]
    return Block(data, value, tuple(rows), mixed)


def _row(
    results: Results, data: str, value: Any, method: str, found: Mapping[str, Mapping[int, Mapping[str, Any]]]
) -> Row:
    suite = results.suite
    mine, baseline = found[method], suite.baseline_of(method)
    theirs = {} if baseline is None else found[baseline]
    both = [seed for seed in mine if seed in theirs]

    def score(seed: int, metric: str) -> float:
        return float(mine[seed]["test"][metric])

    def difference(seed: int, metric: str) -> float:
        return score(seed, metric) - float(theirs[seed]["test"][metric])

    missing = {}
    for seed in suite.seeds:
        if seed not in mine:
            known = None if method == UNTRAINED else results.id(data, method, value, seed)
            missing[seed] = results.errors.get(known or "", "not run")
    seconds = [float(cell["seconds"]) for cell in mine.values() if "seconds" in cell]
    return Row(
        method=method,
        baseline=baseline,
        expected=len(suite.seeds),
        n=len(mine),
        scores={metric: interval([score(seed, metric) for seed in mine]) for metric in suite.metrics if mine},
        differences={metric: interval([difference(seed, metric) for seed in both]) for metric in suite.metrics if both},
        seconds=sum(seconds) / len(seconds) if seconds else None,
        selected_by=tuple(sorted({str(cell["selected_by"]) for cell in mine.values() if "selected_by" in cell})),
        missing=missing,
    )
