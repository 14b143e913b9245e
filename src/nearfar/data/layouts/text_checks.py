"""Check the texts of a table before anything is trained on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from nearfar.errors import NearfarError

# Networks read only a few hundred tokens. A text of this length is probably a mistake, such as a whole document in one
# cell, or an unclosed quote in a CSV file.
MAX_CHARACTERS = 100_000
_SURROGATE = re.compile("[\ud800-\udfff]")


def check_texts(path: Path, texts: Sequence[str], numbers: Sequence[int]) -> None:
    """Raise a NearfarError for the first text that is empty, too long or not UTF-8.

    Args:
        path: The file of the texts.
        texts: The texts. Surrogates stand for bytes that are not UTF-8.
        numbers: The number of each row in the file.
    """
    for number, text in zip(numbers, texts, strict=True):
        if not text.strip():
            raise NearfarError(f"{path}, row {number}: the text is empty: remove the row")
        if len(text) > MAX_CHARACTERS:
            raise NearfarError(
                f"{path}, row {number}: the text has {len(text):,} characters, but at most {MAX_CHARACTERS:,} are "
                "allowed: split it into passages, or add a missing closing quote"
            )
        if _SURROGATE.search(text):
            raise NearfarError(f"{path}, row {number}: the text has bytes that are not UTF-8: save the file as UTF-8")
