"""`nearfar audit`: embed and audit a dataset, or apply decisions and write a corrected manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from nearfar.audit.dataset import audit_data
from nearfar.audit.decisions import changes_file, save_corrected
from nearfar.audit.ranking import Audit
from nearfar.data import Manifest, NoiseRecord, add_label_noise, open_data
from nearfar.errors import NearfarError
from nearfar.files import check_not_read
from nearfar.formatting import clean_text, counted, slug
from nearfar.metrics.detection import auroc, precision_at
from nearfar.model import Model
from nearfar.model_kinds import MODEL_FILE, BackboneModel, open_model
from nearfar.training.prepare import drop_or_refuse_broken
from nearfar.training.pretrained_embeddings import embed_pretrained
from nearfar.training.splits import assign_splits


def audit_command(
    target: str,
    *,
    model: str | None = None,
    split: str = "all",
    size: int | None = None,
    noise: float = 0.0,
    shown: int = 100,
    decisions: Path | None = None,
    out: Path | None = None,
    skip_broken: bool = False,
    force: bool = False,
) -> None:
    """Run `nearfar audit`.

    Args:
        target: A dataset, a run directory or an index directory.
        model: A run, a backbone or another model whose network embeds the data (see `open_model`).
        split: The split to audit, or "all".
        size: Image size for the pretrained network.
        noise: Fraction of the labels to replace at random before the audit, to measure how many of them it finds.
        shown: The largest number of samples on the page.
        decisions: A table of decisions. If given, it is applied, and no audit is run.
        out: Directory for the results of the audit, or file for the corrected manifest.
        skip_broken: Whether to leave out images that cannot be read. Otherwise they are an error.
        force: Allow the corrected manifest to overwrite the data or the decisions.
    """
    is_model = any((Path(target) / file).is_file() for file in ("config.yaml", MODEL_FILE))
    run = open_model(Path(target)) if is_model else None
    manifest, record = _open(target, run)
    if decisions is not None:
        if out is None:
            raise NearfarError(
                "--apply writes a corrected manifest: pass the file to write with --out (.csv, or .npz for arrays)"
            )
        if not force:
            source = target if run is None else run.config.data.source
            read = [Path(source).expanduser(), Path(source.partition(":")[2]).expanduser(), decisions]
            for path in (out, changes_file(out)):
                check_not_read(path, read, remedy="choose another --out, or pass --force")
        if skip_broken:  # decisions name rows of the data that the audit saw
            manifest = drop_or_refuse_broken(manifest, skip=True, workers=2)
        save_corrected(manifest, decisions, out)
        print(f"corrected manifest: {out}")
        return
    if force:
        raise NearfarError("--force is only for --apply: remove it")
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
    readable = drop_or_refuse_broken(manifest, skip=skip_broken, workers=2)
    if record is not None and len(readable) < len(manifest):
        kept = np.isin(manifest.paths or (), readable.paths or ())
        record = replace(record, true_labels=record.true_labels[kept], wrong=record.wrong[kept])
    manifest = readable
    if len(np.unique(manifest.labels)) < 2:
        raise NearfarError(
            f"{manifest.source or target}: has only one class: the audit compares the classes of similar samples, so "
            "it needs at least two"
        )
    if record is not None and not 0 < int(record.wrong.sum()) < len(manifest):
        if noise > 0:
            raise NearfarError(
                f"--noise {noise:g} corrupted {int(record.wrong.sum()):,} of {counted(len(manifest), 'label')}, so "
                "detection cannot be measured: choose another fraction"
            )
        record = None  # the run has no noise in this split
    result = audit_data(manifest, embed_for_audit(manifest, run, model, size), directory, shown=shown)
    doubts, suspects = int((result.suggested != result.labels).sum()), int(result.flagged.sum())
    print(f"{counted(len(manifest), 'sample')}, {counted(suspects, 'label')} probably wrong")
    print(f"(neighbors suggest another label for {counted(doubts, 'sample')}, most of them with weak evidence)")
    if record is not None:
        _print_detection(result, record)
    for row in result.order()[:5].tolist():
        label, rival = (clean_text(result.name(int(values[row]))) for values in (result.labels, result.rival))
        print(f"  {clean_text(manifest.name(row))}: labeled {label}, maybe {rival}?")
    print(f"table: {directory / 'audit.csv'}\npage:  {directory / 'index.html'}")


def _open(target: str, run: Model | None) -> tuple[Manifest, NoiseRecord | None]:
    if run is None:
        return open_data(target), None
    return assign_splits(run.manifest(), run.config)


def embed_for_audit(manifest: Manifest, run: Model | None, model: str | None, size: int | None) -> Tensor:
    """Embed a dataset for the audit.

    The network of `model` is used (see `open_model`), or else that of `run`. Without either, image files are embedded
    by a pretrained EfficientNet-Lite0, and feature vectors and pixels are used as they are.
    """
    if run is not None or model is not None:
        chosen = run if model is None else open_model(model, size=size)
        assert chosen is not None
        return (chosen.for_data(manifest) if isinstance(chosen, BackboneModel) else chosen).embed(manifest)
    if manifest.kind == "pixels":
        print("images are compared by their pixels, because no pretrained network fits arrays of small images:")
        print("pass --model MODEL for better results")
    return embed_pretrained(manifest, size=size)


def _print_detection(result: Audit, record: NoiseRecord) -> None:
    score, count = result.score, int(record.wrong.sum())
    top = min(100, len(score))
    at_top, at_count = (precision_at(score, record.wrong, n) for n in (top, count))
    print(f"{count:,} labels were corrupted. Of the {top} most suspicious labels, {at_top:.0%} are corrupted. Of the")
    print(f"{count:,} most suspicious labels, {at_count:.0%} are corrupted. AUROC: {auroc(score, record.wrong):.3f}")
    found = int((result.flagged & record.wrong).sum())
    precision = (
        "" if not result.flagged.any() else f"{found / int(result.flagged.sum()):.0%} of them are corrupted, and "
    )
    print(f"{counted(int(result.flagged.sum()), 'label')} probably wrong: {precision}{found / count:.0%} of the")
    print("corrupted labels are among them.")
