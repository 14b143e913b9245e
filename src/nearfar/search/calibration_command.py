"""The command `nearfar calibrate`: measure thresholds and probabilities for the distances of a model and store them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from nearfar.calibration import CALIBRATION_FILE, Calibration, calibrate
from nearfar.calibration.description import THRESHOLD_HEADER, describe, threshold_rows, warning
from nearfar.data import Manifest
from nearfar.data.layouts import PYTHON
from nearfar.errors import NearfarError
from nearfar.metrics.verification import FMRS, MIN_ACCEPTED
from nearfar.model import Model
from nearfar.model_kinds import open_model
from nearfar.report.run_report import report_run
from nearfar.runs import Run
from nearfar.search.messages import say
from nearfar.training.embedder_file import digest_weights, truncate_embedder
from nearfar.training.splits import split_manifest


def calibration_command(
    path: Path,
    source: str | None,
    *,
    split: str | None,
    method: str,
    fmrs: tuple[float, ...],
    truncate: int | None = None,
    skip_broken: bool = False,
    as_json: bool = False,
) -> None:
    """Run `nearfar calibrate`. Messages go to standard error, so that --json prints only JSON."""
    model = open_model(path)
    model = model.skip_broken() if skip_broken else model
    is_trained = isinstance(model, Run)
    part = split or ("test" if is_trained and source is None else "all")
    embedder = truncate_embedder(model.embedder(), truncate)
    manifest = model.load_split(part, embedder, source=source, say=say)
    if not len(manifest):
        raise NearfarError(
            f"{manifest.source or path}: the split {part} has no samples: choose another --split, or pass other DATA"
        )
    embeddings = model.embed(manifest, embedder)
    try:
        measured = calibrate(embeddings, manifest.labels, method=method, fmrs=(*FMRS, *fmrs))
    except ValueError as error:
        raise NearfarError(f"{manifest.source or path}: {error}") from None
    calibration = replace(
        measured,
        model=digest_weights(embedder),
        data=Path(manifest.source or model.config.data.source).name.removeprefix(PYTHON),
        split=part,
        trained=_count_trained_classes(model, manifest, source) if is_trained else 0,
    )
    file = calibration.save(model.path / CALIBRATION_FILE)
    if as_json:
        click.echo(json.dumps(json.loads(file.read_text(encoding="utf-8")), indent=2))
    else:
        _print_calibration(calibration)
        for fmr in fmrs:
            if all(point.fmr != fmr for point in calibration.verification.points):
                pairs = f"{MIN_ACCEPTED / fmr:,.0f} pairs of different classes"
                say(f"--fmr {fmr:g}: no threshold, because it needs at least {pairs}")
    say(f"calibration: {file}")
    if isinstance(model, Run) and model.finished:
        is_report_data = source is None and part == "test" and truncate is None
        say(f"report: {report_run(model, (manifest, embeddings) if is_report_data else None)}")


def _print_calibration(calibration: Calibration) -> None:
    click.echo("threshold: accept a pair as the same class if its distance is at most this")
    rows = [THRESHOLD_HEADER, *threshold_rows(calibration)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(THRESHOLD_HEADER))]
    for row in rows:
        click.echo("  ".join(f"{cell:>{width}s}" for cell, width in zip(row, widths, strict=True)))
    for name, value in describe(calibration):
        click.echo(f"{name}: {value}")
    if calibration.trained:
        click.echo(f"Note: {warning(calibration)}.")


def _count_trained_classes(model: Model, manifest: Manifest, source: str | None) -> int:
    """Return how many classes of `manifest` the model was trained on. Classes are the same if their names are equal."""
    try:
        train = split_manifest(model.manifest(), model.config).train
    except NearfarError as error:
        if source is None:
            raise
        say(f"cannot check whether the model was trained on classes of {source}: {error}")
        return 0
    names = [{part.classes[i] for i in np.unique(part.labels).tolist()} for part in (manifest, train)]
    return len(names[0] & names[1])
