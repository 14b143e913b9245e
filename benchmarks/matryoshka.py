"""Recall@1 of truncated Matryoshka embeddings compared with plain training at each size.

    python -m benchmarks.matryoshka cub.npz --seeds 5 --markdown docs/benchmarks/matryoshka.md

For each seed, the script trains one run with `loss.matryoshka`, one without it, and one without it at the smallest
size, all with the same recipe and the same number of steps. The Matryoshka run is scored at each size. The plain run is
truncated too, to show what truncation costs without Matryoshka. Differences are paired by seed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from benchmarks.timing import machine
from nearfar.config.merge import resolve
from nearfar.data import open_data
from nearfar.formatting import markdown_table
from nearfar.metrics.intervals import interval
from nearfar.runs import Run
from nearfar.training import train

METRIC = "recall@1"


def train_run(data: str, recipe: str, seed: int, dim: int, settings: list[str], folder: Path) -> Run:
    """Train one run on feature vectors."""
    common = [f"data.source={data}", f"seed={seed}", f"model.dim={dim}", "threads=1"]
    config = resolve("features", recipe=recipe, settings=[*common, *settings])
    return train(config, folder, say=lambda _: None)


def score(run: Run, size: int) -> float:
    """Return Recall@1 in percent on the test classes, with the first `size` dimensions."""
    return 100 * run.evaluate(metrics=[METRIC], truncate=size, say=lambda _: None)[METRIC]


def measure_seed(data: str, recipe: str, seed: int, sizes: list[int], settings: list[str]) -> dict[str, float]:
    """Train the runs of one seed. Return a dict that maps the name of each table row to its score."""
    dim, least = sizes[-1], sizes[0]
    with tempfile.TemporaryDirectory() as folder:
        nested = train_run(
            data, recipe, seed, dim, [*settings, f"loss.matryoshka={sizes}".replace(" ", "")], Path(folder) / "nested"
        )
        plain = train_run(data, recipe, seed, dim, settings, Path(folder) / "plain")
        small = train_run(data, recipe, seed, least, settings, Path(folder) / "small")
        rows = {f"Matryoshka, {size} of {dim}": score(nested, size) for size in sizes}
        rows |= {f"plain, {size} of {dim}": score(plain, size) for size in (least, dim)}
        return rows | {f"plain, trained at {least}": score(small, least)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", help="an .npz of feature vectors with a test split")
    parser.add_argument("--recipe", default="proxy-anchor", help="recipe (default proxy-anchor)")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[64, 128, 256, 512], help="embedding sizes (default 64 128 256 512)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default 5)")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], help="a setting for all runs (may be repeated)"
    )
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if open_data(options.data).features is None:
        raise SystemExit(f"{options.data}: has no vectors")
    seeds: list[dict[str, float]] = []
    for seed in range(options.seeds):
        seeds.append(measure_seed(options.data, options.recipe, seed, options.sizes, options.settings))
        print(f"seed {seed}: " + ", ".join(f"{name} {value:.2f}" for name, value in seeds[-1].items()), flush=True)
        if options.markdown:
            options.markdown.write_text(_report(seeds, options))


def _report(seeds: list[dict[str, float]], options: argparse.Namespace) -> str:
    least, dim = options.sizes[0], options.sizes[-1]
    rows = []
    for name in seeds[0]:
        mean = interval([row[name] for row in seeds])
        baseline = f"plain, trained at {least}" if f", {least} of" in name else f"plain, {dim} of {dim}"
        has_baseline = f", {least} of" in name or name == f"Matryoshka, {dim} of {dim}"
        difference = interval([row[name] - row[baseline] for row in seeds])
        compared = f"{difference.mean:+.2f} ({difference.low:+.2f} to {difference.high:+.2f})" if has_baseline else ""
        rows.append((name, f"{mean.mean:.2f}", compared))
    settings = "".join(f" --set {setting}" for setting in options.settings)
    return "\n".join(
        [
            "# Matryoshka embeddings",
            "",
            f"Recall@1 in percent on the test classes of {Path(options.data).name}, recipe {options.recipe}, mean of "
            f"{len(seeds)} seeds, {machine()}. The last column is the difference from plain training "
            "(without Matryoshka) at the same number of dimensions, "
            "paired by seed, with a 95% interval of Student's t distribution.",
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
