"""Numbers as a person says them, and names of folders."""

from __future__ import annotations

import re
from collections.abc import Iterable


def duration(seconds: float) -> str:
    """As a person says it.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def counted(count: int, word: str) -> str:
    """
    >>> counted(1, "step"), counted(1200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def slug(text: str) -> str:
    """A name for a folder.

    >>> slug("My Photos (2)-mpa-ap")
    'my-photos-2-mpa-ap'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "run"


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right."""
    head = list(header)
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *[list(row) for row in rows]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
