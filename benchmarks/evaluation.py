"""Time and memory of an evaluation, compared with the full similarity matrix, pytorch-metric-learning and faiss.

    python -m benchmarks.evaluation --markdown docs/benchmarks/evaluation.md

Every candidate runs in its own process with the same data and number of threads, so that its peak memory can be
measured. A round runs all candidates in turn, and the best time over the rounds is reported. Extra memory is the peak
memory of the process minus its memory just before the evaluation, after imports, data and a small warm-up.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nearfar.formatting import counted
from nearfar.metrics import evaluate

SHARED = ("recall@1", "map@r", "r-precision")
FULL = ("recall@1", "recall@10", "recall@100", "recall@1000", "map@r", "ndcg@10", "ndcg@100")
CANDIDATES = {
    "product": "full similarity matrix, computed and discarded",
    "nearfar": "nearfar, " + ", ".join(FULL),
    "nearfar-shared": "nearfar, " + ", ".join(SHARED),
    "pml": "pytorch-metric-learning AccuracyCalculator, " + ", ".join(SHARED),
    "faiss": "faiss IndexFlatIP, only the ids of the 1000 nearest neighbors",
}
BLOCK = 512


def data(samples: int, dim: int, classes: int) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """Return unit vectors around class centers, and their labels.

    With the default options, a class has 2 to 8 vectors, 5.3 on average.
    """
    rng = np.random.default_rng(0)
    sizes = np.full(classes, samples // classes)
    sizes[: samples - sizes.sum()] += 1
    moved = rng.integers(0, max(1, samples // classes - 1), classes // 2)
    sizes[: len(moved)] -= moved
    sizes[-len(moved) :] += moved
    labels = rng.permutation(np.repeat(np.arange(classes), sizes))
    noise = torch.Generator().manual_seed(0)
    centers = torch.randn(classes, dim, generator=noise)
    rows = torch.randn(samples, dim, generator=noise)
    for start in range(0, samples, BLOCK):  # in place, so that creating the data does not determine the peak memory
        part = rows[start : start + BLOCK]
        part.mul_(2.6).add_(centers[torch.from_numpy(labels[start : start + BLOCK])])
        part.div_(torch.linalg.vector_norm(part, dim=1, keepdim=True))
    return rows, labels


def product(rows: torch.Tensor, labels: NDArray[np.int64]) -> dict[str, float]:
    """Compute all similarities in blocks and discard them.

    This is the minimum for methods that compute the similarity of each pair twice.
    """
    out = torch.empty(BLOCK, len(rows))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        torch.mm(block, rows.T, out=out[: len(block)])
    return {}


def nearfar(rows: torch.Tensor, labels: NDArray[np.int64]) -> dict[str, float]:
    return dict(evaluate(rows, labels, metrics=FULL))


def nearfar_shared(rows: torch.Tensor, labels: NDArray[np.int64]) -> dict[str, float]:
    return dict(evaluate(rows, labels, metrics=SHARED))


def pml(rows: torch.Tensor, labels: NDArray[np.int64]) -> dict[str, float]:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    theirs = {"recall@1": "precision_at_1", "map@r": "mean_average_precision_at_r", "r-precision": "r_precision"}
    calculator = AccuracyCalculator(include=tuple(theirs.values()), k="max_bin_count", device=torch.device("cpu"))
    values = calculator.get_accuracy(rows, torch.from_numpy(labels))
    return {ours: float(values[name]) for ours, name in theirs.items()}


def plain_faiss(rows: torch.Tensor, labels: NDArray[np.int64]) -> dict[str, float]:
    import faiss

    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows.numpy())
    hits = 0
    depth = min(1001, len(rows))
    for start in range(0, len(rows), BLOCK):
        found = index.search(rows[start : start + BLOCK].numpy(), depth)[1]
        own = np.arange(start, start + len(found))
        nearest = np.where(found[:, 0] == own, found[:, 1], found[:, 0])
        hits += int((labels[nearest] == labels[own]).sum())
    return {"recall@1": hits / len(rows)}


RUN: dict[str, Callable[[torch.Tensor, NDArray[np.int64]], dict[str, float]]] = {
    "product": product,
    "nearfar": nearfar,
    "nearfar-shared": nearfar_shared,
    "pml": pml,
    "faiss": plain_faiss,
}


def resident_mb(field: str) -> float:
    """Return the resident memory of this process in MB (Linux): the current value for "VmRSS", the peak for "VmHWM"."""
    return int(Path("/proc/self/status").read_text().partition(f"{field}:")[2].split()[0]) / 1024


def measure(candidate: str, samples: int, dim: int, classes: int, threads: int) -> dict[str, Any]:
    """Measure one candidate in this process: wall-clock and CPU seconds, extra memory in MB, and metric values."""
    torch.set_num_threads(threads)
    if candidate in ("faiss", "pml"):
        import faiss

        faiss.omp_set_num_threads(threads)
    rows, labels = data(samples, dim, classes)
    RUN[candidate](rows[:1000].clone(), np.arange(1000) % 100)
    before = resident_mb("VmRSS")
    start, cpu_start = time.perf_counter(), time.process_time()
    values = RUN[candidate](rows, labels)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "extra_mb": resident_mb("VmHWM") - before, "values": values}


def compare(samples: int, dim: int, classes: int, threads: int, rounds: int, names: list[str]) -> dict[str, Any]:
    """Measure all candidates in interleaved rounds. Return the best time and the largest memory of each candidate."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for name in names:
            sizes = [str(value) for value in (samples, dim, classes, threads)]
            command = [sys.executable, "-m", "benchmarks.evaluation", "--measure", name]
            flags = ["--samples", "--dim", "--classes", "--threads"]
            command += [part for pair in zip(flags, sizes, strict=True) for part in pair]
            run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            known = best.setdefault(name, run)
            for clock in ("seconds", "cpu_seconds"):
                known[clock] = min(known[clock], run[clock])
            known["extra_mb"] = max(known["extra_mb"], run["extra_mb"])
            print(f"{name}: {run['seconds']:.2f} s, +{run['extra_mb']:.0f} MB", file=sys.stderr)
    _check_values(best)
    return {"samples": samples, "dim": dim, "classes": classes, "threads": threads, "rounds": rounds, "runs": best}


def _check_values(best: dict[str, dict[str, Any]]) -> None:
    """Check that the metric values of all candidates agree to 1e-4.

    The tolerance allows for rounding, which may swap neighbors of almost equal similarity in one of 10,000 queries.
    """
    for name in set(best) - {"product", "nearfar"}:
        for metric, value in best[name]["values"].items():
            ours = best["nearfar"]["values"].get(metric, best.get("nearfar-shared", {}).get("values", {}).get(metric))
            if ours is not None and abs(ours - value) > 1e-4:
                raise SystemExit(f"{metric} differs: {name} gives {value}, nearfar gives {ours}")


def markdown(result: dict[str, Any]) -> str:
    """Return the report: a table of times, ratios and memory, the metric values, and the command that reproduces it."""
    runs = result["runs"]
    floor = runs["product"]["seconds"]
    is_sop = (result["samples"], result["classes"]) == (60502, 11316)
    rounds = "1 round" if result["rounds"] == 1 else f"best of {result['rounds']} interleaved rounds"
    lines = [
        "# Evaluation: time and memory",
        "",
        f"The data are synthetic: {result['samples']:,} unit vectors with {result['dim']} dimensions around random "
        f"centers of {result['classes']:,} classes{', the size of the SOP test set' if is_sop else ''}. Each vector is "
        f"a query against all others. {counted(result['threads'], 'thread')}, {rounds}, torch {torch.__version__}, "
        f"{platform.machine()}. Extra memory is the peak memory of the process minus its memory just before the "
        "evaluation.",
        "",
        *([result["note"], ""] if result["note"] else []),
        "| candidate | seconds | time relative to the full matrix | CPU seconds | extra memory |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, run in runs.items():
        ratio = run["seconds"] / floor
        numbers = f"{run['seconds']:.2f} | {ratio:.2f} | {run['cpu_seconds']:.2f} | {run['extra_mb']:,.0f} MB"
        lines.append(f"| {CANDIDATES[name]} | {numbers} |")
    if runs["nearfar"]["seconds"] < floor:
        reason = "because it computes the similarity of each pair only once"
        lines += ["", f"nearfar needs less time than the full matrix, {reason}."]
    if "pml" in runs and "nearfar-shared" in runs:
        speed = runs["pml"]["seconds"] / runs["nearfar-shared"]["seconds"]
        lines += ["", f"For the metrics that both compute, nearfar is {speed:.1f}x as fast as AccuracyCalculator."]
    agreement = "All candidates that compute a metric agree on its value to 1e-4."
    lines += ["", f"{agreement} These are the values of nearfar:", "", "| metric | value |", "|---|---:|"]
    lines += [f"| {metric} | {value:.6f} |" for metric, value in runs["nearfar"]["values"].items()]
    command = "python -m benchmarks.evaluation " + " ".join(
        f"--{option} {result[option]}" for option in ("samples", "dim", "classes", "threads", "rounds")
    )
    return "\n".join([*lines, "", "Generated by", "", f"    {command} --markdown docs/benchmarks/evaluation.md", ""])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=60502, help="number of embeddings (default 60502, as in SOP)")
    parser.add_argument("--dim", type=int, default=512, help="embedding dimension (default 512)")
    parser.add_argument("--classes", type=int, default=11316, help="number of classes (default 11316, as in SOP)")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="number of threads (default: that of torch)"
    )
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds (default 2)")
    parser.add_argument("--only", nargs="+", choices=list(RUN), help="measure only these candidates")
    parser.add_argument(
        "--note", default="", help="a sentence to add to the report, for example what else ran on the machine"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    parser.add_argument("--measure", choices=list(RUN), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.samples < 2 * options.classes or options.samples < 1000:
        parser.error(f"--samples {options.samples}: must be at least 1000 and at least twice --classes")
    sizes = (options.samples, options.dim, options.classes, options.threads)
    if options.measure:
        print(json.dumps(measure(options.measure, *sizes)))
        return
    names = list(dict.fromkeys(["product", "nearfar", *(options.only or RUN)]))
    result = compare(*sizes, options.rounds, names) | {"note": options.note}
    page = markdown(result)
    print(page)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text(page)


if __name__ == "__main__":
    main()
