"""The page of the demo: the table, and queries with what was found, in one file without anything from outside."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from PIL import Image

from nearfar.data import Manifest
from nearfar.data.atomic import atomic
from nearfar.metrics import Scores

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --page: #fbfaf7; --line: #d9d5cc; --right: #0b7a55;
  --wrong: #c2410c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e6e1; --page: #16181b; --line: #3a3d42; --right: #34c896; --wrong: #fb923c; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; }
p { max-width: 44rem; }
table { border-collapse: collapse; margin: 1rem 0 2rem; }
th, td { padding: .35rem 1rem .35rem 0; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
tr.best td { font-weight: 600; }
.row { display: flex; flex-wrap: wrap; gap: .5rem; align-items: flex-start; padding: .8rem 0;
  border-top: 1px solid var(--line); }
figure { margin: 0; width: 5.4rem; text-align: center; font-size: .75rem; line-height: 1.2; overflow-wrap: anywhere; }
figure img { width: 4.6rem; height: 4.6rem; border: 3px solid var(--line); border-radius: .5rem; background: #fff;
  display: block; margin: 0 auto .25rem; }
.right img { border-color: var(--right); }
.wrong img { border-color: var(--wrong); border-style: dashed; }
.query { margin-right: 1rem; font-weight: 600; }
"""


@dataclass(frozen=True)
class Found:
    """A query and its neighbours, the nearest first: rows of the data, their classes, and whether they are right."""

    row: int
    name: str
    rows: list[int]
    names: list[str]
    right: list[bool]


def write_page(path: Path, data: Manifest, found: list[Found], scores: Mapping[str, Scores]) -> Path:
    """Write the page at once or not at all, and give its path."""
    rows = "\n".join(_row(data, each) for each in found)
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>nearfar demo</title><style>{STYLE}</style></head><body>
<h1>Drawings of things it was never shown</h1>
<p>A small net was trained from scratch on other kinds of drawings. Below, each query (left) is compared with all
{len(data):,} drawings of {len(data.classes)} kinds that training never saw; the nearest come first. A solid green
frame is the same kind as the query, a dashed orange one is not.</p>
{_table(scores)}
{rows}
<p>Drawings: Quick, Draw!, made available by Google, Inc. under CC BY 4.0.</p>
</body></html>
"""
    with atomic(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


def _table(scores: Mapping[str, Scores]) -> str:
    names = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r")
    best = max(scores, key=lambda name: scores[name]["map@r"])
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    body = "".join(
        f'<tr class="{"best" if name == best else ""}"><td>{escape(name)}</td>'
        + "".join(f"<td>{100 * each[metric]:.1f}</td>" for metric in names)
        + "</tr>"
        for name, each in scores.items()
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _row(data: Manifest, found: Found) -> str:
    parts = [_figure(data, found.row, found.name, "query")]
    for row, name, right in zip(found.rows, found.names, found.right, strict=True):
        parts.append(_figure(data, row, name, "right" if right else "wrong"))
    return f'<div class="row">{"".join(parts)}</div>'


def _figure(data: Manifest, row: int, name: str, kind: str) -> str:
    assert data.pixels is not None
    image = Image.fromarray(255 - data.pixels[row])  # ink on paper
    buffer = io.BytesIO()
    image.resize((84, 84), Image.Resampling.LANCZOS).save(buffer, format="PNG")
    source = base64.b64encode(buffer.getvalue()).decode()
    alt = escape(f"{name} ({kind})", quote=True)
    return f'<figure class="{kind}"><img src="data:image/png;base64,{source}" alt="{alt}">{escape(name)}</figure>'
