"""`nearfar audit` on feature vectors and on a run, and with decisions to apply."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from nearfar.cli import main
from nearfar.data import open_data
from nearfar.training import train
from training_cases import configured


def audited(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["audit", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_on_vectors_with_noise_and_back(vectors: str, tmp_path: Path) -> None:
    printed = audited(vectors, "--noise", "0.1", "--out", str(tmp_path / "found"))
    assert "corrupted labels: 24." in printed
    assert float(printed.split("AUROC: ")[1].split()[0]) > 0.85
    rows = list(csv.DictReader((tmp_path / "found" / "audit.csv").open()))
    assert len(rows) == 240
    assert (tmp_path / "found" / "index.html").is_file()
    decisions = tmp_path / "decisions.csv"
    page = audited(vectors, "--out", str(tmp_path / "clean"))
    assert "corrupted" not in page
    first = next(csv.DictReader((tmp_path / "clean" / "audit.csv").open()))
    with decisions.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*first, "decision", "new_label"])
        writer.writeheader()
        writer.writerow(first | {"decision": "remove"})
    audited(vectors, "--apply", str(decisions), "--out", str(tmp_path / "corrected.npz"))
    assert len(open_data(tmp_path / "corrected.npz")) == 239
    assert (tmp_path / "corrected.changes.csv").is_file()


def test_a_page_that_shows_too_few_says_how_to_see_all(vectors: str, tmp_path: Path) -> None:
    words = (vectors, "--noise", "0.1", "--out", str(tmp_path / "found"))
    printed = audited(*words, "--shown", "3")
    suspects = int(printed.split(" labels probably wrong")[0].rpartition(" ")[2])
    assert suspects > 3
    assert (
        f"the page shows 3 of the {suspects} labels that are probably wrong: pass --shown {suspects} to see all"
        in printed
    )
    hint = f"nearfar audit --shown {suspects}"
    assert hint in (tmp_path / "found" / "index.html").read_text()
    assert "--shown" not in audited(*words)
    assert hint not in (tmp_path / "found" / "index.html").read_text()


def test_on_a_run_with_its_noise(vectors: str, tmp_path: Path) -> None:
    config = configured("features", vectors, "supcon", "data.noise.rate=0.2")
    run = train(config, tmp_path / "run", say=lambda _: None)
    printed = audited(str(run.path), "--split", "train", "--out", str(tmp_path / "found"))
    assert "120 samples" in printed
    assert "corrupted labels: 24." in printed


def test_on_a_split_of_a_run_without_its_noise(vectors: str, tmp_path: Path) -> None:
    config = configured("features", vectors, "supcon", "data.noise.rate=0.2")
    run = train(config, tmp_path / "run", say=lambda _: None)
    printed = audited(str(run.path), "--split", "test", "--out", str(tmp_path / "found"))
    assert "120 samples" in printed
    assert "corrupted" not in printed


def test_apply_needs_an_output_file(vectors: str, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("row,decision\n")
    result = CliRunner().invoke(main, ["audit", vectors, "--apply", str(tmp_path / "d.csv")])
    assert result.exit_code == 1
    assert "--out" in result.output


@pytest.mark.parametrize("way", ["source", "link", "decisions", "changes"])
def test_apply_does_not_overwrite_what_it_reads(way: str, vectors: str, tmp_path: Path) -> None:
    source, decisions = tmp_path / "data.npz", tmp_path / "decisions.csv"
    shutil.copy(vectors, source)
    decisions.write_text("row,path,label,suggested,decision\n3,kind 00 #3,kind 00,kind 00,remove\n")
    out = source
    if way == "link":
        out = tmp_path / "other.npz"
        out.symlink_to(source)
    elif way == "decisions":
        out = decisions
    elif way == "changes":
        decisions = decisions.rename(tmp_path / "new.changes.csv")
        out = tmp_path / "new.npz"
    before = {path: path.read_bytes() for path in (source, decisions)}
    command = ["audit", str(source), "--apply", str(decisions), "--out", str(out)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert "would overwrite it" in result.output
    assert "choose another --out, or pass --force" in result.output
    assert before == {path: path.read_bytes() for path in before}
    if way == "source":
        assert CliRunner().invoke(main, [*command, "--force"]).exit_code == 0
        assert len(open_data(source)) == 239


def test_force_is_for_apply_only(vectors: str) -> None:
    result = CliRunner().invoke(main, ["audit", vectors, "--force"])
    assert result.exit_code == 1
    assert "--force can only be used with --apply" in result.output
