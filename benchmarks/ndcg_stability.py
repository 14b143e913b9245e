"""Is nDCG@k more stable than Recall@k? `python -m benchmarks.ndcg_stability RUN...`.

Saeki et al. (MPA, arXiv 2110.03997) state that nDCG@k "has better stability than the Recall@k metric" and do not define
stability. This script measures how much a metric varies, and how well it separates methods, over

- the seeds of a results file: the same methods are trained again;
- random halves of the test classes, and random halves of the samples of each test class: trained networks are scored
  again. The standard deviation of a mean over random halves is about its standard error over the whole set.

A metric can vary little simply because it hardly reacts to anything, such as Recall@8 close to 100%. A small relative
standard deviation is therefore not enough: it must be small compared with the differences between methods.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from nearfar.errors import NearfarError
from nearfar.formatting import markdown_table
from nearfar.metrics import evaluate
from nearfar.metrics.intervals import t_quantile
from nearfar.runs import Run
from nearfar.suites.results import Results, read_results

RESULTS = Path("docs/results/mpa.jsonl")
METRICS = ("recall@1", "recall@2", "recall@4", "recall@8", "ndcg@2", "ndcg@4", "ndcg@8", "map@r")
PAIRS = (
    *(("ndcg@2", "recall@2"), ("ndcg@4", "recall@4"), ("ndcg@8", "recall@8")),
    *(("ndcg@8", "recall@1"), ("ndcg@8", "map@r")),
)

Values = NDArray[np.float64]  # scores of methods [M, n] over n seeds or halves


@dataclass(frozen=True)
class Estimate:
    """A positive number and its 95% interval [low, high]."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def relative_deviation(values: Values) -> float:
    """Return the standard deviation over the columns divided by the mean, averaged over the methods."""
    return float((values.std(axis=1, ddof=1) / values.mean(axis=1)).mean())


def discriminability(values: Values) -> float:
    """Return the variance between methods divided by the residual variance.

    The divisor is the residual variance of the two-way layout value = method + column + residual. A column is a seed or
    a half of the test set. An effect of a column that is the same for all methods is not part of the residual, because
    it does not affect a paired comparison of methods. The result is NaN if there is no residual variance.
    """
    methods, columns = values.shape
    means = values.mean(axis=1, keepdims=True)
    residuals = values - means - values.mean(axis=0) + values.mean()
    noise = float((residuals**2).sum()) / ((methods - 1) * (columns - 1))
    return float(means.var(ddof=1) / noise) if noise else math.nan


def rank_agreement(values: Values) -> float:
    """Return Kendall's tau between the rankings of the methods in two columns, averaged over all pairs of columns.

    The result is 1 if all columns rank the methods in the same order.
    """
    signs = np.stack([np.sign(values[i] - values[j]) for i, j in combinations(range(len(values)), 2)])
    n = signs.shape[1]
    products = (signs.sum(axis=1) ** 2 - (signs**2).sum(axis=1)) / (n * (n - 1))
    return float(products.mean())


def ratio_interval(above: Values, below: Values | None = None) -> Estimate:
    """Estimate the discriminability of one metric, or its ratio to that of another metric on the same runs.

    The interval is computed for the logarithm, by a jackknife over columns with Student's t.
    """

    def log_ratio(keep: NDArray[np.int64]) -> float:
        value = math.log(discriminability(above[:, keep]))
        return value if below is None else value - math.log(discriminability(below[:, keep]))

    n = above.shape[1]
    every = np.arange(n)
    whole = log_ratio(every)
    without = np.array([log_ratio(np.delete(every, i)) for i in range(n)])
    error = math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    half = t_quantile(0.975, n - 1) * error
    return Estimate(math.exp(whole), math.exp(whole - half), math.exp(whole + half))


def seed_scores(results: Results, data: str) -> dict[str, Values]:
    """Return a dict that maps each metric to the test scores on a dataset, an array of shape [methods, seeds].

    Methods without scores for all seeds are left out. A method counts as a separate method at each value of the sweep,
    unless its runs are the same as at another value.
    """
    suite, rows = results.suite, dict[str, list[list[float]]]()
    known: set[tuple[str, ...]] = set()
    for method, value in product(suite.methods, suite.sweep_values):
        ids = tuple(results.id(data, method.name, value, seed) or "" for seed in suite.seeds)
        scores = [results.cells[cell]["test"] for cell in ids if cell in results.cells]
        if len(scores) < len(ids) or ids in known:
            continue
        known.add(ids)
        for metric in METRICS:
            if all(metric in score for score in scores):
                rows.setdefault(metric, []).append([score[metric] for score in scores])
    return {metric: np.array(values) for metric, values in rows.items()}


def half_scores(runs: Sequence[Path], *, of: str, repeats: int) -> dict[str, Values]:
    """Score the test splits of runs on random halves. The halves are the same for all runs.

    Return a dict that maps each metric to an array of scores of shape [runs, repeats].

    Args:
        runs: Run directories with the same data.
        of: "classes" or "samples": choose half of the classes with all samples, or half of the samples of each class.
        repeats: Number of halves.
    """
    scores: dict[str, list[list[float]]] = {metric: [] for metric in METRICS}
    labels = None
    for path in runs:
        run = Run(path)
        network = run.embedder()
        data = run.load_split("test", network)
        labels = data.labels if labels is None else labels
        if not np.array_equal(data.labels, labels):
            raise NearfarError(
                f"{path}: its test split has different labels than that of {runs[0]}: use runs on the same dataset"
            )
        embeddings, rng = run.embed(data, network), np.random.default_rng(0)
        for metric in METRICS:
            scores[metric].append([])
        for _ in range(repeats):
            rows = choose_half(labels, of, rng)
            found = evaluate(embeddings[torch.from_numpy(rows)], labels[rows], metrics=METRICS)
            for metric in METRICS:
                scores[metric][-1].append(found[metric])
    return {metric: np.array(values) for metric, values in scores.items()}


def choose_half(labels: NDArray[np.int64], of: str, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the rows of a random half of the classes, or of half of the samples of each class (at least two)."""
    classes = np.unique(labels)
    if of == "classes":
        return np.flatnonzero(np.isin(labels, rng.permutation(classes)[: max(1, len(classes) // 2)]))
    parts = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
    return np.sort(np.concatenate([part[: max(2, len(part) // 2)] for part in parts]))


def table(values: dict[str, Values], *, intervals: bool) -> str:
    """Format the measurements of each metric as Markdown. Intervals are valid only if the columns are independent."""
    rows = []
    for metric, scores in values.items():
        ratio = ratio_interval(scores) if intervals else f"{discriminability(scores):.3g}"
        deviation, agreement = 100 * relative_deviation(scores), rank_agreement(scores)
        rows.append([metric, f"{100 * scores.mean():.1f}", f"{deviation:.2f}%", str(ratio), f"{agreement:.2f}"])
    names = ["metric", "mean, percent", "relative deviation", "discriminability", "rank agreement"]
    return markdown_table(names, rows)


def compare(values: dict[str, Values]) -> str:
    """Format the ratio of the discriminabilities of two metrics as Markdown, for each of PAIRS."""
    rows = [
        [f"{above} / {below}", str(ratio_interval(values[above], values[below]))]
        for above, below in PAIRS
        if above in values and below in values
    ]
    return markdown_table(["metrics", "ratio of discriminability"], rows)


def report(results: Results | None, runs: Sequence[Path], *, repeats: int) -> Iterable[str]:
    """Yield the parts of the report as Markdown."""
    for data in dict.fromkeys(place["data"] for place in results.places) if results else ():
        assert results is not None
        values = seed_scores(results, data)
        if values and len(next(iter(values.values()))) > 1:
            methods, seeds = next(iter(values.values())).shape
            yield f"## {data}: {methods} methods, {seeds} seeds"
            yield table(values, intervals=True)
            yield compare(values)
    for of in ("classes", "samples") if runs else ():
        yield f"## {len(runs)} runs, {repeats} random halves of the test {of}"
        yield table(half_scores(runs, of=of, repeats=repeats), intervals=False)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ndcg_stability", description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="two or more run directories to score again")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"results of a suite (default {RESULTS})")
    parser.add_argument("--repeats", type=int, default=100, help="number of random halves (default 100)")
    args = parser.parse_args(argv)
    if len(args.runs) == 1:
        parser.error("one run cannot be compared: pass two or more, or none")
    torch.set_num_threads(1)
    for part in report(read_results(args.results), args.runs, repeats=args.repeats):
        print(part, end="\n\n", flush=True)


if __name__ == "__main__":
    main()
