"""The demo: learn what drawings have in common, and find drawings of things that training never showed.

Trains two recipes from scratch on half of the classes of the embedded drawings and compares them on the other half with
the raw pixels and the untrained net. Then it searches, and writes a page with what was found. With a folder of photos
it does the same there, starting from EfficientNet-Lite0's public weights.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from nearfar.data import Loader, Manifest, open_samples
from nearfar.errors import NearfarError
from nearfar.metrics import Scores, evaluate
from nearfar.report import search_examples, write_report
from nearfar.training import Run, resolve, train
from nearfar.training.report import CREDIT
from nearfar.training.setup import open_manifest, readable

# ours, chosen on held-out classes of the training half (docs/training.md)
RECIPES: dict[str, dict[str, Any]] = {
    "supcon": {"batches": {"classes": 16, "per_class": 4}},
    "proxy-anchor": {"batches": {"size": 64}},
}
DRAWINGS: dict[str, Any] = {"steps": 2400}
PHOTOS: dict[str, Any] = {"steps": 100, "images": {"crop": 112}, "data": {"on_error": "skip"}}
METRICS = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r")


def run(*, steps: int | None = None, photos: str | None = None, out: Path = Path("runs/demo")) -> dict[str, Scores]:
    """The whole demo; returns the scores of every row of the table."""
    started = time.monotonic()
    source = photos or "sketches"
    settings = DRAWINGS if photos is None else PHOTOS | {"data": PHOTOS["data"] | {"cache": str(out / "cache")}}
    runs: dict[str, Run] = {}
    scores: dict[str, Scores] = {}
    for name, method in RECIPES.items():
        config = resolve(
            "pixels" if photos is None else "files",
            recipe=name,
            file={
                **settings,
                **method,
                "data": {"source": source, **settings.get("data", {})},
                "steps": steps or settings["steps"],
                "metrics": list(METRICS),
                "untrained": not runs,  # both start from the same weights
            },
        )
        if not runs:
            unseen, seen = _open(config)
            _introduce(seen, unseen)
            if photos is None:
                _print(scores, "raw pixels", raw_pixels(unseen))
        runs[name] = train(config, out / name, resume=(out / name / "config.yaml").exists(), say=tqdm.write)
        result = runs[name].results()
        if "untrained" in result:
            _print(
                scores, "untrained net" if photos is None else "before training", _scores(unseen, result["untrained"])
            )
        _print(scores, name, _scores(unseen, result["test"]), result["seconds"])
    best = max(runs, key=lambda name: scores[name]["map@r"])
    embeddings = runs[best].embed(unseen)
    _search(unseen, embeddings, best)
    page = write_report(
        out / "report.html",
        title="Drawings of things it was never shown" if photos is None else f"Search in {Path(source).name}",
        lead=_lead(seen, unseen, best, photos),
        scores=scores,
        curves={name: each.log() for name, each in runs.items()},
        data=unseen,
        embeddings=embeddings,
        settings=runs[best].config.to_dict(),
        footer=CREDIT if photos is None else "",
    )
    print(f"\nLook at {page}   ({time.monotonic() - started:.0f} s in all)")
    return scores


def _open(config: Any) -> tuple[Manifest, Manifest]:
    manifest = open_manifest(config.data)
    kinds = {name: len(np.unique(manifest.labels[manifest.rows(name)])) for name in ("train", "test")}
    if min(kinds.values()) < 2:
        raise NearfarError(
            f"{config.data.source}: the demo learns from half of the classes and searches in the other half, "
            f"so it needs at least four, got {sum(kinds.values())}"
        )
    manifest = readable(manifest, config.data, size=config.images.crop or 28, say=tqdm.write)
    return manifest.subset("test"), manifest.subset("train")


def _scores(data: Manifest, values: Mapping[str, float]) -> Scores:
    return Scores(dict(values), len(data), 0, len(data), "cosine")


def raw_pixels(data: Manifest) -> Scores:
    """Pictures compared pixel by pixel."""
    rows = torch.cat([batch.x.flatten(1) for batch in Loader(open_samples(data)).all()])
    return evaluate(rows, data.labels, metrics=METRICS)


def _introduce(seen: Manifest, unseen: Manifest) -> None:
    what = "drawings by people" if seen.source == "sketches" else "pictures"
    print(f"{len(seen) + len(unseen):,} {what}.")
    print(f"Learning from {_kinds(seen)} kinds of things: {_some(seen)} ...")
    print(f"then searching among {_kinds(unseen)} other kinds, never seen in training: {_some(unseen)} ...\n")
    print(f"{'':16s} {'  '.join(f'{_title(name):>8s}' for name in METRICS)}  seconds")


def _search(data: Manifest, embeddings: Tensor, name: str) -> None:
    print(f"\nSearching with {name}, the nearest first, (what is wrong) in brackets:")
    for each in search_examples(data, embeddings, queries=12, neighbours=6)[3:8]:
        near = (name if right else f"({name})" for name, right in zip(each.names, each.right, strict=True))
        print(f"  {each.name:16s} -> {', '.join(near)}")


def _lead(seen: Manifest, unseen: Manifest, best: str, photos: str | None) -> str:
    how = "A small net, trained from scratch on" if photos is None else "EfficientNet-Lite0, fine-tuned on"
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
    values: Mapping[str, float] = scores.values
    took = "" if seconds is None else f"{seconds:9.0f}"
    print(f"{name:16s} {'  '.join(f'{100 * values[metric]:8.1f}' for metric in METRICS)}{took}", flush=True)
