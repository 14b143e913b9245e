"""Audit a dataset and write its tables and its page to a directory."""

from __future__ import annotations

from pathlib import Path

from nearfar.audit.csv_table import write_csv, write_duplicates, write_outliers
from nearfar.audit.near_duplicates import Neighborhoods, find_near_duplicates
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
    """Audit all samples of a manifest, and write audit.csv, duplicates.csv, outliers.csv and index.html.

    To audit one split, pass a manifest with only the samples of this split, and their embeddings.

    Args:
        manifest: The samples.
        embeddings: The embeddings of the samples, [N, d].
        out_dir: The directory to write to.
        k: Number of neighbors that vote, see `audit`.
        center: Whether to subtract the mean embedding, see `audit`.
        shown: Maximum number of samples on the review page, see `write_page`.
        beside: Number of neighbors shown with each sample, see `write_page`.
    """
    count = len(embeddings)  # type: ignore[arg-type]
    if count != len(manifest):
        raise ValueError(
            f"embeddings must have one row for each of the {len(manifest)} samples of {manifest!r}, got {count} rows"
        )
    result = audit(embeddings, manifest.labels, classes=manifest.classes, k=k, center=center)
    found = find_near_duplicates(result, embeddings, manifest.split, center=center)
    write_audit(result, found, manifest, out_dir, shown=shown, beside=beside)
    return result


def write_audit(
    result: Audit,
    found: Neighborhoods,
    manifest: Manifest,
    out_dir: Path,
    *,
    shown: int = 100,
    beside: int = 6,
) -> None:
    """Write audit.csv, duplicates.csv, outliers.csv and index.html of an audit. See `audit_data`."""
    write_csv(result, manifest, out_dir / "audit.csv")
    write_duplicates(found, manifest, out_dir / "duplicates.csv")
    write_outliers(found, manifest, out_dir / "outliers.csv")
    write_page(result, manifest, out_dir / "index.html", shown=shown, beside=beside, neighborhoods=found)
