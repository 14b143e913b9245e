"""`nearfar audit`: embed and audit a dataset, or write a corrected manifest from decisions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from nearfar.audit.dataset import audit_data
from nearfar.audit.decisions import save_corrected
from nearfar.data import Manifest, NoiseRecord, add_label_noise, open_data
from nearfar.errors import NearfarError
from nearfar.formatting import slug
from nearfar.metrics.detection import auroc, precision_at
from nearfar.training import Run
from nearfar.training.pretrained_embeddings import embed_pretrained
from nearfar.training.splits import assign_splits


def audit_command(
    target: str,
    *,
    model: Path | None = None,
    split: str = "all",
    size: int | None = None,
    noise: float = 0.0,
    shown: int = 100,
    decisions: Path | None = None,
    out: Path | None = None,
) -> None:
    """Run `nearfar audit`.

    Args:
        target: A dataset or a run directory.
        model: A run directory whose network embeds the data.
        split: The split to audit, or "all".
        size: Image size for the pretrained network.
        noise: Fraction of the labels to replace at random first, to measure the audit.
        shown: The largest number of samples on the page.
        decisions: A table of decisions to apply instead of an audit.
        out: Directory of the audit, or file of the corrected manifest.
    """
    run = Run(Path(target)) if (Path(target) / "config.yaml").is_file() else None
    manifest, record = _open(target, run)
    if decisions is not None:
        if out is None:
            raise NearfarError(
                "--apply writes a corrected manifest: pass its file with --out, a .csv, or an .npz for arrays"
            )
        save_corrected(manifest, decisions, out)
        print(f"corrected manifest: {out}")
        return
    directory = out or Path("runs") / slug(f"audit-{Path(target).stem}")
    if noise > 0:
        everything = replace(manifest, split=np.full(len(manifest), "train"))
        noisy, record = add_label_noise(everything, noise)
        manifest = manifest.with_labels(noisy.labels)
    if split != "all":
        rows = manifest.rows(split)
        manifest = manifest.subset(split)
        record = (
            None if record is None else replace(record, true_labels=record.true_labels[rows], wrong=record.wrong[rows])
        )
    result = audit_data(manifest, embed_for_audit(manifest, run, model, size), directory, shown=shown)
    suspects = int((result.suggested != result.labels).sum())
    print(f"{len(manifest):,} samples, {suspects:,} whose neighbors suggest a different label")
    if record is not None:
        _print_detection(result.score, record)
    for row in result.order()[:5].tolist():
        label, rival = (result.name(int(values[row])) for values in (result.labels, result.rival))
        print(f"  {manifest.name(row)}: labeled {label}, maybe {rival}?")
    print(f"table: {directory / 'audit.csv'}\npage:  {directory / 'index.html'}")


def _open(target: str, run: Run | None) -> tuple[Manifest, NoiseRecord | None]:
    if run is None:
        return open_data(target), None
    return assign_splits(run.manifest(), run.config)


def embed_for_audit(manifest: Manifest, run: Run | None, model: Path | None, size: int | None) -> Tensor:
    """Embed a dataset for the audit.

    The network of `model` is used, or else that of `run`. Without either, image files are embedded by a pretrained
    EfficientNet-Lite0, and feature vectors and pixels are used as they are.
    """
    if run is not None or model is not None:
        chosen = run if model is None else Run(model)
        assert chosen is not None
        return chosen.embed(manifest)
    if manifest.kind == "pixels":
        print("no pretrained network fits small images, so pixels are compared: pass --model RUN for better results")
    return embed_pretrained(manifest, size=size)


def _print_detection(score: np.ndarray[tuple[int], np.dtype[np.float64]], record: NoiseRecord) -> None:
    count = int(record.wrong.sum())
    at_100, at_count = (precision_at(score, record.wrong, n) for n in (100, count))
    print(f"{count:,} labels were corrupted. Of the first 100 suggestions, {at_100:.0%} are corrupted labels; of the")
    print(f"first {count:,}, {at_count:.0%}. AUROC {auroc(score, record.wrong):.3f}")
