"""The page of an audit: suspicious samples beside their neighbors and their class, in one self-contained file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearfar.audit.csv_table import check_same_rows
from nearfar.audit.ranking import Audit
from nearfar.data.manifest import Ints, Manifest
from nearfar.report.html import write_html
from nearfar.report.thumbnails import Thumbnails

MIN_SHOWN = 10


@dataclass(frozen=True)
class CardSample:
    """A sample on the page; `source` is the data URI of its image, None if it has none."""

    name: str
    label: str
    source: str | None


@dataclass(frozen=True)
class SuspectCard:
    """A suspicious sample with its neighbors and other samples of its class."""

    row: int
    sample: CardSample
    label: str
    suggested: str
    reason: str
    neighbors: list[CardSample]
    classmates: list[CardSample]


def write_page(audit: Audit, manifest: Manifest, path: Path, *, shown: int = 100, beside: int = 6) -> Path:
    """Write the page of the most suspicious samples atomically and return its path.

    The page shows all samples for which another label is suggested, but at least ten and at most `shown`. Images are
    embedded; samples without images show their names. The page is readable without scripts; with scripts, a button
    downloads the decisions as decisions.csv, which `apply_decisions` reads.

    Args:
        audit: The audit of all rows of `manifest`.
        manifest: The samples.
        path: The HTML file to write.
        shown: The largest number of samples on the page.
        beside: Number of nearest neighbors, and of the least suspicious samples of the class, shown with each sample.
    """
    check_same_rows(audit, manifest)
    thumbnails, order = Thumbnails(manifest), audit.order()
    suspects = int((audit.suggested != audit.labels).sum())
    rows = order[: min(shown, max(suspects, MIN_SHOWN))]
    return write_html(
        path,
        "audit/templates/page.html",
        source=manifest.source or "data",
        samples=len(manifest),
        classes=len(np.unique(manifest.labels)),
        suspects=suspects,
        cards=[_make_card(audit, manifest, thumbnails, row, order, beside) for row in rows.tolist()],
    )


def _make_card(
    audit: Audit, manifest: Manifest, thumbnails: Thumbnails, row: int, order: Ints, beside: int
) -> SuspectCard:
    label = manifest.labels[row]
    classmates = order[(manifest.labels[order] == label) & (order != row)][::-1][:beside]

    def make_samples(rows: Ints) -> list[CardSample]:
        return [
            CardSample(manifest.name(i), manifest.classes[manifest.labels[i]], thumbnails.encode_large(i))
            for i in rows.tolist()
        ]

    return SuspectCard(
        row=row,
        sample=CardSample(manifest.name(row), manifest.classes[label], thumbnails.encode_large(row)),
        label=manifest.classes[label],
        suggested=manifest.classes[audit.suggested[row]],
        reason=audit.reason(row),
        neighbors=make_samples(audit.neighbors[row, :beside]),
        classmates=make_samples(classmates),
    )
