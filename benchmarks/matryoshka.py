"""Recall@1 of truncated Matryoshka embeddings compared with plain training at the smallest and the largest size.

    python -m benchmarks.matryoshka cub.npz --seeds 5 --results vectors.jsonl --markdown report.md
    python -m benchmarks.matryoshka clinc150.csv --sizes 64 128 256 384 --seeds 2 --set epochs=2 --markdown report.md

For each seed, the script trains three runs with the same recipe and the same number of steps: one with
`loss.matryoshka` and one without it, both at the largest size, and one without it at the smallest size. The Matryoshka
run is scored at each size. The plain run at the largest size is also truncated to the smallest size, to show what
truncation costs without Matryoshka. Differences are paired by seed. If the data has no feature vectors, the network is
fine-tuned.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import machine
from nearfar.config.merge import resolve
from nearfar.data import open_data
from nearfar.formatting import markdown_table
from nearfar.metrics.intervals import interval
from nearfar.runs import Run
from nearfar.training import train
from nearfar.training.evaluate import score

METRIC = "recall@1"
FEW_SEEDS = 4


def train_run(data: str, kind: str, recipe: str, seed: int, dim: int, settings: list[str], folder: Path) -> Run:
    """Train one run. Its test scores are not computed, because `score_sizes` computes them."""
    common = [f"data.source={data}", f"seed={seed}", f"model.dim={dim}", "threads=1", "test=false", "untrained=false"]
    config = resolve(kind, recipe=recipe, settings=[*common, *settings])
    return train(config, folder, say=lambda _: None)


def score_sizes(run: Run, sizes: Sequence[int], per_class: int | None) -> list[float]:
    """Return Recall@1 in percent on the test classes for each size, with only the first `size` dimensions.

    The test samples are embedded once. If `per_class` is given, only this many samples of each class are used, chosen
    at random. The choice is the same in every run.
    """
    network = run.embedder()
    manifest = run.load_split("test", network, say=lambda _: None)
    if per_class is not None:
        order = np.random.default_rng(0).permutation(len(manifest))
        labels = manifest.labels[order]
        manifest = manifest.subset(np.sort(np.concatenate([order[labels == y][:per_class] for y in np.unique(labels)])))
    embeddings = run.embed(manifest, network)
    return [100 * score(embeddings[:, :size], manifest, [METRIC])[METRIC] for size in sizes]


def measure_seed(
    data: str, recipe: str, seed: int, sizes: list[int], settings: list[str], per_class: int | None = None
) -> dict[str, float]:
    """Train the runs of one seed. Return a dict that maps the name of each table row to its score."""
    dim, least = sizes[-1], sizes[0]
    kind = open_data(data).kind
    nested_settings = [*settings, f"loss.matryoshka={sizes}".replace(" ", "")]
    with tempfile.TemporaryDirectory() as folder:
        nested = train_run(data, kind, recipe, seed, dim, nested_settings, Path(folder) / "nested")
        plain = train_run(data, kind, recipe, seed, dim, settings, Path(folder) / "plain")
        small = train_run(data, kind, recipe, seed, least, settings, Path(folder) / "small")
        ends = [least, dim]
        scores = [score_sizes(run, at, per_class) for run, at in ((nested, sizes), (plain, ends), (small, [least]))]
    rows = {f"Matryoshka, {size} of {dim}": value for size, value in zip(sizes, scores[0], strict=True)}
    rows |= {f"plain, {size} of {dim}": value for size, value in zip(ends, scores[1], strict=True)}
    return rows | {f"plain, trained at {least}": scores[2][0]}


def read_results(path: Path | None) -> dict[int, dict[str, float]]:
    """Return the scores of the seeds that earlier calls stored."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["seed"]: line["scores"] for line in lines}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", help="data with a test split: an .npz of feature vectors, or data to fine-tune on")
    parser.add_argument("--recipe", default="proxy-anchor", help="recipe (default proxy-anchor)")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[64, 128, 256, 512], help="embedding sizes (default 64 128 256 512)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default 5)")
    parser.add_argument("--first-seed", type=int, default=0, help="the smallest seed to train with now (default 0)")
    parser.add_argument("--results", type=Path, help="JSON Lines file of the scores; its seeds are not trained again")
    parser.add_argument("--test-per-class", type=int, help="number of test samples of each class (default: all)")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], help="a setting for all runs (may be repeated)"
    )
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    done = read_results(options.results)
    for seed in range(options.first_seed, options.seeds):
        if seed in done:
            continue
        done[seed] = measure_seed(
            options.data, options.recipe, seed, options.sizes, options.settings, options.test_per_class
        )
        print(f"seed {seed}: " + ", ".join(f"{name} {value:.2f}" for name, value in done[seed].items()), flush=True)
        if options.results:
            with options.results.open("a") as file:
                file.write(json.dumps({"seed": seed, "scores": done[seed]}) + "\n")
    if options.markdown:
        options.markdown.write_text(_report([scores for _, scores in sorted(done.items())], options))


def _report(seeds: list[dict[str, float]], options: argparse.Namespace) -> str:
    least, dim = options.sizes[0], options.sizes[-1]
    rows = []
    for name in seeds[0]:
        mean = interval([row[name] for row in seeds])
        baseline = f"plain, trained at {least}" if f", {least} of" in name else f"plain, {dim} of {dim}"
        has_baseline = f", {least} of" in name or name == f"Matryoshka, {dim} of {dim}"
        difference = interval([row[name] - row[baseline] for row in seeds])
        spread = f"{difference.low:+.2f} to {difference.high:+.2f}"
        if len(seeds) < FEW_SEEDS:  # an interval of so few values would be very wide
            spread = ", ".join(f"{row[name] - row[baseline]:+.2f}" for row in seeds)
        compared = f"{difference.mean:+.2f} ({spread})" if has_baseline else ""
        rows.append((name, f"{mean.mean:.2f}", compared))
    settings = "".join(f" --set {setting}" for setting in options.settings)
    if options.test_per_class:
        settings = f" --test-per-class {options.test_per_class}{settings}"
    return "\n".join(
        [
            "# Matryoshka embeddings",
            "",
            f"Recall@1 in percent on the test classes of {Path(options.data).name}, recipe {options.recipe}, mean of "
            f"{len(seeds)} seeds, {machine()}. The last column is the difference from plain training "
            "(without Matryoshka) at the same number of dimensions, "
            "paired by seed, with "
            + (
                "the differences of all seeds in parentheses."
                if len(seeds) < FEW_SEEDS
                else "a 95% interval of Student's t distribution."
            ),
            "",
            markdown_table(["embedding", "Recall@1", "difference from plain training at this size"], rows),
            "",
            "Made by",
            "",
            f"    python -m benchmarks.matryoshka {Path(options.data).name} --recipe {options.recipe} "
            f"--sizes {' '.join(map(str, options.sizes))} --seeds {len(seeds)}{settings}",
            "",
        ]
    )


if __name__ == "__main__":
    main()
