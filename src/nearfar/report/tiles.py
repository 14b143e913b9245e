"""Samples shown as tiles on a page: an image or a name in a frame, with a caption."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from nearfar.data.manifest import Manifest
from nearfar.report.examples import Confusion, QueryResult
from nearfar.report.thumbnails import Thumbnails


@dataclass(frozen=True)
class Tile:
    """The content of a tile.

    Attributes:
        source: Data URI of the image; None if there is no image.
        alt: Alternative text of the image, for screen readers.
        words: Text shown if there is no image.
        caption: Text below the image.
        note: Small text below the caption.
        kind: "right" (same class as the query) or "wrong" for a frame with a badge; "" for a plain frame.
        tip: Text that appears on hover.
        is_drawing: Whether the image is a drawing on a white background.
        is_broken: Whether the image file cannot be read.
    """

    source: str | None
    alt: str
    words: str
    caption: str
    note: str = ""
    kind: str = ""
    tip: str = ""
    is_drawing: bool = False
    is_broken: bool = False


def make_query_rows(
    data: Manifest, results: Iterable[QueryResult], thumbnails: Thumbnails
) -> list[tuple[Tile, list[Tile]]]:
    """Return (tile of the query, tiles of its neighbors with the nearest first) for each result."""
    rows = []
    for result in results:
        query = make_tile(data, result.row, thumbnails, role="query")
        first = result.first_match
        note = "no other sample of this class" if first is None else f"first match: #{first:,}"
        neighbors = []
        for position, (row, is_match, cosine) in enumerate(
            zip(result.rows, result.is_match, result.similarities, strict=True), start=1
        ):
            kind = "right" if is_match else "wrong"
            tile = make_tile(data, row, thumbnails, role=f"neighbor {position}, {kind}")
            tip = f"{position}. {data.name(row)}, cosine {cosine:.3f}"
            neighbors.append(replace(tile, kind=kind, tip=tip))
        rows.append((replace(query, note=note), neighbors))
    return rows


def make_confusion_cards(
    data: Manifest, confusions: Iterable[Confusion], thumbnails: Thumbnails
) -> list[dict[str, Any]]:
    """Return a card for each pair of classes, with tiles of a query and its nearest neighbor."""
    return [
        {
            "tiles": [make_tile(data, row, thumbnails) for row in pair.rows],
            "percent": f"{100 * pair.count / pair.queries:.0f}",
            "count": pair.count,
            "queries": pair.queries,
        }
        for pair in confusions
    ]


def make_tile(data: Manifest, row: int, thumbnails: Thumbnails, *, role: str = "") -> Tile:
    """Return the tile of a sample. The caption is its class.

    The alternative text is the class and, if given, `role`, such as "query".
    """
    name, source = data.classes[data.labels[row]], thumbnails.encode_large(row)
    return Tile(
        source=source,
        alt=f"{name} ({role})" if role else name,
        words=data.name(row) if data.kind == "text" else PurePosixPath(data.name(row)).name,
        caption=name,
        is_drawing=thumbnails.kind == "drawings",
        is_broken=source is None and thumbnails.kind != "text",
    )
