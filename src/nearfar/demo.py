"""The demo: learn what drawings have in common, and find drawings of things that training never showed.

Trains two recipes from scratch on half of the classes of the embedded drawings and compares them on the other half with
the raw pixels and the untrained net. Then it searches, and writes a page with what was found. With a folder of photos
it does the same there, starting from EfficientNet-Lite0's public weights.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from tqdm import tqdm

from nearfar.config.merge import resolve
from nearfar.config.schema import Data
from nearfar.data import Manifest
from nearfar.data.layouts.sketches import credit
from nearfar.errors import NearfarError
from nearfar.metrics import Scores, evaluate
from nearfar.report import search_examples, write_report
from nearfar.training import Config, Run, train
from nearfar.training.allocator import keep_freed_memory
from nearfar.training.evaluate import raw_features
from nearfar.training.log import read_log
from nearfar.training.prepare import cache_or_check_images
from nearfar.training.splits import open_manifest

# ours, chosen on held-out classes of the training half (docs/training.md)
RECIPES: dict[str, dict[str, Any]] = {
    "supcon": {"batches": {"classes": 16, "per_class": 4}},
    "proxy-anchor": {"batches": {"size": 64}},
}
DRAWINGS: dict[str, Any] = {"steps": 2700}
PHOTOS: dict[str, Any] = {"steps": 100, "images": {"crop": 112}, "data": {"on_error": "skip"}}
METRICS = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r")


def run(*, steps: int | None = None, source: str = "sketches", out: Path = Path("runs/demo")) -> dict[str, Scores]:
    """The whole demo; returns the scores of every row of the table."""
    started = time.monotonic()
    manifest = open_manifest(Data(source=source))
    kind = manifest.kind
    if kind == "features":
        raise NearfarError(f"{source}: the demo shows pictures, these are vectors: use nearfar train")
    configs = {name: _config(kind, name, steps, source, out) for name in RECIPES}
    unseen, seen = _halves(manifest, next(iter(configs.values())))
    _introduce(seen, unseen)
    scores: dict[str, Scores] = {}
    scratch = kind == "pixels"
    if scratch:
        _print(scores, "raw pixels", evaluate(raw_features(unseen), unseen.labels, metrics=METRICS))
    runs = train_together(configs, out)
    for name, each in runs.items():
        result = each.results()
        if "untrained" in result:
            start = "untrained net" if scratch else "before training"
            _print(scores, start, _scores(unseen, result["untrained"]))
        _print(scores, name, _scores(unseen, result["test"]), result["seconds"])
    best = max(runs, key=lambda name: scores[name]["map@r"])
    embeddings = runs[best].embed(unseen)
    _search(unseen, embeddings, best)
    page = write_report(
        out / "report.html",
        title="Drawings of things it was never shown" if scratch else f"Search in {Path(source).name}",
        lead=_lead(seen, unseen, best, scratch),
        scores=scores,
        curves={name: each.log() for name, each in runs.items()},
        data=unseen,
        embeddings=embeddings,
        settings=runs[best].config.to_dict(),
        footer=credit(source),
    )
    print(f"\nLook at {page}   ({time.monotonic() - started:.0f} s in all)")
    return scores


def _config(kind: str, name: str, steps: int | None, source: str, out: Path) -> Config:
    first = next(iter(RECIPES))
    own = DRAWINGS if kind == "pixels" else PHOTOS | {"data": PHOTOS["data"] | {"cache": str(out / "cache")}}
    tree = {
        **own,
        **RECIPES[name],
        "data": {"source": source, "workers": 0, **own.get("data", {})},
        "steps": steps or own["steps"],
        "metrics": list(METRICS),
        "untrained": name == first,  # both start from the same weights
        "threads": 1,
    }
    return resolve(kind, recipe=name, file=tree)


def train_together(configs: Mapping[str, Config], out: Path) -> dict[str, Run]:
    """The runs side by side, a process and a core each; ones that are finished are taken as they are."""
    missing = {name: config for name, config in configs.items() if not (out / name / "scores.json").is_file()}
    with ProcessPoolExecutor(max(1, len(missing)), mp_context=get_context("spawn")) as pool, ExitStack() as stack:
        waiting = {name: pool.submit(_train, config, out / name) for name, config in missing.items()}
        bars = {
            name: stack.enter_context(
                tqdm(total=config.steps, desc=f"train {name}", unit="batch", leave=False, disable=None, position=i)
            )
            for i, (name, config) in enumerate(missing.items())
        }
        while not all(each.done() for each in waiting.values()):
            time.sleep(0.5)
            for name, bar in bars.items():
                _follow(out / name, bar)
        for each in waiting.values():
            each.result()
    return {name: _checked(Run(out / name), config) for name, config in configs.items()}


def _train(config: Config, out: Path) -> None:
    keep_freed_memory()
    train(config, out, resume=(out / "config.yaml").exists(), say=lambda _: None, progress=False)


def _follow(run: Path, bar: Any) -> None:
    log = run / "log.jsonl"
    steps = [entry for entry in read_log(log) if entry["kind"] == "step"] if log.is_file() else []
    if steps:
        bar.set_postfix(loss=f"{steps[-1]['loss']:.3f}", refresh=False)
        bar.update(steps[-1]["step"] - bar.n)


def _checked(run: Run, config: Config) -> Run:
    if run.config.steps != config.steps or run.config.data.source != config.data.source:
        raise NearfarError(f"{run.path}: is of another demo, of {run.config.steps} steps: choose another --out")
    return run


def _halves(manifest: Manifest, config: Config) -> tuple[Manifest, Manifest]:
    kinds = {name: len(np.unique(manifest.labels[manifest.rows(name)])) for name in ("train", "test")}
    if min(kinds.values()) < 2:
        raise NearfarError(
            f"{config.data.source}: the demo learns from half of the classes and searches in the other half, "
            f"so it needs at least four, got {sum(kinds.values())}"
        )
    manifest = cache_or_check_images(manifest, config.data, size=config.images.crop or 28, say=tqdm.write)
    return manifest.subset("test"), manifest.subset("train")


def _scores(data: Manifest, values: Mapping[str, float]) -> Scores:
    return Scores(dict(values), len(data), 0, len(data), "cosine")


def _introduce(seen: Manifest, unseen: Manifest) -> None:
    what = "drawings by people" if seen.source == "sketches" else "pictures"
    print(f"{len(seen) + len(unseen):,} {what}.")
    print(f"Learning from {_kinds(seen)} kinds of things: {_some(seen)} ...")
    print(f"then searching among {_kinds(unseen)} other kinds, never seen in training: {_some(unseen)} ...\n")
    print(f"{'':16s} {'  '.join(f'{_title(name):>8s}' for name in METRICS)}  seconds")


def _search(data: Manifest, embeddings: Tensor, name: str) -> None:
    print(f"\nSearching with {name}, the nearest first, (what is wrong) in brackets:")
    for each in search_examples(data, embeddings, queries=12, neighbors=6)[3:8]:
        near = (name if right else f"({name})" for name, right in zip(each.names, each.is_match, strict=True))
        print(f"  {each.name:16s} -> {', '.join(near)}")


def _lead(seen: Manifest, unseen: Manifest, best: str, scratch: bool) -> str:
    how = "A small net, trained from scratch on" if scratch else "EfficientNet-Lite0, fine-tuned on"
    return (
        f"{how} {_kinds(seen)} kinds of things, searches among {len(unseen):,} pictures of {_kinds(unseen)} kinds that "
        f"training never showed. Pictures below are found by the better of the two recipes, {best}."
    )


def _kinds(data: Manifest) -> int:
    return len(np.unique(data.labels))


def _some(data: Manifest) -> str:
    names = [data.classes[i] for i in np.unique(data.labels)]
    return ", ".join(names[:: max(1, len(names) // 5)][:4])


def _title(metric: str) -> str:
    return metric.replace("recall", "Recall").replace("map@r", "MAP@R")


def _print(table: dict[str, Scores], name: str, scores: Scores, seconds: float | None = None) -> None:
    table[name] = scores
    took = "" if seconds is None else f"{seconds:9.0f}"
    print(f"{name:16s} {'  '.join(f'{100 * scores[metric]:8.1f}' for metric in METRICS)}{took}", flush=True)
