"""CSV files: any name survives a round trip, and no cell is a formula, a line break or invalid UTF-8."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nearfar.csv_files import decode_cell, encode_cell, format_csv, parse_csv, read_text, write_csv
from nearfar.errors import NearfarError

CHARACTERS = st.characters(blacklist_categories=())
FILE_NAMES = st.binary(max_size=30).map(lambda data: os.fsdecode(data.replace(b"\0", b"x")))
ODD = st.text(st.sampled_from("=+-@'\"\\,;\r\n\t\0 nrtxu0e9\x1b\x7f\x85\u2028\ufeff\udce9\udc00\ud800ö"), max_size=12)
NAMES = st.one_of(st.text(CHARACTERS, max_size=30), FILE_NAMES, ODD)


@settings(max_examples=1000, deadline=None)
@given(NAMES)
@example("'=x")
@example("''=x")
@example("'\\n")
@example("\\udce9")
@example("=\n'\\x41")
def test_any_name_survives(name: str) -> None:
    cell = encode_cell(name)
    assert decode_cell(cell) == name
    cell.encode("utf-8")
    assert not set(cell) & set("\r\n\t\0\x1b")
    if cell[:1] and cell[:1] in "=+-@":
        float(cell)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(NAMES, min_size=2, max_size=3), min_size=1, max_size=4))
def test_tables_survive(rows: list[list[str]]) -> None:
    text = format_csv(rows)
    assert parse_csv(text, Path("table.csv")) == rows
    assert len(text.splitlines()) == len(rows)
    # Other programs see the same number of rows and cells.
    assert [len(row) for row in csv.reader(io.StringIO(text))] == [len(row) for row in rows]


def test_files_survive(tmp_path: Path) -> None:
    rows = [["path", "label"], ["caf\udce9\r.png", '=cmd|"calc"'], ["ö,ö", ""]]
    path = write_csv(tmp_path / "table.csv", rows, comment="# about")
    assert path.read_bytes().count(b"\r") == 0
    first, _, rest = read_text(path).partition("\n")
    assert first == "# about"
    assert parse_csv(rest, path) == rows


@pytest.mark.parametrize(
    "name", ["a.png", "'t Hooft", "-1.5", "+", "a\\b", "it's", "a=b", " x ", "\u3000", "🏳️‍🌈", "-12", "1e-5"]
)
def test_plain_names_are_written_as_they_are(name: str) -> None:
    assert encode_cell(name) == (name if name != "+" else "'+")


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match=r"gone\.csv: cannot be read \(No such file"):
        read_text(tmp_path / "gone.csv")
    with pytest.raises(NearfarError, match=r"big\.csv: cannot be read as CSV"):
        parse_csv("x" * 200_000, Path("big.csv"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_instead_of_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(NearfarError, match=r"pipe\.csv: is a pipe, not a file"):
        read_text(tmp_path / "pipe.csv")
