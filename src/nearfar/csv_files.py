r"""CSV files that people open in a spreadsheet, and that nearfar reads back unchanged.

Names of files and classes can contain anything. Three kinds of names are written as an apostrophe followed by the name
with its special characters escaped:

- names with line breaks, other control characters, or bytes that are not UTF-8;
- names that start with `=`, `+`, `-` or `@`, which a spreadsheet would run as a formula;
- names that look like an escaped cell: they start with an apostrophe and contain a backslash, or they start with
  apostrophes followed by `=`, `+`, `-` or `@`.

All other names, and numbers such as -1.5, are written unchanged. Examples of escaped names:

    a name                            its cell
    =cmd|calc                         '=cmd|calc
    "two" + line break + "lines"      'two\nlines
    "José" in Latin-1                 'Jos\xe9
    the escape character (U+001B)     '\u001b

The escapes are \n, \r, \t and \\, \xNN for a byte that is not UTF-8, and \uNNNN for any other character that cannot be
displayed. A spreadsheet shows a cell that starts with an apostrophe as text.
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
    r"""Return the text of a cell. `decode_cell` reverses it. Numbers and plain names stay unchanged; None becomes "".

    >>> [encode_cell(value) for value in ("a cat.png", -1.5, "=1+1", "two\nlines", "Jos\udce9")]
    ['a cat.png', '-1.5', "'=1+1", "'two\\nlines", "'Jos\\xe9"]
    """
    text = "" if value is None else str(value)
    is_ambiguous = text.startswith("'") and "\\" in text
    if not is_ambiguous and not _FORMULA.match(text) and not _SPECIAL.search(text):
        return text
    return "'" + "".join(_escape(char) for char in text)


def decode_cell(text: str) -> str:
    """Return the value of a cell that `encode_cell` wrote. Other cells, such as those a person wrote, stay unchanged.

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
    """Write rows to a CSV file atomically and return its path. `comment` is written first, on its own line."""
    with atomic(path) as draft, open(draft, "w", encoding="utf-8", newline="") as file:
        file.write(comment and f"{comment}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([encode_cell(value) for value in row] for row in rows)
    return path


def read_text(path: Path) -> str:
    """Return the text of a CSV file. Bytes that are not UTF-8 become surrogates, as in file names in Python."""
    if path.is_fifo():  # reading a pipe without a writer would never return
        raise NearfarError(f"{path}: is a pipe, not a file: save its content to a file first")
    try:
        return path.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise NearfarError(f"{path}: cannot be read ({error.strerror}): check the path") from error


def parse_csv(text: str, path: Path, *, delimiter: str = ",") -> list[list[str]]:
    """Return the rows of a CSV text. `path` is used only in error messages."""
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
