"""What a search found as a page: each query beside its neighbors, in one file without scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from html import escape
from importlib.resources import files
from pathlib import Path

from PIL import ImageOps

from nearfar import __version__
from nearfar.data import Manifest, decode
from nearfar.data.layouts.paths import read_regular
from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.report.page import POLICY
from nearfar.report.sections import BADGES, legend, paragraphs
from nearfar.report.thumbnails import SIDE, Thumbnails, jpeg
from nearfar.search.index import Index, Part
from nearfar.search.query import Hit, Query
from nearfar.training import Run

STYLE = ".ask small { display: block; color: var(--soft); overflow-wrap: anywhere; }"
_NOTHING: tuple[str | None, bool] = (None, False)
Results = Sequence[tuple[Query, Sequence[Hit]]]


class Pictures:
    """Pictures of an index's samples, from the data they come from; `say` is told which cannot be shown, and why."""

    def __init__(self, run: Run, index: Index, say: Callable[[str], object]) -> None:
        self.run, self.index, self.say = run, index, say

    @cached_property
    def _opened(self) -> list[tuple[Part, Thumbnails]]:
        opened = []
        for part in self.index.parts:
            try:
                opened.append((part, Thumbnails(self._manifest(part))))
            except NearfarError as error:
                self.say(f"no pictures of {part.source or 'the run'}: {error}")
        return opened

    def _manifest(self, part: Part) -> Manifest:
        manifest = self.run.manifest(part.source or None)
        if manifest.fingerprint != part.fingerprint:
            raise NearfarError("it has changed since it was indexed")
        return manifest

    def of(self, id: int) -> tuple[str | None, bool]:
        """The data URI of a sample's picture, None where there is none, and whether it is a drawing."""
        for part, pictures in self._opened:
            if part.first <= id < part.first + part.rows:
                return pictures.large(id - part.first), pictures.look == "drawings"
        return _NOTHING


def write_page(path: Path, results: Results, run: Run, index: Index, say: Callable[[str], object]) -> Path:
    """Write the page whole or not at all, and give its path.

    Where a query is a sample of the index, a frame says whether a neighbor is of its class.
    """
    pictures = Pictures(run, index, say)
    known = any(query.id is not None for query, _ in results) and index.labels is not None
    lead = f"Searched {len(index):,} samples ({index.kind}) by cosine distance, the nearest first."
    style = files("nearfar.report").joinpath("style.css").read_text(encoding="utf-8")
    title = f"Search in {run.path.name}"
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title><style>
{style}{STYLE}</style></head><body>
<header><h1>{escape(title)}</h1>{paragraphs(lead, "lead")}</header>
<main><section>{legend() if known else ""}
{"".join(_asked(query, hits, index, pictures) for query, hits in results)}
</section></main>
<footer><p>Written by nearfar {__version__}.</p></footer>
</body></html>
"""
    with atomic(path) as draft:
        # names of files may hold bytes that are no text
        draft.write_text(text, encoding="utf-8", errors="replace")
    return path


def _asked(query: Query, hits: Sequence[Hit], index: Index, pictures: Pictures) -> str:
    label: str | None = None
    words, shown = query.words, _NOTHING
    if query.id is not None:
        row = int(index.rows_of([query.id])[0])
        label, words, shown = index.label_of(row), index.names[row], pictures.of(query.id)
    elif query.file is not None:
        picture = decode(read_regular(query.file), str(query.file), draft=2 * SIDE)
        shown = jpeg(ImageOps.fit(picture, (SIDE, SIDE))), False
    items = []
    for hit in hits:
        kind = "" if label is None else "right" if hit.label == label else "wrong"
        tip = escape(f"{hit.rank}. id {hit.id}, {hit.name}, distance {hit.distance:.4f}", quote=True)
        figure = _figure(*pictures.of(hit.id), hit.label or hit.name, f"{hit.distance:.3f}", hit.name, BADGES.get(kind))
        items.append(f'<li class="{kind}" title="{tip}"><figure>{figure}</figure></li>')
    figure = _figure(*shown, label or "query", words, words, None)
    return f'<div class="ask"><figure class="query">{figure}</figure><ol>{"".join(items)}</ol></div>'


def _figure(source: str | None, drawing: bool, title: str, small: str, name: str, badge: str | None) -> str:
    mark = f'<span class="badge">{badge}</span>' if badge else ""
    if source is None:
        inside = f'<span class="words">{escape(name)}</span>'
    else:
        inside = f'<img src="{source}" alt="{escape(name, quote=True)}" loading="lazy">'
    shot = f'<span class="shot{" drawing" if drawing else ""}">{inside}{mark}</span>'
    return f"{shot}<figcaption>{escape(title)}<small>{escape(small)}</small></figcaption>"
