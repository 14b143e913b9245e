"""The page of search results: each query next to its nearest neighbors, in a self-contained file without scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from PIL import ImageOps

from nearfar.data import Manifest, decode_image
from nearfar.data.layouts.paths import read_regular
from nearfar.errors import NearfarError
from nearfar.model import Model
from nearfar.report.html import write_html
from nearfar.report.thumbnails import SIDE, Thumbnails, encode_jpeg
from nearfar.report.tiles import Tile
from nearfar.search.index import Index
from nearfar.search.part import Part
from nearfar.search.query import Hit, SearchQuery

_NO_IMAGE: tuple[str | None, bool] = (None, False)
Results = Sequence[tuple[SearchQuery, Sequence[Hit]]]


class SampleImages:
    """Thumbnails of the samples of an index, read from the datasets that the samples come from.

    `say` is called with a message for each dataset that cannot be opened.
    """

    def __init__(self, run: Model, index: Index, say: Callable[[str], object]) -> None:
        self.run, self.index, self.say = run, index, say

    @cached_property
    def _thumbnails(self) -> list[tuple[Part, Thumbnails]]:
        thumbnails = []
        for part in self.index.parts:
            try:
                thumbnails.append((part, Thumbnails(self._manifest(part))))
            except NearfarError as error:
                self.say(f"cannot show the images of {part.source or 'the data of the run'}: {error}")
        return thumbnails

    def _manifest(self, part: Part) -> Manifest:
        manifest = self.run.manifest(part.source or None)
        if manifest.fingerprint != part.fingerprint:
            raise NearfarError("the data has changed since it was indexed")
        return manifest

    def encode(self, id: int) -> tuple[str | None, bool]:
        """Return the data URI of a sample's image (None if there is no image), and whether the image is a drawing."""
        for part, thumbnails in self._thumbnails:
            if part.first <= id < part.first + part.rows:
                return thumbnails.encode_large(id - part.first), thumbnails.kind == "drawings"
        return _NO_IMAGE


def write_page(path: Path, results: Results, run: Model, index: Index, say: Callable[[str], object]) -> Path:
    """Write the page atomically and return its path.

    If a query is a sample of the index, the frame of each neighbor shows whether it has the class of the query.
    """
    images = SampleImages(run, index, say)
    return write_html(
        path,
        "search/templates/page.html",
        title=f"Search in {run.path.name}",
        samples=len(index),
        kind=index.kind,
        has_labels=any(query.id is not None for query, _ in results) and index.labels is not None,
        rows=[_make_row(query, hits, index, images) for query, hits in results],
    )


def _make_row(query: SearchQuery, hits: Sequence[Hit], index: Index, images: SampleImages) -> tuple[Tile, list[Tile]]:
    label: str | None = None
    name, shown = query.text, _NO_IMAGE
    if query.id is not None:
        row = int(index.rows_of([query.id])[0])
        label, name, shown = index.label_of(row), index.names[row], images.encode(query.id)
    elif query.file is not None:
        image = decode_image(read_regular(query.file), str(query.file), draft=2 * SIDE)
        shown = encode_jpeg(ImageOps.fit(image, (SIDE, SIDE))), False
    source, is_drawing = shown
    tiles = []
    for hit in hits:
        hit_source, hit_is_drawing = images.encode(hit.id)
        tiles.append(
            Tile(
                source=hit_source,
                alt=hit.name,
                words=hit.name,
                caption=hit.label or hit.name,
                note=f"{hit.distance:.3f}" if hit.same is None else f"{hit.distance:.3f}, same: {hit.same:.0%}",
                kind="" if label is None else "right" if hit.label == label else "wrong",
                tip=f"{hit.rank}. id {hit.id}, {hit.name}, distance {hit.distance:.4f}",
                is_drawing=hit_is_drawing,
            )
        )
    return Tile(source, name, name, label or "query", note=name, is_drawing=is_drawing), tiles
