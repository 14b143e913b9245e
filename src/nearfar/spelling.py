"""Suggest corrections for misspelled names. This module does not import torch, so commands that use it start fast."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_WORD = 100
CUTOFF = 0.6


def closest(word: str, known: Iterable[str], *, cutoff: float = CUTOFF) -> str | None:
    """Return the known name that `word` most likely means, or None.

    A name matches if its spelling is similar. If no name is similar, a name matches if one of its parts, separated by
    hyphens, underscores or spaces, equals `word` and has at least three letters.

    >>> closest("tripelt", ["triplet", "margin"]), closest("anchor", ["margin", "proxy-anchor"])
    ('triplet', 'proxy-anchor')
    >>> closest("dropout", ["device", "threads", "autocast"]) is None
    True
    """
    if len(word) > LONGEST_WORD:  # too long to be a typo, and difflib takes quadratic time
        return None
    names = {name.lower(): name for name in map(str, known)}
    matches = get_close_matches(word.lower(), names, n=1, cutoff=cutoff)
    if not matches:
        parts = [name for name in names if len(word) > 2 and word.lower() in re.split(r"[-_ ]", name)]
        matches = sorted(parts, key=len)[:1]
    return names[matches[0]] if matches else None


def suggest(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: "; did you mean 'x'?", or "." if no name is similar.

    >>> suggest("margn", ["margin"]), suggest("foo", ["fold"])
    ("; did you mean 'margin'?", '.')
    """
    match = closest(word, known)
    return "." if match is None else f"; did you mean {match!r}?"
