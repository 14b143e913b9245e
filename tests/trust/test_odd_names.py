"""Folders and files with any names: train, index, search, audit, decide, apply and open the result again."""

from __future__ import annotations

import csv
import io
import os
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from nearfar.audit.csv_table import write_csv
from nearfar.audit.ranking import audit
from nearfar.cli import main
from nearfar.csv_files import decode_cell
from nearfar.data import open_data
from nearfar.serve.decision_file import DecisionFile

NAMES = (
    b"caf\xe9",
    b"=cmd|'calc'!A0",
    b"carriage\rreturn",
    b"two\nlines",
    b"\x1b[31mred\x07",
    b"@sum",
    b"'-x",
    b'"q", ,',
)
SMALL = ("model.backbone=small-conv", "model.pretrained=false", "images.crop=32", "steps=2", "batches.size=8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write one class for each name, with four images whose names end in the name of the class."""
    folder = tmp_path_factory.mktemp("odd") / os.fsdecode(b"dat\xe9\x1b[2J")
    rng = np.random.default_rng(0)
    for name in NAMES:
        kind = rng.integers(0, 2, (32, 32, 3)) * 180
        for i in range(4):
            path = folder / os.fsdecode(name) / os.fsdecode(b"%d%s.png" % (i, name))
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.clip(kind + rng.normal(0, 15, kind.shape), 0, 255).astype(np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    out = folder.parent / "run"
    settings = [word for setting in (*SMALL, "data.workers=0", "threads=1") for word in ("--set", setting)]
    nearfar("train", folder, "--recipe", "supcon", "--out", out, *settings)
    return out


def nearfar(*arguments: object) -> str:
    """Run a command and return what it printed, which has no control characters."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.output), repr(result.output)
    return result.output


def test_names_are_printed_as_one_line(folder: Path, run: Path) -> None:
    assert "dat\\udce9\\x1b[2J: 32 files, 8 classes" in nearfar("data", folder, "--scan")
    nearfar("index", run, folder)
    lines = nearfar("search", run, "3", "-k", "31").splitlines()
    assert len(lines) == 2 + 31
    assert any("caf\\udce9" in line for line in lines)
    assert any("\\x1b[31mred\\x07" in line for line in lines)
    nearfar("search", run, folder / "@sum" / "0@sum.png", "--html", run / "found.html")


def test_audit_of_odd_names_is_decided_and_applied(folder: Path, run: Path, tmp_path: Path) -> None:
    nearfar("audit", run, "--out", tmp_path / "audit")
    table = tmp_path / "audit" / "audit.csv"
    text = table.read_text("utf-8")
    assert len(text.splitlines()) == 1 + 32
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert [cell for cell in cells if cell.startswith(("=", "+", "@"))] == []
    manifest = open_data(str(folder))
    page = (tmp_path / "audit" / "index.html").read_text("utf-8")
    paths = [decode_cell(unescape(cell)) for cell in re.findall('data-path="(.*?)"', page)]
    assert len(paths) >= 10
    assert set(paths) < set(manifest.paths or ())
    lines = text.splitlines()
    decided = [lines[0], f"{lines[1]}remove", *(f"{line}keep" for line in lines[2:])]
    (tmp_path / "decided.csv").write_text("\n".join(decided), "utf-8")
    nearfar("audit", folder, "--apply", tmp_path / "decided.csv", "--out", tmp_path / "corrected.csv")
    corrected = open_data(str(tmp_path / "corrected.csv"))
    assert set(corrected.classes) == {os.fsdecode(name) for name in NAMES}
    assert len(corrected) == 31
    assert set(corrected.paths or ()) < set(manifest.paths or ())


def test_decisions_of_the_server_are_read_at_the_next_start(folder: Path, tmp_path: Path) -> None:
    manifest = open_data(str(folder))
    decisions = DecisionFile(tmp_path / "decisions.csv", manifest)
    for row in range(len(manifest)):
        decisions.decide(row, "relabel", int(manifest.labels[row] + 1) % 8)
    assert DecisionFile(tmp_path / "decisions.csv", manifest).all() == decisions.all()


def test_table_has_one_line_per_sample(folder: Path, tmp_path: Path) -> None:
    manifest = open_data(str(folder))
    vectors = np.random.default_rng(0).normal(size=(len(manifest), 4)).astype(np.float32)
    result = audit(vectors, manifest.labels, classes=manifest.classes)
    data = write_csv(result, manifest, tmp_path / "audit.csv").read_bytes()
    assert data.count(b"\n") == 1 + len(manifest)
    assert b"\r" not in data
