"""Format numbers, names and settings as text."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any


def duration(seconds: float) -> str:
    """Format a number of seconds as seconds, minutes or hours.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def counted(count: int, word: str, plural: str | None = None) -> str:
    """Format a count with its noun. The noun is plural unless the count is 1. By default, the plural ends in s.

    >>> counted(1, "step"), counted(1200, "step"), counted(2, "class", "classes")
    ('1 step', '1,200 steps', '2 classes')
    """
    return f"{count:,} {word if count == 1 else plural or f'{word}s'}"


def memory_size(count: int) -> str:
    """Format a number of bytes in MB (at least 1) or GB, in powers of 1024.

    >>> memory_size(100), memory_size(500 * 2**20), memory_size(3 * 2**29)
    ('1 MB', '500 MB', '1.5 GB')
    """
    if count < 2**30:
        return f"{max(1, round(count / 2**20)):,} MB"
    return f"{count / 2**30:.1f} GB"


def disk_size(count: float) -> str:
    """Format a number of bytes in bytes, kB, MB or GB, in powers of 1000.

    >>> disk_size(80), disk_size(1_600_000), disk_size(52e6), disk_size(0.13e9), disk_size(12.5e9)
    ('80 bytes', '1.6 MB', '52 MB', '130 MB', '12.5 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            has_fraction = unit == "GB" or count < 10 * size
            return f"{count / size:.{int(has_fraction)}f} {unit}"
    return f"{count:.0f} bytes"


def clean_text(text: str) -> str:
    r"""Return a name or message as one line that is safe to print on a terminal.

    Names of files can contain terminal control codes, line breaks, and bytes that are not UTF-8. Such characters are
    replaced with their escapes.

    >>> print(clean_text("a\x1b[31m\n Jos\udce9"))
    a\x1b[31m\n Jos\udce9
    """
    return "".join(char if _is_safe(char) else repr(char)[1:-1] for char in text)


def _is_safe(char: str) -> bool:
    # `isprintable` is false for all spaces other than " ", and for the zero-width joiners that words and emoji contain.
    return char.isprintable() or char in "\u200c\u200d" or unicodedata.category(char) == "Zs"


def slug(text: str) -> str:
    """Convert a text to a folder name of lower-case letters, digits and hyphens.

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
    """Flatten nested mappings into one dict with dotted keys. An empty mapping counts as a value.

    >>> flatten({"loss": {"name": "supcon", "scale": 16.0}, "seed": 0, "pacing": {}})
    {'loss.name': 'supcon', 'loss.scale': 16.0, 'seed': 0, 'pacing': {}}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        is_branch = isinstance(value, Mapping) and len(value) > 0
        flat |= flatten(value, f"{prefix}{key}.") if is_branch else {f"{prefix}{key}": value}
    return flat


def settings_lines(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return settings as pairs of a dotted key and a value, both as text that `--set` accepts.

    >>> settings_lines({"loss": {"name": "supcon", "scale": 16.0}, "tags": []})
    [('loss.name', 'supcon'), ('loss.scale', '16.0'), ('tags', '[]')]
    """
    return [
        (key, value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))
        for key, value in flatten(settings).items()
    ]
