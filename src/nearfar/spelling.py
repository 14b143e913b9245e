"""Suggestions for misspelled names. Without torch, so that commands can use it and start at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_WORD = 100
CUTOFF = 0.6


def closest(word: str, known: Iterable[str], *, cutoff: float = CUTOFF) -> str | None:
    """Return the known name that `word` most likely means, or None.

    A name matches if its letters are similar, or if `word` is a whole part of it.

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
    """Return the end of a sentence about an unknown name: "; did you mean 'x'?", or "." if nothing is similar.

    >>> suggest("margn", ["margin"]), suggest("foo", ["fold"])
    ("; did you mean 'margin'?", '.')
    """
    match = closest(word, known)
    return "." if match is None else f"; did you mean {match!r}?"
