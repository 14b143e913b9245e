"""The review page of an audit: one HTML file with suspicious samples, their neighbors, and samples of their class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearfar.audit.csv_table import check_same_rows
from nearfar.audit.near_duplicates import Neighborhoods
from nearfar.audit.ranking import Audit
from nearfar.csv_files import encode_cell
from nearfar.data.manifest import Ints, Manifest
from nearfar.report.html import write_html
from nearfar.report.thumbnails import Thumbnails

MIN_SHOWN = 10
MAX_GROUP = 12  # maximum number of samples shown per group of near duplicates


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


@dataclass(frozen=True)
class GroupCard:
    """A group of near duplicates: a title, and its samples with their splits."""

    title: str
    samples: list[tuple[CardSample, str]]


def write_page(
    audit: Audit,
    manifest: Manifest,
    path: Path,
    *,
    shown: int = 100,
    beside: int = 6,
    neighborhoods: Neighborhoods | None = None,
) -> Path:
    """Write the page of the most suspicious samples atomically and return its path.

    The page shows as many samples as there are labels that are probably wrong, but at least ten and at most `shown`.
    Images are stored in the file; a sample without an image is shown by its name. The page is readable without scripts.
    With scripts, the browser remembers the decisions, and a button downloads them as decisions.csv, which
    `apply_decisions` reads.

    Args:
        audit: The audit of all rows of `manifest`.
        manifest: The samples.
        path: The HTML file to write.
        shown: Maximum number of samples on the page.
        neighborhoods: Near duplicates and outliers. If given, the page has a section for each.
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
        groups=_make_groups(neighborhoods, manifest, thumbnails, shown),
        group_count=0 if neighborhoods is None else len(neighborhoods.groups),
        outliers=_make_outliers(neighborhoods, manifest, thumbnails, shown),
        outlier_count=0 if neighborhoods is None else len(neighborhoods.outliers),
        cards=[_make_card(audit, manifest, thumbnails, row, order, beside) for row in rows.tolist()],
    )


def _make_card(
    audit: Audit, manifest: Manifest, thumbnails: Thumbnails, row: int, order: Ints, beside: int
) -> SuspectCard:
    label = manifest.labels[row]
    suggested = manifest.classes[audit.suggested[row]]
    classmates = order[(manifest.labels[order] == label) & (order != row)][::-1][:beside]

    def make_samples(rows: Ints) -> list[CardSample]:
        return [_make_sample(manifest, thumbnails, i) for i in rows.tolist()]

    return SuspectCard(
        row=row,
        cells=(encode_cell(manifest.name(row)), encode_cell(manifest.classes[label]), encode_cell(suggested)),
        sample=_make_sample(manifest, thumbnails, row),
        label=manifest.classes[label],
        suggested=suggested,
        reason=audit.reason(row),
        neighbors=make_samples(audit.neighbors[row, :beside]),
        classmates=make_samples(classmates),
    )


def _make_groups(
    found: Neighborhoods | None, manifest: Manifest, thumbnails: Thumbnails, shown: int
) -> list[GroupCard]:
    cards = []
    for group in () if found is None else found.groups[:shown]:
        notes = [
            "across splits" if group.is_across_splits else "",
            "different labels" if group.has_several_labels else "",
            f"distance {group.distance:.4f}",
        ]
        samples = [
            (_make_sample(manifest, thumbnails, row), str(manifest.split[row]))
            for row in group.rows[:MAX_GROUP].tolist()
        ]
        more = f"{len(group.rows):,} samples" if len(group.rows) > MAX_GROUP else ""
        cards.append(GroupCard(", ".join(note for note in (*notes, more) if note), samples))
    return cards


def _make_outliers(
    found: Neighborhoods | None, manifest: Manifest, thumbnails: Thumbnails, shown: int
) -> list[CardSample]:
    rows = [] if found is None else found.outliers[:shown].tolist()
    return [_make_sample(manifest, thumbnails, row) for row in rows]


def _make_sample(manifest: Manifest, thumbnails: Thumbnails, row: int) -> CardSample:
    return CardSample(manifest.name(row), manifest.classes[manifest.labels[row]], thumbnails.encode_large(row))
