"""Audit a dataset and write audit.csv and index.html to a directory."""

from __future__ import annotations

from pathlib import Path

from nearfar.audit.csv_table import write_csv
from nearfar.audit.page import write_page
from nearfar.audit.ranking import Audit, audit
from nearfar.data.manifest import Manifest
from nearfar.validation import Embeddings


def audit_data(
    manifest: Manifest,
    embeddings: Embeddings,
    out_dir: Path,
    *,
    k: int = 20,
    center: bool = True,
    shown: int = 100,
    beside: int = 6,
) -> Audit:
    """Audit all samples of a manifest and write `audit.csv` and `index.html`.

    To audit one split, pass its subset and the embeddings of the subset.

    Args:
        manifest: The samples.
        embeddings: The embeddings of the samples, [N, d].
        out_dir: The directory to write to.
        k: Number of neighbors that vote, see `audit`.
        center: Whether to subtract the mean embedding, see `audit`.
        shown: The largest number of samples on the page, see `write_page`.
        beside: Number of neighbors shown with each sample, see `write_page`.
    """
    count = len(embeddings)  # type: ignore[arg-type]
    if count != len(manifest):
        raise ValueError(
            f"embeddings must have one row for each of the {len(manifest)} samples of {manifest!r}, got {count}"
        )
    result = audit(embeddings, manifest.labels, classes=manifest.classes, k=k, center=center)
    write_csv(result, manifest, out_dir / "audit.csv")
    write_page(result, manifest, out_dir / "index.html", shown=shown, beside=beside)
    return result
