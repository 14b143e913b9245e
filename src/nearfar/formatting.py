"""Numbers, names and settings as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def counted(count: int, word: str) -> str:
    """Return a count with its noun, in the plural unless it is 1.

    >>> counted(1, "step"), counted(1200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def slug(text: str) -> str:
    """Return a text as a folder name.

    >>> slug("My Images (2)-mpa-ap")
    'my-images-2-mpa-ap'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "run"


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table. All columns but the first are aligned to the right."""
    head = list(header)
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *[list(row) for row in rows]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def metric_title(name: str) -> str:
    """Return a metric's name as papers write it.

    >>> [metric_title(name) for name in ("recall@1", "map@r", "r-precision", "nmi")]
    ['Recall@1', 'MAP@R', 'R-precision', 'NMI']
    """
    word, at, k = name.partition("@")
    is_word = word.startswith(("recall", "precision", "r-", "sil"))
    return (word.capitalize() if is_word else word.upper()) + at + k.upper()


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their dotted keys; an empty mapping is a leaf.

    >>> flatten({"loss": {"name": "supcon", "scale": 16.0}, "seed": 0, "pacing": {}})
    {'loss.name': 'supcon', 'loss.scale': 16.0, 'seed': 0, 'pacing': {}}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        is_branch = isinstance(value, Mapping) and len(value) > 0
        flat |= flatten(value, f"{prefix}{key}.") if is_branch else {f"{prefix}{key}": value}
    return flat


def settings_lines(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return settings as pairs of a dotted key and a value, both in the form that `--set` takes.

    >>> settings_lines({"loss": {"name": "supcon", "scale": 16.0}, "tags": []})
    [('loss.name', 'supcon'), ('loss.scale', '16.0'), ('tags', '[]')]
    """
    return [
        (key, value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))
        for key, value in flatten(settings).items()
    ]
