"""The report of a run: what it found on classes it never saw, as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearfar.data import Manifest
from nearfar.data.layouts.sketches import credit
from nearfar.data.manifest import Ints
from nearfar.metrics import Scores
from nearfar.report import write_report
from nearfar.runs import Run
from nearfar.training.evaluate import score
from nearfar.training.prepare import readable, side_of

MOST = 20_000


def report_run(run: Run, found: tuple[Manifest, Tensor] | None = None) -> Path:
    """Write `report.html` of a finished run; the test split (or else the training data) is searched in.

    `found`: the test split and its embeddings, where training has just made them.
    """
    result, config = run.results(), run.config
    manifest, embeddings = found or _embedded(run)
    held_out = "test" in result
    rows = _rows(manifest)
    manifest, embeddings = manifest.subset(rows), embeddings[torch.from_numpy(rows)]
    scores = {config.recipe or str(config.loss["name"]): score(embeddings, manifest, config.metrics)}
    if held_out and "untrained" in result:
        scores = {"before training": with_values(next(iter(scores.values())), result["untrained"]), **scores}
    return write_report(
        run.path / "report.html",
        title=f"{config.recipe or config.loss['name']} on {Path(config.data.source).name}",
        lead=_lead(manifest, result, held_out),
        scores=scores,
        curves={config.recipe or str(config.loss["name"]): run.log()},
        data=manifest,
        embeddings=embeddings,
        settings=config.to_dict(),
        footer=credit(config.data.source),
    )


def with_values(scores: Scores, values: Mapping[str, float]) -> Scores:
    """Other values of the same queries, without the values of single queries."""
    return Scores(dict(values), scores.queries, scores.dropped, scores.gallery, scores.distance)


def _lead(manifest: Manifest, result: Mapping[str, Any], held_out: bool) -> str:
    kinds = len(np.unique(manifest.labels))
    seen = "that training never saw" if held_out else "that it was trained on"
    text = (
        f"Each sample is searched for among {len(manifest):,} samples of {kinds:,} classes {seen}. "
        f"Training took {result['steps']:,} steps, {result['seconds']:.0f} seconds."
    )
    return f"{text} Note: {result['warning']}." if "warning" in result else text


def _embedded(run: Run) -> tuple[Manifest, Tensor]:
    config, embedder = run.config, run.embedder()
    manifest = run.manifest()
    manifest = manifest.subset("test" if len(manifest.rows("test")) else "train")
    manifest = readable(manifest, config.data, size=side_of(config, embedder, manifest) or embedder.input_size)
    return manifest, run.embed(manifest, embedder)


def _rows(manifest: Manifest) -> Ints:
    """Rows of whole classes, up to a number of samples that a page is made of in seconds."""
    if len(manifest) <= MOST:
        return np.arange(len(manifest))
    order = np.random.default_rng(0).permutation(np.unique(manifest.labels))
    counts = np.cumsum(np.bincount(manifest.labels)[order])
    return np.flatnonzero(np.isin(manifest.labels, order[: max(2, int((counts <= MOST).sum()))]))
