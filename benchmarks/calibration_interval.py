"""How often the interval of the calibration error contains the true error.

    python -m benchmarks.calibration_interval RUN --trials 200

The test classes of the run are treated as the whole population, so that the true error is known. Each trial draws
classes from this population with replacement, as many as it has. The trial then computes two intervals: that of
`estimate_error`, and that of bootstrap percentiles. To test larger errors, the logits of the probabilities are shifted
or scaled.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from nearfar.calibration.error import estimate_error
from nearfar.calibration.fit import _collect_hits
from nearfar.formatting import markdown_table
from nearfar.metrics.probability import BINS, bin_numbers, calibration_error, fit_curve
from nearfar.ops.geometry import unit
from nearfar.runs import Run

CHANGES = ((0.0, 1.0), (0.15, 1.0), (0.3, 1.0), (0.0, 1.3), (0.0, 2.0))  # shift and scale of the logits
REPLICATES = 400


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="directory of a run whose data has a test split")
    parser.add_argument("--trials", type=int, default=200, help="number of trials for each true error (default 200)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    run = Run(options.run)
    network = run.embedder()
    manifest = run.load_split("test", network, say=lambda _: None)
    vectors, labels = unit(run.embed(manifest, network).float()), np.unique(manifest.labels, return_inverse=True)[1]
    count = int(labels.max()) + 1
    order = np.random.default_rng(0).permutation(count)
    halves = (order[: count // 2], order[count // 2 :])
    hits = [_collect_hits(vectors, labels, np.flatnonzero(np.isin(labels, half))) for half in halves]
    curves = [fit_curve("logistic", distance, truth, is_increasing=False) for distance, truth, _ in hits]
    predicted = np.concatenate([curves[1](hits[0][0]), curves[0](hits[1][0])])
    truth, classes = (np.concatenate([hits[0][i], hits[1][i]]) for i in (1, 2))
    gap = np.bincount(classes, predicted - truth) / np.bincount(classes)
    print(f"standard deviation of the mean difference over {count} classes: {100 * gap.std():.1f} points")
    logit, rows = np.log(predicted / (1 - predicted)), [np.flatnonzero(classes == i) for i in range(count)]
    rng, table = np.random.default_rng(1), []
    for shift, scale in CHANGES:
        p = 1 / (1 + np.exp(-(scale * logit + shift)))
        true_error, found = calibration_error(p, truth), []
        cells = classes * BINS + bin_numbers(p)
        gaps = np.bincount(cells, p - truth, minlength=count * BINS).reshape(count, BINS)
        sizes = np.bincount(classes)
        for _ in range(options.trials):
            drawn = rng.integers(0, count, count)
            chosen = np.concatenate([rows[i] for i in drawn])
            groups = np.repeat(np.arange(count), [len(rows[i]) for i in drawn])
            error = estimate_error(p[chosen], truth[chosen], groups, seed=0)
            weights = rng.multinomial(count, np.bincount(drawn, minlength=count) / count, size=REPLICATES)
            low, high = np.percentile(np.abs(weights @ gaps).sum(1) / (weights @ sizes), [2.5, 97.5])
            found.append((error.low <= true_error <= error.high, low <= true_error <= high, error.value, error.chance))
        ours, percentiles, value, chance = np.mean(found, axis=0)
        figures = (f"{100 * true_error:.1f}", f"{100 * value:.1f}", f"{100 * chance:.1f}")
        table.append((*figures, f"{ours:.1%}", f"{percentiles:.1%}"))
        print(table[-1], flush=True)
    header = ["true error", "measured, mean", "perfect probabilities", "interval contains it", "percentiles contain it"]
    print(markdown_table(header, table))


if __name__ == "__main__":
    main()
