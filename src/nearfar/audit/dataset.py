"""The whole job on a data set: audit.csv and index.html in a folder."""

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
    """Audit every row of a manifest by its embeddings [N, d], write `audit.csv` and `index.html`, give what was found.

    `k`, `center`: see `audit`; `shown`, `beside`: see `write_page`. To audit one split pass its subset and the
    embeddings of its rows.
    """
    if len(embeddings) != len(manifest):  # type: ignore[arg-type]
        raise ValueError(f"embeddings must have one row for each of the {len(manifest)} samples of {manifest!r}")
    found = audit(embeddings, manifest.labels, classes=manifest.classes, k=k, center=center)
    write_csv(found, manifest, out_dir / "audit.csv")
    write_page(found, manifest, out_dir / "index.html", shown=shown, beside=beside)
    return found
