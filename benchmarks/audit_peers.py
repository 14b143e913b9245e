"""Compare the audit with cleanlab on the same feature vectors: wrong labels, near duplicates and outliers.

    pip install cleanlab
    python -m benchmarks.audit_peers cub200_efficientnet_lite0.npz --seeds 3 --results cub.json
    python -m benchmarks.audit_peers sketches --classes 60 --seeds 3 --results drawings.json
    python -m benchmarks.audit_peers --merge cub.json drawings.json --markdown docs/benchmarks/audit.md

Both tools get the same vectors and decide with their own defaults:

- Wrong labels: a fraction of the labels is made wrong. cleanlab gets the class probabilities of a cross-validated
  logistic regression ("classifier"), or only the vectors ("vectors only").
- Near duplicates: copies of samples are added. A copy of a feature vector has Gaussian noise. Copies of drawings are
  measured twice: with noise, and with noise and a shift by one pixel.
- Outliers: foreign samples are added. Among feature vectors, they are vectors whose entries were permuted. Among
  drawings, they are drawings whose pixels were permuted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.timing import machine
from nearfar.audit import audit, auroc, find_near_duplicates
from nearfar.audit.noise_benchmark import load_vectors
from nearfar.data import Manifest, add_label_noise, open_data
from nearfar.formatting import markdown_table
from nearfar.validation import Floats, Ints

RATES = (0.1, 0.2)
PLANTED = 100  # number of added copies, and of added foreign samples
# Noise of a copied feature vector, as a fraction of the norm of the vector.
NOISE = (0.1, 0.2)
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Finding:
    """What a tool reports: the flagged samples, and a score of each sample that is high for suspicious samples."""

    flagged: Bools
    score: Floats


def audit_labels(x: Floats, labels: Ints) -> Finding:
    """Find wrong labels with the audit."""
    result = audit(x, labels)
    return Finding(result.flagged, result.score)


def classify_labels(x: Floats, labels: Ints) -> Finding:
    """Find wrong labels with cleanlab and a cross-validated logistic regression."""
    model = import_module("sklearn.linear_model").LogisticRegression(max_iter=200, C=10.0)
    predict = import_module("sklearn.model_selection").cross_val_predict
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    probabilities = predict(model, unit, labels, cv=3, method="predict_proba")
    flagged = import_module("cleanlab.filter").find_label_issues(labels, probabilities, n_jobs=1)
    quality = import_module("cleanlab.rank").get_label_quality_scores(labels, probabilities)
    return Finding(np.asarray(flagged), 1 - np.asarray(quality))


def vote_labels(x: Floats, labels: Ints) -> Finding:
    """Find wrong labels with cleanlab's Datalab, which has only the vectors."""
    issues = _datalab(x, labels, "label").get_issues("label")
    return Finding(issues["is_label_issue"].to_numpy(), 1 - issues["label_score"].to_numpy())


LABEL_TOOLS: dict[str, Callable[[Floats, Ints], Finding]] = {
    "nearfar audit": audit_labels,
    "cleanlab, classifier": classify_labels,
    "cleanlab, vectors only": vote_labels,
}


def _datalab(x: Floats, labels: Ints, kind: str) -> Any:
    lab = import_module("cleanlab").Datalab(data={"label": labels}, label_name="label", verbosity=0)
    lab.find_issues(features=x, issue_types={kind: {}})
    return lab


def measure_labels(manifest: Manifest, seeds: int) -> list[dict[str, Any]]:
    """Make labels wrong, and measure how many each tool finds."""
    clean = replace(manifest.compact(), split=np.full(len(manifest), "train"))
    x = load_vectors(clean).numpy()
    rows = []
    for rate in RATES:
        for seed in range(seeds):
            noisy, record = add_label_noise(clean, rate, seed=seed)
            for tool, find in LABEL_TOOLS.items():
                start = time.process_time()
                found = find(x, np.asarray(noisy.labels))
                seconds = time.process_time() - start
                rows.append({"task": f"{rate:.0%} wrong labels", "tool": tool, **_score(found, record.wrong, seconds)})
                print(rows[-1], flush=True)
    return rows


def _score(found: Finding, truth: Bools, seconds: float) -> dict[str, float]:
    hits = int((found.flagged & truth).sum())
    return {
        "flagged": float(found.flagged.mean()),
        "precision": hits / max(1, int(found.flagged.sum())),
        "recall": hits / int(truth.sum()),
        "auroc": auroc(found.score, truth),
        "seconds": seconds,
    }


def measure_duplicates(manifest: Manifest, seeds: int) -> list[dict[str, Any]]:
    """Add copies, and measure how many are found together with their original, and how many others are flagged."""
    rows = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        originals = rng.choice(len(manifest), PLANTED, replace=False)
        for name, x in _with_copies(manifest, originals, rng).items():
            labels = np.concatenate([manifest.labels, manifest.labels[originals]])
            copies = np.arange(len(manifest), len(x))
            planted = set(originals.tolist()) | set(copies.tolist())
            for tool, find in (("nearfar audit", _our_neighbors), ("cleanlab", _their_neighbors)):
                start = time.process_time()
                groups = find(x, labels)
                seconds = time.process_time() - start
                recall = float(
                    np.mean([b in groups.get(a, ()) for a, b in zip(originals.tolist(), copies, strict=True)])
                )
                rows.append(
                    {
                        "task": f"near duplicates: {name}",
                        "tool": tool,
                        "recall": recall,
                        "others": len(groups.keys() - planted),
                        "seconds": seconds,
                    }
                )
                print(rows[-1], flush=True)
    return rows


def _our_neighbors(x: Floats, labels: Ints) -> dict[int, set[int]]:
    found = find_near_duplicates(audit(x, labels), x, np.full(len(x), "train"))
    return {row: set(group.rows.tolist()) - {row} for group in found.groups for row in group.rows.tolist()}


def _their_neighbors(x: Floats, labels: Ints) -> dict[int, set[int]]:
    issues = _datalab(x, labels, "near_duplicate").get_issues("near_duplicate")
    sets = issues["near_duplicate_sets"]
    return {int(row): set(np.asarray(near).tolist()) for row, near in enumerate(sets) if len(near)}


def _with_copies(manifest: Manifest, originals: Ints, rng: np.random.Generator) -> dict[str, Floats]:
    """Return the vectors with copies of the originals at the end, for each kind of copy."""
    x = load_vectors(manifest).numpy()
    if manifest.pixels is None:
        chosen = x[originals]
        noise = rng.normal(size=chosen.shape).astype(np.float32)
        noise *= np.linalg.norm(chosen, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
        return {f"noise {share:.0%}": np.concatenate([x, chosen + share * noise]) for share in NOISE}
    pixels = np.asarray(manifest.pixels)
    noisy = np.clip(pixels[originals] + rng.normal(0, 8, pixels[originals].shape), 0, 255).astype(pixels.dtype)
    copies = {"pixel noise": noisy, "shift by one pixel": np.roll(noisy, 1, axis=2)}
    return {
        name: np.concatenate(
            [x, torch.nn.functional.avg_pool2d(torch.tensor(copy[:, None]).float(), 2).flatten(1).numpy()]
        )
        for name, copy in copies.items()
    }


def measure_outliers(manifest: Manifest, seeds: int) -> list[dict[str, Any]]:
    """Add samples with permuted entries, and measure how many are found."""
    x, rows = load_vectors(manifest).numpy(), []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        chosen = rng.choice(len(manifest), PLANTED, replace=False)
        all_vectors = np.concatenate([x, rng.permuted(x[chosen], axis=1)])
        labels = np.concatenate([manifest.labels, manifest.labels[chosen]])
        truth = np.arange(len(all_vectors)) >= len(x)
        for tool, find in (("nearfar audit", _our_outliers), ("cleanlab", _their_outliers)):
            start = time.process_time()
            found = find(all_vectors, labels)
            rows.append({"task": "outliers", "tool": tool, **_score(found, truth, time.process_time() - start)})
            print(rows[-1], flush=True)
    return rows


def _our_outliers(x: Floats, labels: Ints) -> Finding:
    found = find_near_duplicates(audit(x, labels), x, np.full(len(x), "train"))
    return Finding(np.isin(np.arange(len(x)), found.outliers), found.distance)


def _their_outliers(x: Floats, labels: Ints) -> Finding:
    issues = _datalab(x, labels, "outlier").get_issues("outlier")
    return Finding(issues["is_outlier_issue"].to_numpy(), 1 - issues["outlier_score"].to_numpy())


def report(files: dict[str, list[dict[str, Any]]]) -> str:
    """Format the results as Markdown."""
    lines = ["# The audit and cleanlab", "", ABOUT.format(version=_version(), machine=machine()), ""]
    for data, rows in files.items():
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault((row["task"], row["tool"]), []).append(row)
        table: list[tuple[str, ...]] = []
        for (task, tool), values in groups.items():
            cells = [_mean(values, key) for key in ("precision", "recall", "auroc")]
            flagged = f"{100 * np.mean([v['flagged'] for v in values]):.1f}%" if "flagged" in values[0] else ""
            others = f"{np.mean([v['others'] for v in values]):.0f}" if "others" in values[0] else ""
            table.append((task, tool, flagged, *cells, others, f"{np.mean([v['seconds'] for v in values]):.1f}"))
        header = ["task", "tool", "flagged", "precision", "recall", "AUROC", "others flagged", "CPU seconds"]
        lines += [f"## {data}", "", markdown_table(header, table), ""]
    return "\n".join(lines)


def _mean(values: list[dict[str, Any]], key: str) -> str:
    if key not in values[0]:
        return ""
    numbers = [value[key] for value in values]
    return f"{np.mean(numbers):.3f} ± {np.std(numbers, ddof=min(1, len(numbers) - 1)):.3f}"


def _version() -> str:
    return str(import_module("cleanlab").__version__)


TASKS = {"labels": measure_labels, "duplicates": measure_duplicates, "outliers": measure_outliers}
ABOUT = """cleanlab {version}, {machine}, on a busy machine, so CPU seconds are rough. Both tools get the same vectors:
features, or the pixels of drawings at half their size. Both use their own default thresholds. Values are means with
standard deviations over the seeds. Two things favor the audit in the comparison of wrong labels: its cut-off rule was
designed on CUB, and the classifier whose probabilities cleanlab gets (logistic regression, C=10, three folds) was not
tuned for cleanlab. AUROC does not depend on the thresholds. "Others flagged" is the number of near duplicates that were
not planted; they may be real. benchmarks/audit_peers.py describes what is planted, and how to repeat this."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", nargs="?", help="feature vectors (.npz), or sketches")
    parser.add_argument("--split", default="train", help="the split to use (default train)")
    parser.add_argument("--classes", type=int, help="use only the first N classes")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default 3)")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="tasks (default: all)")
    parser.add_argument("--results", type=Path, help="JSON file for the results")
    parser.add_argument(
        "--merge", type=Path, nargs="+", default=[], help="JSON files to report on instead of measuring"
    )
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    files: dict[str, list[dict[str, Any]]] = {}
    for path in options.merge:
        files |= json.loads(path.read_text())
    if options.data:
        data = open_data(options.data).subset(options.split)
        data = (data.subset(data.labels < options.classes) if options.classes else data).compact()
        name = f"{Path(options.data).name}, {len(data):,} samples, {len(data.classes)} classes, {options.seeds} seeds"
        for task in options.tasks:
            files[name] = [*files.get(name, []), *TASKS[task](data, options.seeds)]
            if options.results:
                options.results.write_text(json.dumps(files, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(report(files))


if __name__ == "__main__":
    main()
