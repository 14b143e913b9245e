"""The parts of the page that are text, tables and rows of pictures; every function gives HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import PurePosixPath
from typing import Any

from nearfar.data.manifest import Manifest
from nearfar.metrics import Scores
from nearfar.report.examples import Confusion, Found
from nearfar.report.thumbnails import Thumbnails

RIGHT = '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M4 8.5l3 3l5-6.5"/></svg>'
WRONG = '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M4.5 4.5l7 7m0-7l-7 7"/></svg>'
HEADLINE, COLUMNS = ("map@r", "nmi", "ami", "f1"), 7
BADGES = {"right": RIGHT, "wrong": WRONG}


def metric_title(name: str) -> str:
    """How papers write a metric.

    >>> [metric_title(name) for name in ("recall@1", "map@r", "r-precision", "nmi")]
    ['Recall@1', 'MAP@R', 'R-precision', 'NMI']
    """
    word, at, k = name.partition("@")
    return (
        (word.capitalize() if word.startswith(("recall", "precision", "r-", "sil")) else word.upper()) + at + k.upper()
    )


def paragraphs(text: str, kind: str = "") -> str:
    """Plain text, an empty line between paragraphs."""
    start = f'<p class="{kind}">' if kind else "<p>"
    return "".join(f"{start}{escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip())


def score_table(scores: Mapping[str, Scores]) -> str:
    """One row a name, the metrics that all have; the row with the best MAP@R (or first metric) is bold.

    Past seven columns only Recall@k, MAP@R, NMI, AMI and F1 are in the table and the others in one that is folded.
    """
    first = next(iter(scores.values()))
    metrics = [name for name in first.values if all(name in each.values for each in scores.values())]
    if not metrics:
        raise ValueError(f"scores must have a metric in common, got {', '.join(scores)} without one")
    by = "map@r" if "map@r" in metrics else metrics[0]
    best = max(scores, key=lambda name: scores[name][by])
    head = [name for name in metrics if name.startswith("recall@") or name in HEADLINE]
    if len(metrics) <= COLUMNS or not head:
        head = metrics
    bold = f" The row with the best {escape(metric_title(by))} is bold." if len(scores) > 1 else ""
    table = _table(scores, head, best, f"Per cent. {_counts(scores)}{bold}")
    others = [name for name in metrics if name not in head]
    if not others:
        return table
    return f"{table}<details><summary>More metrics</summary>{_table(scores, others, best, 'Per cent.')}</details>"


def legend() -> str:
    """What the frames mean."""
    words = {"right": "same class as the query: solid frame, tick", "wrong": "another class: dashed frame, cross"}
    items = "".join(
        f'<li class="{kind}"><span class="swatch {kind}"><span class="badge">{BADGES[kind]}</span></span>{text}</li>'
        for kind, text in words.items()
    )
    return f'<ul class="marks">{items}</ul>'


def found_rows(data: Manifest, found: Iterable[Found], pictures: Thumbnails) -> str:
    """A row for each query: the query, then its neighbors, the nearest first."""
    return "".join(_found(data, each, pictures) for each in found)


def confusion_cards(data: Manifest, confused: Sequence[Confusion], pictures: Thumbnails) -> str:
    """A card for each pair of classes, with a query and what it was taken for."""
    cards = []
    for each in confused:
        shots = "".join(
            f"<figure>{_shot(data, row, pictures, '')}<figcaption>{_breakable(_class(data, row))}</figcaption></figure>"
            for row in each.rows
        )
        text = f"<strong>{100 * each.count / each.queries:.0f}%</strong>{each.count:,} of {each.queries:,} queries"
        cards.append(f'<li class="pair">{shots}<p>{text}</p></li>')
    return f'<ul class="pairs">{"".join(cards)}</ul>'


def settings_table(settings: Mapping[str, Any]) -> str:
    """Nested settings as lines `a.b.c  value`, the form in which the command takes them."""
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(value)}</td></tr>' for key, value in flat(settings)
    )
    return f'<div class="wide" tabindex="0"><table class="settings"><tbody>{rows}</tbody></table></div>'


def flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """
    >>> list(flat({"loss": {"name": "supcon", "scale": 16.0}, "seed": 0, "tags": []}))
    [('loss.name', 'supcon'), ('loss.scale', '16.0'), ('seed', '0'), ('tags', '[]')]
    """
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{key}.")
        elif isinstance(value, str):
            yield f"{before}{key}", value
        else:
            yield f"{before}{key}", json.dumps(value, default=str, ensure_ascii=False)


def _table(scores: Mapping[str, Scores], metrics: Sequence[str], best: str, caption: str) -> str:
    head = "".join(f'<th scope="col">{escape(metric_title(name))}</th>' for name in metrics)
    body = "".join(
        f'<tr class="{"best" if name == best and len(scores) > 1 else ""}">'
        f'<th scope="row">{escape(name)}</th>{"".join(_cell(each, metric) for metric in metrics)}</tr>'
        for name, each in scores.items()
    )
    table = f'<thead><tr><th scope="col">Embedding</th>{head}</tr></thead><tbody>{body}</tbody>'
    return f'<div class="wide" tabindex="0"><table><caption>{caption}</caption>{table}</table></div>'


def _cell(scores: Scores, metric: str) -> str:
    value = 100 * scores[metric]
    spread = f" ± {100 * scores.spread[metric]:.1f}" if metric in scores.spread else ""
    share = min(max(value, 0.0), 100.0)
    return f'<td class="score" style="--share:{share:.1f}%">{value:.1f}{spread}</td>'


def _counts(scores: Mapping[str, Scores]) -> str:
    said = {
        name: f"{each.queries:,} queries"
        + (f" ({each.dropped:,} without a positive left out)" if each.dropped else "")
        + f", gallery of {each.gallery:,}, {each.distance}"
        + (", approximate" if each.approximation is not None else "")
        for name, each in scores.items()
    }
    if len(set(said.values())) == 1:
        return escape(next(iter(said.values()))) + "."
    return escape("; ".join(f"{name}: {text}" for name, text in said.items())) + "."


def _found(data: Manifest, found: Found, pictures: Thumbnails) -> str:
    first = "no other of its class" if found.first is None else f"first right: #{found.first:,}"
    query = (
        f'<figure class="query">{_shot(data, found.row, pictures, "query")}'
        f"<figcaption>{_breakable(found.name)}<small>{first}</small></figcaption></figure>"
    )
    items = []
    for place, (row, name, right, cosine) in enumerate(
        zip(found.rows, found.names, found.right, found.similarities, strict=True), start=1
    ):
        kind = "right" if right else "wrong"
        shot = _shot(data, row, pictures, f"neighbor {place}, {kind}", BADGES[kind])
        tip = escape(f"{place}. {data.name(row)}, cosine {cosine:.3f}", quote=True)
        items.append(
            f'<li class="{kind}" title="{tip}"><figure>{shot}<figcaption>{_breakable(name)}</figcaption></figure></li>'
        )
    return f'<div class="ask">{query}<ol>{"".join(items)}</ol></div>'


def _shot(data: Manifest, row: int, pictures: Thumbnails, role: str, badge: str = "") -> str:
    source = pictures.large(row)
    mark = f'<span class="badge">{badge}</span>' if badge else ""
    if source is not None:
        alt = escape(f"{_class(data, row)}{f' ({role})' if role else ''}", quote=True)
        kind = "shot drawing" if pictures.look == "drawings" else "shot"
        return f'<span class="{kind}"><img src="{source}" alt="{alt}" loading="lazy">{mark}</span>'
    if pictures.look == "words":
        words = f'<span class="words">{_breakable(_file_name(data.name(row)))}</span>'
    else:
        words = '<span class="words gone">cannot be read</span>'
    return f'<span class="shot">{words}{mark}</span>'


def _class(data: Manifest, row: int) -> str:
    name: str = data.classes[data.labels[row]]
    return name


def _breakable(name: str) -> str:
    """Escaped, with places where a long name without spaces may break.

    >>> _breakable("101.White_Pelican")
    '101.<wbr>White_<wbr>Pelican'
    """
    return re.sub(r"(?<=[_./-])(?=[^_./-])", "<wbr>", escape(name))


def _file_name(name: str) -> str:
    """The last part of a path, without its folders.

    >>> _file_name("images/007.Auklet/auklet_1.jpg")
    'auklet_1.jpg'
    """
    return PurePosixPath(name).name
