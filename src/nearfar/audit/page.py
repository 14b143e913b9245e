"""The page of an audit: suspicious samples with their neighbors and other samples of their class, in a single file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearfar.audit.csv_table import check_same_rows
from nearfar.audit.ranking import Audit
from nearfar.csv_files import encode_cell
from nearfar.data.manifest import Ints, Manifest
from nearfar.report.html import write_html
from nearfar.report.thumbnails import Thumbnails

MIN_SHOWN = 10


@dataclass(frozen=True)
class CardSample:
    """A sample on the page. `source` is the data URI of its image, or None if there is no image."""

    name: str
    label: str
    source: str | None


@dataclass(frozen=True)
class SuspectCard:
    """A suspicious sample with its neighbors and other samples of its class.

    `cells` are the path, the label and the suggested label as the page writes them to decisions.csv.
    """

    row: int
    cells: tuple[str, str, str]
    sample: CardSample
    label: str
    suggested: str
    reason: str
    neighbors: list[CardSample]
    classmates: list[CardSample]


def write_page(audit: Audit, manifest: Manifest, path: Path, *, shown: int = 100, beside: int = 6) -> Path:
    """Write the page of the most suspicious samples atomically and return its path.

    The page shows all samples whose label is probably wrong, but at least ten and at most `shown`. Images are
    embedded; samples without images show their names. The page is readable without scripts; with scripts, the browser
    remembers the decisions, and a button downloads them as decisions.csv, which `apply_decisions` reads.

    Args:
        audit: The audit of all rows of `manifest`.
        manifest: The samples.
        path: The HTML file to write.
        shown: The largest number of samples on the page.
        beside: Number of nearest neighbors, and of the least suspicious samples of the class, shown with each sample.
    """
    check_same_rows(audit, manifest)
    thumbnails, order = Thumbnails(manifest), audit.order()
    suspects = int(audit.flagged.sum())
    rows = order[: min(shown, max(suspects, MIN_SHOWN))]
    return write_html(
        path,
        "audit/templates/page.html",
        source=manifest.source or "data",
        samples=len(manifest),
        classes=len(np.unique(manifest.labels)),
        suspects=suspects,
        key=manifest.fingerprint,
        class_cells=[encode_cell(name) for name in manifest.classes],
        cards=[_make_card(audit, manifest, thumbnails, row, order, beside) for row in rows.tolist()],
    )


def _make_card(
    audit: Audit, manifest: Manifest, thumbnails: Thumbnails, row: int, order: Ints, beside: int
) -> SuspectCard:
    label = manifest.labels[row]
    suggested = manifest.classes[audit.suggested[row]]
    classmates = order[(manifest.labels[order] == label) & (order != row)][::-1][:beside]

    def make_samples(rows: Ints) -> list[CardSample]:
        return [
            CardSample(manifest.name(i), manifest.classes[manifest.labels[i]], thumbnails.encode_large(i))
            for i in rows.tolist()
        ]

    return SuspectCard(
        row=row,
        cells=(encode_cell(manifest.name(row)), encode_cell(manifest.classes[label]), encode_cell(suggested)),
        sample=CardSample(manifest.name(row), manifest.classes[label], thumbnails.encode_large(row)),
        label=manifest.classes[label],
        suggested=suggested,
        reason=audit.reason(row),
        neighbors=make_samples(audit.neighbors[row, :beside]),
        classmates=make_samples(classmates),
    )
