"""`nearfar audit`: embeddings of the data, the audit, its table and page; and a corrected manifest from decisions."""

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
    """Everything that the command does."""
    run = Run(Path(target)) if (Path(target) / "config.yaml").is_file() else None
    manifest, record = _data(target, run)
    if decisions is not None:
        if out is None:
            raise NearfarError(
                "--apply writes a corrected manifest: say where with --out, a .csv or for arrays an .npz"
            )
        save_corrected(manifest, decisions, out)
        print(f"corrected manifest: {out}")
        return
    where = out or Path("runs") / slug(f"audit-{Path(target).stem}")
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
    found = audit_data(manifest, embeddings_of(manifest, run, model, size), where, shown=shown)
    doubted = int((found.suggested != found.labels).sum())
    print(f"{len(manifest):,} samples, {doubted:,} whose neighbors and class speak for another label")
    if record is not None:
        _judge(found.score, record)
    for row in found.order()[:5].tolist():
        print(
            f"  {manifest.name(row)}: {found.name(int(found.labels[row]))}, rather {found.name(int(found.rival[row]))}?"
        )
    print(f"table: {where / 'audit.csv'}\npage:  {where / 'index.html'}")


def _data(target: str, run: Run | None) -> tuple[Manifest, NoiseRecord | None]:
    if run is None:
        return open_data(target), None
    return assign_splits(run.manifest(), run.config)


def embeddings_of(manifest: Manifest, run: Run | None, model: Path | None, size: int | None) -> Tensor:
    """By the run's model, a given one, or what the data allows: vectors as they are, photos by EfficientNet-Lite0."""
    if run is not None or model is not None:
        chosen = run if model is None else Run(model)
        assert chosen is not None
        return chosen.embed(manifest)
    if manifest.kind == "pixels":
        print("there is no pretrained network for small pictures, comparing pixels: --model RUN would see more")
    return embed_pretrained(manifest, size=size)


def _judge(score: np.ndarray[tuple[int], np.dtype[np.float64]], record: NoiseRecord) -> None:
    count = int(record.wrong.sum())
    first, all_of_them = (precision_at(score, record.wrong, n) for n in (100, count))
    print(f"{count:,} labels are wrong on purpose; of the first 100 suggestions {first:.0%} are wrong, of the first")
    print(f"{count:,} {all_of_them:.0%}; AUROC {auroc(score, record.wrong):.3f}")
