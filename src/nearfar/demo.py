"""The demo: train on drawings, then search among classes that training never saw.

The demo trains a network from scratch with each of two recipes, on half of the classes of the built-in drawings. On the
other half, it compares both networks with raw pixels and with the untrained network. Then it prints search results and
writes a report. Given a folder of images, the demo instead fine-tunes a pretrained network with the defaults of
`nearfar train`, and compares it with the network before training.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
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
from nearfar.formatting import clean_text, counted, metric_title
from nearfar.metrics import Scores, evaluate
from nearfar.report import search_examples, write_report
from nearfar.training import Config, Run, train
from nearfar.training.allocator import keep_freed_memory
from nearfar.training.distributed.process_group import local_device
from nearfar.training.evaluate import raw_features
from nearfar.training.log import read_log
from nearfar.training.prepare import cache_or_check_images
from nearfar.training.splits import open_manifest

# Settings of the two recipes for the drawings. We tuned them on held-out training classes (docs/training.md).
RECIPES: dict[str, dict[str, Any]] = {
    "supcon": {"batches": {"classes": 16, "per_class": 4}},
    "proxy-anchor": {"batches": {"size": 64}},
}
DRAWINGS_STEPS = 2700
IMAGE_RECIPE = "proxy-anchor"
METRICS = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r")


def run(*, steps: int | None = None, source: str = "sketches", out: Path = Path("runs/demo")) -> dict[str, Scores]:
    """Run the demo.

    Args:
        steps: Number of training steps per recipe. None means 2,700 for drawings, and the default of `nearfar train`
            for images.
        source: "sketches" for the built-in drawings, or the path of a folder with one subfolder per class.
        out: Output folder for the runs and the report. Finished runs in it are reused.

    Returns:
        A dict that maps the name of each row of the printed table to its scores.
    """
    started = time.monotonic()
    manifest = open_manifest(Data(source=source))
    kind = manifest.kind
    if kind == "features":
        raise NearfarError(f"{source}: the demo needs images, but these are feature vectors: use nearfar train")
    names = tuple(RECIPES) if kind == "pixels" else (IMAGE_RECIPE,)
    configs = {name: _make_config(manifest, name, steps, source, out) for name in names}
    unseen, seen = _split(manifest, next(iter(configs.values())))
    _print_introduction(seen, unseen)
    scores: dict[str, Scores] = {}
    from_scratch = kind == "pixels"
    if from_scratch:
        _add_row(scores, "raw pixels", evaluate(raw_features(unseen), unseen.labels, metrics=METRICS))
    runs = train_together(configs, out)
    for name, trained in runs.items():
        result = trained.results()
        if "untrained" in result:
            start = "untrained net" if from_scratch else "before training"
            _add_row(scores, start, _make_scores(unseen, result["untrained"]))
        _add_row(scores, name, _make_scores(unseen, result["test"]), result["seconds"])
    best = max(runs, key=lambda name: scores[name]["map@r"])
    embeddings = runs[best].embed(unseen)
    _print_search(unseen, embeddings, best)
    page = write_report(
        out / "report.html",
        title="Drawings of classes that training never saw" if from_scratch else f"Search in {Path(source).name}",
        lead=_lead(seen, unseen, best, from_scratch),
        scores=scores,
        curves={name: trained.log() for name, trained in runs.items()},
        data=unseen,
        embeddings=embeddings,
        settings=runs[best].config.to_dict(),
        footer=credit(source),
    )
    print(f"\nOpen {page}   (the demo took {time.monotonic() - started:.0f} s)")
    return scores


def _make_config(manifest: Manifest, name: str, steps: int | None, source: str, out: Path) -> Config:
    tree: dict[str, Any] = {"data": {"source": source}, "metrics": list(METRICS)}
    if manifest.kind == "files":
        tree["data"]["on_error"] = "skip"
        tree |= {} if steps is None else {"steps": steps}
        cache = str(out / "activations") if local_device("auto").type == "cpu" else None
        return resolve("files", recipe=name, file=tree, samples=len(manifest.rows("train")), cache=cache)
    tree["data"]["workers"] = 0
    tree |= {**RECIPES[name], "steps": steps or DRAWINGS_STEPS, "threads": 1}
    # score the untrained network once: all recipes start from the same weights
    tree["untrained"] = name == next(iter(RECIPES))
    return resolve(manifest.kind, recipe=name, file=tree)


def train_together(configs: Mapping[str, Config], out: Path) -> dict[str, Run]:
    """Train several configurations in parallel, each in its own process. Return a dict that maps their names to runs.

    Finished runs in `out` are not trained again.
    """
    missing = {name: config for name, config in configs.items() if not (out / name / "scores.json").is_file()}
    others = active_children()
    with (
        ProcessPoolExecutor(
            max(1, len(missing)), mp_context=get_context("spawn"), initializer=_end_with_parent
        ) as pool,
        ExitStack() as stack,
    ):
        stack.push(partial(_end_workers, others))
        futures = {name: pool.submit(_train, config, out / name) for name, config in missing.items()}
        bars = {
            name: stack.enter_context(
                tqdm(total=config.steps, desc=f"train {name}", unit="batch", leave=False, disable=None, position=i)
            )
            for i, (name, config) in enumerate(missing.items())
        }
        while not all(future.done() for future in futures.values()):
            time.sleep(0.5)
            for name, bar in bars.items():
                _update_bar(out / name, bar)
        for future in futures.values():
            future.result()
    return {name: _load_run(out / name, config) for name, config in configs.items()}


def _end_with_parent() -> None:
    """End this worker process when its parent ends, even if the parent is killed."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _end_workers(others: list[BaseProcess], kind: type[BaseException] | None, *_: object) -> None:
    """End the worker processes if the demo is interrupted. Otherwise, the pool would wait until training is finished.

    Args:
        others: Child processes that are not workers of the demo.
        kind: Type of the exception that ends the `with` block, or None.
    """
    if kind is not None and not issubclass(kind, Exception):
        for process in active_children():
            if process not in others:
                process.terminate()


def _train(config: Config, out: Path) -> None:
    keep_freed_memory()
    # fine-tuning a pretrained network on image files takes longer than training on drawings, so show its plan
    say: Callable[[str], object] = tqdm.write if config.model.pretrained else (lambda _: None)
    train(config, out, resume=(out / "config.yaml").exists(), say=say, progress=False)


def _update_bar(run: Path, bar: Any) -> None:
    log = run / "log.jsonl"
    steps = [entry for entry in read_log(log) if entry["kind"] == "step"] if log.is_file() else []
    if steps:
        bar.set_postfix(loss=f"{steps[-1]['loss']:.3f}", refresh=False)
        bar.update(steps[-1]["step"] - bar.n)


def _load_run(path: Path, config: Config) -> Run:
    run = Run(path)
    before, now = ((c.steps, c.epochs, c.data.source) for c in (run.config, config))
    if before != now:
        length = counted(before[1] or 0, "epoch") if before[0] is None else counted(before[0], "step")
        raise NearfarError(
            f"{path}: this run belongs to a demo with other settings ({length} on {before[2]}): choose another --out"
        )
    return run


def _split(manifest: Manifest, config: Config) -> tuple[Manifest, Manifest]:
    counts = {name: len(np.unique(manifest.labels[manifest.rows(name)])) for name in ("train", "test")}
    if min(counts.values()) < 2:
        raise NearfarError(
            f"{config.data.source}: the demo needs at least two classes for training and two for testing, "
            f"got {counts['train']} and {counts['test']}"
        )
    manifest = cache_or_check_images(manifest, config.data, size=config.images.crop or 28, say=tqdm.write)
    return manifest.subset("test"), manifest.subset("train")


def _make_scores(data: Manifest, values: Mapping[str, float]) -> Scores:
    return Scores(dict(values), len(data), 0, len(data), "cosine")


def _print_introduction(seen: Manifest, unseen: Manifest) -> None:
    what = "hand drawings" if seen.source == "sketches" else "images"
    print(f"{len(seen) + len(unseen):,} {what}.")
    print(f"Training on {_count_classes(seen)} classes: {_examples(seen)} ...")
    print(f"then searching among {_count_classes(unseen)} other classes: {_examples(unseen)} ...\n")
    print(f"{'':16s} {'  '.join(f'{metric_title(name):>8s}' for name in METRICS)}  seconds")


def _print_search(data: Manifest, embeddings: Tensor, name: str) -> None:
    print(f"\nSearching with {name}; nearest first, wrong results in parentheses:")
    for example in search_examples(data, embeddings, queries=12, neighbors=6)[3:8]:
        neighbors = (
            name if right else f"({name})" for name, right in zip(example.names, example.is_match, strict=True)
        )
        print(f"  {clean_text(example.name):16s} -> {clean_text(', '.join(neighbors))}")


def _lead(seen: Manifest, unseen: Manifest, best: str, from_scratch: bool) -> str:
    how = "A small network, trained from scratch" if from_scratch else "A pretrained network, fine-tuned"
    which = f"{best}, the better of the two recipes" if from_scratch else best
    return (
        f"{how} on {_count_classes(seen)} classes, searches among {len(unseen):,} images of {_count_classes(unseen)} "
        f"classes that training never saw. The images below are the results of {which}."
    )


def _count_classes(data: Manifest) -> int:
    return len(np.unique(data.labels))


def _examples(data: Manifest) -> str:
    names = [data.classes[i] for i in np.unique(data.labels)]
    return clean_text(", ".join(names[:: max(1, len(names) // 5)][:4]))


def _add_row(table: dict[str, Scores], name: str, scores: Scores, seconds: float | None = None) -> None:
    table[name] = scores
    took = "" if seconds is None else f"{seconds:9.0f}"
    print(f"{name:16s} {'  '.join(f'{100 * scores[metric]:8.1f}' for metric in METRICS)}{took}", flush=True)
