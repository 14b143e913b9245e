"""Summaries of a suite's results: means, paired differences, and reasons for missing results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from nearfar.metrics.intervals import Interval, interval
from nearfar.suites.results import Results
from nearfar.suites.suite import UNTRAINED, SuiteDataset

Scores = Mapping[str, float]
CONCATENATED, LAST = "concatenated", "last epoch"
FOLD_FORMS = ("separated", CONCATENATED)
EPOCH_FORMS = ("selected epoch", LAST)
# maps a form of scores (see `Block`) to its key in a "cell" line of the results file; the default key is "test"
SCORES_OF_FORM = {CONCATENATED: "concatenated", LAST: "test_last"}


@dataclass(frozen=True)
class Row:
    """Scores of a method on a dataset at a value of the sweep.

    Attributes:
        method: name of the method, or "untrained".
        baseline: name of the method to compare with; None for the baseline itself.
        expected: number of seeds of the suite.
        n: number of seeds with scores.
        scores: maps each metric to its mean over these seeds, with a confidence interval.
        differences: maps each metric to the mean difference from the baseline over the seeds that both methods have,
            with a confidence interval.
        seconds: training time, excluding the final test; the median over seeds.
        selected_by: splits on which epochs were selected, such as "validation" or "test"; "last" for no selection.
        batch: batch size, if the results file contains it.
        swept: whether the swept setting applies to the method.
        missing: for each seed without scores, the reason.
        detection: how well sample weights detect added label noise ("auroc", "precision"), if measured.
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
        """Whether epochs were selected on the test set."""
        return "test" in self.selected_by


@dataclass(frozen=True)
class Block:
    """The rows of one table.

    Attributes:
        source: the dataset.
        sweep: value of the sweep.
        rows: one row per method.
        mixed: whether methods start from different networks, which is detected by different scores before training.
        form: which scores the table shows. With folds: "separated" (mean score of the networks) or "concatenated"
            (score of their concatenated embeddings). With `last_epoch`: "selected epoch" or "last epoch". Otherwise
            empty.
    """

    source: SuiteDataset
    sweep: Any
    rows: tuple[Row, ...]
    mixed: bool
    form: str = ""

    @property
    def data(self) -> str:
        """Name of the dataset."""
        return self.source.name

    @property
    def title(self) -> str:
        """Name of the dataset, followed by the form of the scores, such as "last epoch", if there are several forms."""
        return f"{self.data}, {self.form}" if self.form else self.data


def summarize(results: Results) -> list[Block]:
    """Return a block for each combination of dataset, value of the sweep, and form of the scores (see `Block`).

    The first row of a block is the untrained network. Blocks of concatenated embeddings do not have this row, because
    the embeddings of untrained networks are not concatenated.
    """
    suite = results.suite
    names = {place["data"] for place in results.places}
    forms: tuple[str, ...] = ("",)
    if suite.folds is not None:
        forms = FOLD_FORMS
    elif suite.last_epoch:
        forms = EPOCH_FORMS
    return [
        _block(results, dataset, value, form)
        for dataset in suite.data
        if dataset.name in names
        for value in suite.sweep_values
        for form in forms
    ]


def omitted_data(results: Results) -> list[str]:
    """Return the datasets of the suite that were not run."""
    names = {place["data"] for place in results.places}
    return [dataset.name for dataset in results.suite.data if dataset.name not in names]


def _block(results: Results, source: SuiteDataset, value: Any, form: str) -> Block:
    suite = results.suite
    cells: dict[str, dict[int, Mapping[str, Any]]] = {UNTRAINED: {}}
    starts: dict[int, Scores] = {}
    mixed = False
    for method in suite.methods:
        cells[method.name] = {}
        for seed in suite.seeds:
            cell = results.cell(source.name, method.name, value, seed)
            if cell is None:
                continue
            # a run without epoch selection has no "test_last", because its "test" scores are those of the last epoch
            cells[method.name][seed] = {**cell, "test": cell.get(SCORES_OF_FORM.get(form, "test"), cell["test"])}
            start: Scores = cell["untrained"]
            first = starts.setdefault(seed, start)
            mixed |= any(abs(start[name] - first[name]) > 1e-9 for name in suite.metrics_of(source))
    cells[UNTRAINED] = {seed: {"test": starts[seed]} for seed in suite.seeds if seed in starts}
    if form == CONCATENATED:
        cells[UNTRAINED] = {}
    rows = [_row(results, source, value, method, cells) for method in cells]
    shown = [row for row in rows if form != CONCATENATED or row.method != UNTRAINED]
    return Block(source, value, tuple(shown), mixed, form)


def _row(
    results: Results,
    source: SuiteDataset,
    value: Any,
    method: str,
    cells: Mapping[str, Mapping[int, Mapping[str, Any]]],
) -> Row:
    suite = results.suite
    scored, baseline = cells[method], suite.baseline_of(method)
    other = {} if baseline is None else cells[baseline]
    shared = [seed for seed in scored if seed in other]

    def score(seed: int, metric: str) -> float:
        return float(scored[seed]["test"][metric])

    def difference(seed: int, metric: str) -> float:
        return score(seed, metric) - float(other[seed]["test"][metric])

    metrics = suite.metrics_of(source)
    missing = {}
    for seed in suite.seeds:
        if seed not in scored:
            id_ = None if method == UNTRAINED else results.id(source.name, method, value, seed)
            missing[seed] = results.errors.get(id_ or "", "not run")
    seconds = [float(cell["seconds"]) for cell in scored.values() if "seconds" in cell]
    return Row(
        method=method,
        baseline=baseline,
        expected=len(suite.seeds),
        n=len(scored),
        scores={metric: interval([score(seed, metric) for seed in scored]) for metric in metrics if scored},
        differences={metric: interval([difference(seed, metric) for seed in shared]) for metric in metrics if shared},
        seconds=median(seconds) if seconds else None,
        selected_by=tuple(sorted({str(cell["selected_by"]) for cell in scored.values() if "selected_by" in cell})),
        batch=next((int(cell["batch"]) for cell in scored.values() if "batch" in cell), None),
        swept=all(entry.swept for entry in suite.methods if entry.name == method),
        missing=missing,
        detection=_detection(scored.values()),
    )


def _detection(cells: Iterable[Mapping[str, Any]]) -> dict[str, Interval]:
    values = [cell["detection"] for cell in cells if "detection" in cell]
    return {key: interval([float(value[key]) for value in values]) for key in ("auroc", "precision") if values}
