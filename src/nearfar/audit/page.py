"""The page of an audit: suspicious samples beside their neighbors and their class, in one file without any other."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from nearfar.audit.audit import Audit
from nearfar.audit.table import check_same_rows
from nearfar.data.manifest import Ints, Manifest
from nearfar.files import atomic
from nearfar.report.thumbnails import Thumbnails

LEAST_SHOWN = 10
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5c6570; --page: #fbfaf7; --card: #fff; --line: #d9d5cc;
  --own: #c2410c; --other: #0b7a55; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e6e1; --soft: #a3a9b1; --page: #16181b; --card: #1e2125; --line: #3a3d42; --own: #fb923c;
    --other: #34c896; }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto;
  max-width: 72rem; padding: 1.5rem 1rem 6rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; }
p { margin: .3rem 0; max-width: 48rem; }
.soft { color: var(--soft); font-size: .85rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; padding: 1rem; margin: 1rem 0;
  display: grid; grid-template-columns: 9rem 1fr; gap: .4rem 1.2rem; }
@media (max-width: 40rem) { article { grid-template-columns: 1fr; } }
.suspect img { width: 8.4rem; height: 8.4rem; }
h2 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }
h3 { font-size: .8rem; font-weight: 600; color: var(--soft); margin: .6rem 0 .2rem; }
.own { color: var(--own); } .other { color: var(--other); }
.strip { display: flex; flex-wrap: wrap; gap: .5rem; }
figure { margin: 0; width: 5.6rem; font-size: .72rem; line-height: 1.25; text-align: center; overflow-wrap: anywhere; }
.suspect { width: auto; text-align: left; }
img, .blank { width: 5.2rem; height: 5.2rem; object-fit: contain; border: 3px solid var(--line); border-radius: .5rem;
  background: #fff; display: block; margin: 0 auto .2rem; }
.suspect img, .suspect .blank { margin: 0 0 .2rem; border-color: var(--own); border-style: dashed; }
.blank { display: grid; place-items: center; color: #5c6570; font-size: .7rem; padding: .2rem; overflow: hidden; }
figure.own img, figure.own .blank { border-color: var(--own); border-style: dashed; }
figure.other img, figure.other .blank { border-color: var(--other); }
fieldset { border: 0; padding: 0; margin: .7rem 0 0; display: flex; flex-wrap: wrap; gap: .4rem; }
label { border: 1px solid var(--line); border-radius: 2rem; padding: .15rem .8rem; cursor: pointer; }
label:has(:checked) { border-color: var(--ink); font-weight: 600; }
label:focus-within { outline: 2px solid var(--other); outline-offset: 2px; }
#bar[hidden] { display: none; }
#bar { position: fixed; left: 0; right: 0; bottom: 0; padding: .7rem 1rem; background: var(--card);
  border-top: 1px solid var(--line); display: flex; gap: 1rem; justify-content: center; align-items: center; }
button { font: inherit; padding: .3rem 1rem; border: 1px solid var(--ink); border-radius: 2rem; background: var(--ink);
  color: var(--page); cursor: pointer; }
"""

SCRIPT = """
const cell = text => '"' + text.replaceAll('"', '""') + '"';
const decided = () => [...document.querySelectorAll('article input:checked')];
const count = () => { document.getElementById('count').textContent = decided().length + ' decided'; };
document.addEventListener('change', count);
document.getElementById('bar').hidden = false;
document.getElementById('save').addEventListener('click', () => {
  const lines = ['row,path,label,suggested,decision'];
  for (const input of decided()) {
    const data = input.closest('article').dataset;
    lines.push([data.row, data.path, data.label, data.suggested, input.value].map(cell).join(','));
  }
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([lines.join('\\n') + '\\n'], {type: 'text/csv'}));
  link.download = 'decisions.csv';
  link.click();
});
count();
"""


def write_page(found: Audit, manifest: Manifest, path: Path, *, shown: int = 100, beside: int = 6) -> Path:
    """Write the page of the most suspicious samples, at once or not at all, and give its path.

    It shows all for which another label is suggested, and at least ten, but not more than `shown`.
    Each has its label and suggestion, why, its `beside` nearest neighbors, and as many others of its class (the least
    suspicious). Pictures are in the file; samples without pictures show their names. It reads without
    scripts; with them a button downloads the decisions as decisions.csv, for `apply_decisions`.
    """
    check_same_rows(found, manifest)
    pictures = Thumbnails(manifest)
    order = found.order()
    doubted = int((found.suggested != found.labels).sum())
    first = order[: min(shown, max(doubted, LEAST_SHOWN))]
    cards = [_card(found, manifest, pictures, row, order, beside) for row in first.tolist()]
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Label audit: {_text(manifest.source or "data")}</title><style>{STYLE}</style></head><body>
<h1>Labels to check: {_text(manifest.source or "data")}</h1>
<p>The {len(cards):,} most suspicious of {len(manifest):,} samples in {len(manifest.classes):,} classes, the worst
first; for {doubted:,} in all neighbors and class speak for another label. A dashed orange frame is the label it has, a
solid green one the label suggested.</p>
<p class="soft">Where few labels are wrong these are unusual samples that are labeled well: look at each. Nothing has
been changed. Choose below, save decisions.csv, and apply it.</p>
<main>
{"".join(cards)}
</main>
<div id="bar" hidden><span id="count" class="soft"></span><button id="save" type="button">Save decisions.csv</button>
</div>
<script>{SCRIPT}</script>
</body></html>
"""
    with atomic(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="replace")
    return path


def _card(found: Audit, manifest: Manifest, pictures: Thumbnails, row: int, order: Ints, beside: int) -> str:
    label, suggested = int(manifest.labels[row]), int(found.suggested[row])
    own, other = manifest.classes[label], manifest.classes[suggested]
    mates = order[(manifest.labels[order] == label) & (order != row)][::-1][:beside]
    near = found.neighbors[row, :beside]

    def strip(rows: Ints) -> str:
        return "".join(_figure(manifest, pictures, i, label, suggested) for i in rows.tolist())

    change = f' &rarr; <span class="other">{_text(other)}</span>' if suggested != label else ""
    relabel = [("relabel", f"relabel as {other}")] if suggested != label else []
    choices = [("keep", "keep"), *relabel, ("remove", "remove")]
    buttons = "".join(
        f'<label><input type="radio" name="d{row}" value="{value}"> {_text(words)}</label>' for value, words in choices
    )
    values = {"row": str(row), "path": manifest.name(row), "label": own, "suggested": other}
    data = " ".join(f'data-{key}="{_text(value)}"' for key, value in values.items())
    rest = f"<h3>Others labeled {_text(own)}</h3><div class='strip'>{strip(mates)}</div>" if len(mates) else ""
    return f"""<article {data}>
<figure class="suspect">{_image(pictures, row, manifest.name(row), own)}<span class="soft">{_text(manifest.name(row))}
</span></figure>
<div><h2><span class="own">{_text(own)}</span>{change}</h2>
<p class="soft">{_text(found.reason(row))}</p>
<h3>Nearest</h3><div class="strip">{strip(np.asarray(near))}</div>
{rest}
<fieldset><legend class="soft">Decision</legend>{buttons}</fieldset></div>
</article>
"""


def _figure(manifest: Manifest, pictures: Thumbnails, row: int, label: int, suggested: int) -> str:
    here = int(manifest.labels[row])
    kind = "own" if here == label else "other" if here == suggested else ""
    name = manifest.classes[here]
    return f'<figure class="{kind}">{_image(pictures, row, manifest.name(row), name)}{_text(name)}</figure>'


def _image(pictures: Thumbnails, row: int, name: str, label: str) -> str:
    uri = pictures.large(row)
    if uri is None:
        return f'<span class="blank">{_text(name)}</span>'
    return f'<img loading="lazy" src="{uri}" alt="{_text(f"{name}, labeled {label}")}">'


def _text(words: str) -> str:
    return escape(words, quote=True)
