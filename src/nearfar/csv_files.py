r"""CSV files that people open in a spreadsheet, and that nearfar reads back unchanged.

Names of files and classes can contain anything: line breaks, bytes that are not UTF-8, or a leading "=" that a
spreadsheet would run as a formula. Such a cell is written as an apostrophe and an escaped text. All other cells are
written as they are:

    =cmd|calc            '=cmd|calc
    two\nlines           '\n is a line break, \r, \t, \\ likewise
    Jos\xe9 (latin-1)    'Jos\xe9: \xNN is a byte of a file name that is not UTF-8
    \x1b (escape)        '\u001b: \uNNNN is any other character that cannot be shown

A spreadsheet shows a cell that starts with an apostrophe as text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.files import atomic

# Control characters, line and paragraph separators, the byte order mark, and surrogates.
_SPECIAL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
_FORMULA = re.compile(r"(?!-?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?\Z)'*[=+\-@]", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|([nrt\\]))")
_LETTERS = {"\n": "n", "\r": "r", "\t": "t", "\\": "\\"}
_BY_LETTER = {letter: char for char, letter in _LETTERS.items()}


def encode_cell(value: object) -> str:
    r"""Return the text of a cell, which `decode_cell` reverses. Numbers and plain names are not changed. None is empty.

    >>> [encode_cell(value) for value in ("a cat.png", -1.5, "=1+1", "two\nlines", "Jos\udce9")]
    ['a cat.png', '-1.5', "'=1+1", "'two\\nlines", "'Jos\\xe9"]
    """
    text = "" if value is None else str(value)
    is_ambiguous = text.startswith("'") and "\\" in text
    if not is_ambiguous and not _FORMULA.match(text) and not _SPECIAL.search(text):
        return text
    return "'" + "".join(_escape(char) for char in text)


def decode_cell(text: str) -> str:
    """Return the value of a cell that `encode_cell` wrote, or that a person wrote without any escapes.

    >>> [decode_cell(text) for text in ("a cat.png", "'=1+1", "'t Hooft", "it's")]
    ['a cat.png', '=1+1', "'t Hooft", "it's"]
    """
    if not text.startswith("'"):
        return text
    value = _ESCAPE.sub(_unescape, text[1:])
    # An apostrophe that `encode_cell` did not write belongs to the name.
    return value if encode_cell(value) == text else text


def format_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV text."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows([encode_cell(value) for value in row] for row in rows)
    return out.getvalue()


def write_csv(path: Path, rows: Iterable[Iterable[object]], *, comment: str = "") -> Path:
    """Write rows to a CSV file atomically and return its path. `comment` is put before them, in a line of its own."""
    with atomic(path) as draft, open(draft, "w", encoding="utf-8", newline="") as file:
        file.write(comment and f"{comment}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([encode_cell(value) for value in row] for row in rows)
    return path


def read_text(path: Path) -> str:
    """Return the text of a CSV file. Bytes that are not UTF-8 become surrogates, as in the names of files."""
    try:
        return path.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise NearfarError(f"{path}: cannot be read ({error.strerror}): check the path") from error


def parse_csv(text: str, path: Path, *, delimiter: str = ",") -> list[list[str]]:
    """Return the rows of a CSV text. `path` is only for messages."""
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        hint = ": close the quotes of the cell, or split the text into passages" if "field limit" in str(error) else ""
        raise NearfarError(f"{path}: cannot be read as CSV ({error}){hint}") from error
    return [[decode_cell(cell) for cell in row] for row in table]


def _escape(char: str) -> str:
    if char in _LETTERS:
        return "\\" + _LETTERS[char]
    if not _SPECIAL.match(char):
        return char
    number = ord(char)
    return f"\\x{number - 0xDC00:02x}" if 0xDC80 <= number <= 0xDCFF else f"\\u{number:04x}"


def _unescape(match: re.Match[str]) -> str:
    byte, number, letter = match.groups()
    if letter:
        return _BY_LETTER[letter]
    return chr(0xDC00 + int(byte, 16)) if byte else chr(int(number, 16))
