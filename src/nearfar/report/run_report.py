"""The report of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearfar.calibration import load_calibration
from nearfar.data import Manifest
from nearfar.data.layouts.sketches import credit
from nearfar.formatting import counted
from nearfar.metrics import Scores
from nearfar.report import write_report
from nearfar.runs import Run
from nearfar.training.class_subset import sample_whole_classes
from nearfar.training.evaluate import has_positives, score
from nearfar.training.start_scores import RAW_TITLE, start_title

MAX_SAMPLES = 20_000  # the report uses at most this many samples, so that it takes only a few seconds


def report_run(run: Run, embedded: tuple[Manifest, Tensor] | None = None) -> Path:
    """Write the report of a finished run to `report.html` in its run directory and return the path.

    The report searches the test split, or the training data if there is no test split.

    Args:
        run: The run.
        embedded: The samples of the searched split and their embeddings. If None, the embeddings are computed.
    """
    result, config = run.results(), run.config
    manifest, embeddings = embedded or _embed(run)
    is_held_out = "test" in result
    # if there are more than MAX_SAMPLES samples, keep only some classes (at least two), each with all its samples
    rows = sample_whole_classes(manifest.labels, MAX_SAMPLES, min_classes=2)
    manifest, embeddings = manifest.subset(rows), embeddings[torch.from_numpy(rows)]
    name = config.recipe or config.loss_name
    scores = {name: score(embeddings, manifest, config.metrics)} if has_positives(manifest) else {}
    starts = {"raw": RAW_TITLE, "untrained": start_title(config)}
    if scores and is_held_out:
        before = {title: replace_values(scores[name], result[kind]) for kind, title in starts.items() if kind in result}
        scores = before | scores
    return write_report(
        run.path / "report.html",
        title=f"{name} on {Path(config.data.source).name}",
        lead=_make_lead(manifest, result, is_held_out),
        scores=scores,
        curves={name: run.log()},
        data=manifest,
        embeddings=embeddings,
        settings=config.to_dict(),
        calibration=load_calibration(run),
        footer=credit(config.data.source),
    )


def replace_values(scores: Scores, values: Mapping[str, float]) -> Scores:
    """Return a copy of `scores` whose means are `values`.

    The copy has the same counts and distance, but no values per query and no estimates of errors.
    """
    return Scores(dict(values), scores.queries, scores.dropped, scores.gallery, scores.distance)


def _make_lead(manifest: Manifest, result: Mapping[str, Any], is_held_out: bool) -> str:
    samples, classes = counted(len(manifest), "sample"), counted(len(np.unique(manifest.labels)), "class", "classes")
    origin = "that are not in the training data" if is_held_out else "that the run was trained on"
    text = (
        f"The report searches {samples} of {classes} {origin}. "
        f"Training took {counted(result['steps'], 'step')} and {result['seconds']:.0f} seconds."
    )
    return f"{text} Note: {result['warning']}." if "warning" in result else text


def _embed(run: Run) -> tuple[Manifest, Tensor]:
    embedder = run.embedder()
    manifest = run.load_split("test" if len(run.manifest().rows("test")) else "train", embedder)
    return manifest, run.embed(manifest, embedder)
