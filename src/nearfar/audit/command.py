"""`nearfar audit`: embed and audit a dataset, or apply decisions and write a corrected manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from nearfar.audit.dataset import write_audit
from nearfar.audit.decisions import changes_file, save_corrected
from nearfar.audit.near_duplicates import find_near_duplicates
from nearfar.audit.ranking import Audit, audit
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
        model: The model that embeds the data: a run, a saved model or a backbone (see `open_model`).
        split: The split to audit, or "all".
        size: Image size for the pretrained network.
        noise: Fraction of the labels to replace at random before the audit, to measure how many of them it finds.
        shown: Maximum number of samples on the review page.
        decisions: A table of decisions. If given, the decisions are applied, and no audit is run.
        out: Directory for the results of the audit, or file for the corrected manifest.
        skip_broken: If True, leave out images that cannot be read. Otherwise, such images raise an error.
        force: If True, the corrected manifest may overwrite the data or the decisions.
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
        if skip_broken:  # the row numbers in the decisions are those of the data without broken images
            manifest = drop_or_refuse_broken(manifest, skip=True, workers=2)
        save_corrected(manifest, decisions, out)
        print(f"corrected manifest: {out}")
        return
    if force:
        raise NearfarError("--force can only be used with --apply: remove it")
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
            f"{manifest.source or target}: all samples have the same class, but the audit compares the classes of "
            "similar samples, so it needs at least two classes"
        )
    if record is not None and not 0 < int(record.wrong.sum()) < len(manifest):
        if noise > 0:
            raise NearfarError(
                f"--noise {noise:g} corrupted {int(record.wrong.sum()):,} of {counted(len(manifest), 'label')}, so "
                "detection cannot be measured: choose another fraction"
            )
        record = None  # detection cannot be measured: none of the labels of this split is known to be wrong, or all are
    embeddings = embed_for_audit(manifest, run, model, size)
    result = audit(embeddings, manifest.labels, classes=manifest.classes)
    found = find_near_duplicates(result, embeddings, manifest.split)
    write_audit(result, found, manifest, directory, shown=shown)
    doubts, suspects = int((result.suggested != result.labels).sum()), int(result.flagged.sum())
    print(f"{counted(len(manifest), 'sample')}, {counted(suspects, 'label')} probably wrong")
    print(f"(another label is suggested for {counted(doubts, 'sample')}, with strong evidence for {suspects:,})")
    if record is not None:
        _print_detection(result, record)
    for row in result.order()[:5].tolist():
        label, rival = (clean_text(result.name(int(values[row]))) for values in (result.labels, result.rival))
        print(f"  {clean_text(manifest.name(row))}: labeled {label}, maybe {rival}?")
    across = sum(group.is_across_splits for group in found.groups)
    print(f"{counted(len(found.groups), 'group')} of near duplicates, {across:,} of them across splits")
    print(f"{counted(len(found.outliers), 'outlier')}, far from all other samples")
    print(f"table: {directory / 'audit.csv'}\npage:  {directory / 'index.html'}")
    if suspects > shown:
        rest = f"pass --shown {suspects} to see all"
        print(f"the page shows {shown:,} of the {suspects:,} labels that are probably wrong: {rest}")


def _open(target: str, run: Model | None) -> tuple[Manifest, NoiseRecord | None]:
    if run is None:
        return open_data(target), None
    return assign_splits(run.manifest(), run.config)


def embed_for_audit(manifest: Manifest, run: Model | None, model: str | None, size: int | None) -> Tensor:
    """Return the embeddings of a dataset for the audit.

    If `model` is given (see `open_model`), its network embeds the data; otherwise, if `run` is given, the network of
    the run does. Without either, a pretrained EfficientNet-Lite0 embeds image files, all-MiniLM-L6-v2 embeds texts, and
    feature vectors and pixels are used unchanged.
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
    print(f"corrupted labels: {count:,}. Of the {top} most suspicious labels, {at_top:.0%} are corrupted. Of the")
    suspicious = counted(count, "most suspicious label")
    print(f"{suspicious}, {at_count:.0%} are corrupted. AUROC: {auroc(score, record.wrong):.3f}")
    found = int((result.flagged & record.wrong).sum())
    precision = (
        "" if not result.flagged.any() else f"{found / int(result.flagged.sum()):.0%} of them are corrupted, and "
    )
    print(f"{counted(int(result.flagged.sum()), 'label')} probably wrong: {precision}{found / count:.0%} of the")
    print("corrupted labels are among them.")
