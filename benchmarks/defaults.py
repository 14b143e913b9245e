"""Choose the defaults of recipes on validation classes, and check that they do not lower the scores on other datasets.

    python -m benchmarks.defaults search --data cub=cub.npz --data clinc=clinc.npz ... --out defaults.jsonl
    python -m benchmarks.defaults check --data cub=cub.npz ... --kept-back cars=cars.npz --out defaults.jsonl
    python -m benchmarks.defaults table --data cub --data clinc ... --kept-back cars --out defaults.jsonl

The data are feature vectors with disjoint training and test classes; `benchmarks.default_vectors` creates them.

- `search` trains with every candidate in benchmarks/defaults.yaml on half of the training classes of each dataset and
  scores the other half. It prints the best candidates.
- `check` leaves out one dataset at a time: it chooses candidates on the other datasets and scores them on the test
  classes of the dataset that is left out. It also scores the defaults of the recipes on the datasets of --kept-back.
- `table` prints the tables of the finished runs, without opening the data. All runs of `search` must be finished. "–"
  marks missing runs of `check`.

Every score is compared with that of the untrained head on the same classes. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import yaml

from benchmarks.defaults_runs import Job, Outcome, Runner, describe, read_outcomes, run_all
from nearfar.config import recipes
from nearfar.errors import NearfarError
from nearfar.formatting import markdown_table

CANDIDATES = Path(__file__).with_suffix(".yaml")
FLOOR = -0.3  # smallest gain in MAP@R that a default must have on the validation classes of every dataset
Settings = tuple[str, ...]
Gains = Mapping[tuple[str, Settings, str], float]  # by recipe, settings and dataset


@dataclass(frozen=True)
class Group:
    """Recipes that share their defaults, and the candidates for these defaults."""

    recipes: tuple[str, ...]
    candidates: tuple[Settings, ...]

    def gains(self, found: Gains, settings: Settings, data: Sequence[str]) -> list[float]:
        """Return the gains of a candidate with each recipe on each dataset."""
        return [found[recipe, settings, name] for recipe in self.recipes for name in data]

    def choose(self, found: Gains, data: Sequence[str]) -> Settings:
        """Return the candidate with the largest mean gain among those without a gain below the floor.

        If every candidate has a gain below the floor, return the candidate whose smallest gain is largest.
        """
        gains = {settings: self.gains(found, settings, data) for settings in self.candidates}
        safe = [settings for settings in gains if min(gains[settings]) >= FLOOR]
        if safe:
            return max(safe, key=lambda settings: sum(gains[settings]))
        return max(gains, key=lambda settings: min(gains[settings]))


def read_groups(file: Path, only: Sequence[str] | None = None) -> list[Group]:
    """Return the groups in a file, and one group for each recipe that is not in the file.

    The only candidate of a recipe that is not in the file is its defaults.

    Each group of the file lists recipes, keys, and the values of the keys for each candidate. All candidates of a
    recipe set the same keys, so the results do not depend on the current defaults.

    Args:
        file: The YAML file.
        only: Recipes to return. By default, all.
    """
    groups: list[Group] = []
    seen: set[str] = set()
    for entry in yaml.safe_load(file.read_text(encoding="utf-8")):
        names = tuple(name for name in entry["recipes"] if only is None or name in only)
        for name in names:
            if name in seen or name not in recipes.names():
                raise NearfarError(f"{file}: {name!r} is not a recipe or is listed twice")
            seen.add(name)
        candidates = [
            tuple(f"{key}={json.dumps(value)}" for key, value in zip(entry["keys"], values, strict=True))
            for values in entry["values"]
        ]
        groups += [Group(names, tuple(candidates))] if names else []
    others = [name for name in recipes.names() if name not in seen and (only is None or name in only)]
    return [*groups, *(Group((name,), ((),)) for name in others)]


def search(runner: Runner, groups: Sequence[Group], data: Sequence[str]) -> Gains:
    """Run all candidates on the validation classes of all datasets. Return the gains in MAP@R."""
    jobs = [
        Job("validation", name, recipe, settings)
        for name in data
        for group in groups
        for recipe in group.recipes
        for settings in group.candidates
    ]
    outcomes = run_all(runner, jobs)
    return {(each.job.recipe, each.job.settings, each.job.data): each.gain() for each in outcomes}


def search_table(groups: Sequence[Group], found: Gains, data: Sequence[str]) -> str:
    """Return the gains of all candidates on validation classes as Markdown. The chosen candidates are marked."""
    rows = []
    for group in groups:
        chosen = group.choose(found, data)
        for recipe, settings in product(group.recipes, group.candidates):
            gains = [found[recipe, settings, name] for name in data]
            mark = "chosen" if settings == chosen and len(group.candidates) > 1 else ""
            rows.append([f"{recipe}: {describe(settings)}", *map(_points, gains), _points(_mean(gains)), mark])
    return markdown_table(["recipe: values", *data, "mean", ""], rows)


def left_out_table(groups: Sequence[Group], found: Gains, data: Sequence[str]) -> str:
    """Return the gains on validation classes of each dataset with values chosen on the other datasets, as Markdown."""
    rows = []
    for group in groups:
        chosen = {name: group.choose(found, [other for other in data if other != name]) for name in data}
        for recipe in group.recipes:
            gains = [found[recipe, chosen[name], name] for name in data]
            rows.append([recipe, *(f"**{_points(gain)}**" if gain < -0.5 else _points(gain) for gain in gains)])
    return markdown_table(["recipe", *data], sorted(rows))


def check_jobs(
    groups: Sequence[Group], found: Gains, data: Sequence[str], kept_back: Sequence[str], seeds: Sequence[int]
) -> list[Job]:
    """Return the runs on the test classes of all datasets.

    The runs on a dataset of `data` use the candidates that were chosen on the other datasets. The runs on a dataset of
    `kept_back` use the defaults of the recipes.
    """
    jobs = []
    for seed, name, group in product(seeds, (*data, *kept_back), groups):
        others = [other for other in data if other != name]
        settings = () if name in kept_back else group.choose(found, others)
        jobs += [Job("test", name, recipe, settings, seed) for recipe in group.recipes]
    return jobs


def check_table(outcomes: Iterable[Outcome], data: Sequence[str]) -> str:
    """Return the mean gains on test classes as Markdown: MAP@R / Recall@1 (number of seeds).

    Gains in MAP@R below -0.5 are bold.
    """
    cells: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        cells.setdefault((outcome.job.recipe, outcome.job.data), []).append(outcome)
    rows = []
    for recipe in sorted({recipe for recipe, _ in cells}):
        row = [recipe]
        for name in data:
            runs = cells.get((recipe, name), [])
            gain, recall = (_mean(each.gain(metric) for each in runs) if runs else 0.0 for _, metric in _METRICS)
            text = f"{_points(gain)} / {_points(recall)} ({len(runs)})" if runs else "–"
            row.append(f"**{text}**" if gain < -0.5 else text)
        rows.append(row)
    return markdown_table(["recipe", *data], rows)


def untrained_table(outcomes: Iterable[Outcome], data: Sequence[str]) -> str:
    """Return the scores of the untrained heads on test classes as Markdown."""
    first = {outcome.job.data: outcome.untrained for outcome in outcomes if not outcome.message}
    rows = [
        [metric, *(f"{first[name][key]:.1f}" if name in first else "–" for name in data)] for metric, key in _METRICS
    ]
    return markdown_table(["untrained head", *data], rows)


_METRICS = (("MAP@R", "map@r"), ("Recall@1", "recall@1"))


def _points(value: float) -> str:
    return f"{value:+.1f}"


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def _sources(pairs: Sequence[str] | None) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for pair in pairs or ():
        name, _, path = pair.partition("=")
        named[name] = Path(path)
    return named


def main(argv: list[str] | None = None) -> None:
    description = __doc__.split("\n")[0] if __doc__ else None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defaults", description=description)
    parser.add_argument("stage", choices=("search", "check", "table"))
    parser.add_argument(
        "--data", action="append", required=True, metavar="NAME=FILE.npz", help="a dataset for `search` and `check`"
    )
    parser.add_argument("--kept-back", action="append", metavar="NAME=FILE.npz", help="a dataset only for `check`")
    parser.add_argument(
        "--candidates", type=Path, default=CANDIDATES, help="file of candidates (default benchmarks/defaults.yaml)"
    )
    parser.add_argument("--recipes", nargs="+", metavar="RECIPE", help="recipes to use (default all)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="datasets that `check` scores (default all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of `check` (default 0 1 2)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl", help="file of the finished runs")
    args = parser.parse_args(argv)
    sources, kept_back = _sources(args.data), _sources(args.kept_back)
    groups = read_groups(args.candidates, args.recipes)
    if args.stage == "table":
        done = read_outcomes(args.out)
        scored = [outcome for outcome in done if outcome.job.part == "validation"]
        found: Gains = {(each.job.recipe, each.job.settings, each.job.data): each.gain() for each in scored}
        tested = [outcome for outcome in done if outcome.job.part == "test"]
    else:
        runner = Runner({**sources, **kept_back}, args.out)
        found, tested = search(runner, groups, list(sources)), []
    print(f"{search_table(groups, found, list(sources))}\n\n{left_out_table(groups, found, list(sources))}")
    columns = [name for name in (*sources, *kept_back) if args.only is None or name in args.only]
    if args.stage == "check":
        jobs = check_jobs(groups, found, list(sources), list(kept_back), args.seeds)
        tested = run_all(runner, [job for job in jobs if job.data in columns])
    if tested:
        print(f"\n{untrained_table(tested, columns)}\n\n{check_table(tested, columns)}")


if __name__ == "__main__":
    main()
