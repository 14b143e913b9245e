"""Decisions change labels and remove samples, keep a record, and are refused if they do not match the data."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from data.builders import folder
from nearfar.audit import apply_decisions, audit, read_decisions, save_corrected, write_csv
from nearfar.data import Manifest, open_data
from nearfar.errors import NearfarError


def data(samples: int = 40) -> Manifest:
    labels = np.arange(samples) % 4
    x = np.eye(4, 6)[labels] + 0.05 * np.random.default_rng(0).standard_normal((samples, 6))
    labels = labels.copy()
    labels[0] = 2
    return Manifest(labels=labels, classes=("a", "b,c", 'd"e', "f"), split=["train"] * samples, features=x)


def table(path: Path, rows: list[dict[str, object]]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["row", "path", "label", "suggested", "decision"])
        writer.writeheader()
        writer.writerows(rows)
    return path


def decision(manifest: Manifest, row: int, what: str, suggested: str = "a") -> dict[str, object]:
    label = manifest.classes[manifest.labels[row]]
    return {"row": row, "path": manifest.name(row), "label": label, "suggested": suggested, "decision": what}


def test_csv_is_ranked_and_complete(tmp_path: Path) -> None:
    manifest = data()
    found = audit(manifest.features, manifest.labels, classes=manifest.classes)
    path = write_csv(found, manifest, tmp_path / "audit.csv")
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["row"]) for row in rows] == found.order().tolist()
    assert rows[0]["row"] == "0"
    assert (rows[0]["label"], rows[0]["suggested"]) == ('d"e', "a")
    assert float(rows[0]["score"]) > float(rows[1]["score"])
    assert rows[0]["nearest"].count(";") == 4
    assert read_decisions(manifest, path) == []  # no decisions yet


def test_decisions_are_applied_and_old_labels_are_recorded(tmp_path: Path) -> None:
    manifest = data()
    before = manifest.labels.copy()
    rows = [decision(manifest, 0, "relabel"), decision(manifest, 5, "remove"), decision(manifest, 7, "keep", "b,c")]
    path = table(tmp_path / "decisions.csv", rows)
    corrected = apply_decisions(manifest, path)
    assert len(corrected) == 39
    assert corrected.labels[0] == 0
    assert corrected.labels[1:].tolist() == np.delete(before, 5)[1:].tolist()
    assert "1 label changed, 1 sample removed" in corrected.notes[-1]
    assert (manifest.labels == before).all()

    out = tmp_path / "new" / "clean.npz"
    assert save_corrected(manifest, path, out) == open_data(out)
    with open(out.with_name("clean.changes.csv"), newline="", encoding="utf-8") as file:
        changes = list(csv.DictReader(file))
    assert [(c["row"], c["old_label"], c["new_label"]) for c in changes] == [("0", 'd"e', "a"), ("5", "b,c", "")]


def test_files_keep_their_paths(tmp_path: Path) -> None:
    manifest = open_data(folder(tmp_path / "pictures", {"x": 3, "y": 3}))
    path = table(tmp_path / "decisions.csv", [decision(manifest, 1, "relabel", "y")])
    corrected = save_corrected(manifest, path, tmp_path / "clean.csv")
    assert corrected.paths == manifest.paths
    again = open_data(tmp_path / "clean.csv")
    assert again == corrected
    assert again.classes[again.labels[1]] == "y"


def test_new_classes_only_on_request(tmp_path: Path) -> None:
    manifest = data()
    path = table(tmp_path / "d.csv", [decision(manifest, 3, "relabel", "ff")])
    with pytest.raises(NearfarError, match="there is no class 'ff'; did you mean 'f'"):
        apply_decisions(manifest, path)
    corrected = apply_decisions(manifest, path, new_classes=True)
    assert corrected.classes[corrected.labels[3]] == "ff"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decision": "delete"}, "row 2: unknown decision 'delete': use keep, relabel, remove"),
        ({"row": "x"}, "the column 'row' must contain a number, got 'x'"),
        ({"row": 40}, "row 40 is out of range: the data has rows 0 to 39"),
        ({"label": "f"}, "decisions belong to other data"),
        ({"path": "other"}, "decisions belong to other data"),
        ({"suggested": ""}, "relabel needs a label"),
    ],
)
def test_bad_decisions(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    manifest = data()
    path = table(tmp_path / "d.csv", [decision(manifest, 0, "relabel") | changes])
    with pytest.raises(NearfarError, match=words):
        apply_decisions(manifest, path)


def test_bad_tables(tmp_path: Path) -> None:
    manifest = data()
    with pytest.raises(NearfarError, match="cannot be read"):
        apply_decisions(manifest, tmp_path / "none.csv")
    (tmp_path / "x.csv").write_text("path,label\n")
    with pytest.raises(NearfarError, match="column 'row' is missing"):
        apply_decisions(manifest, tmp_path / "x.csv")
    twice = table(tmp_path / "t.csv", [decision(manifest, 0, "relabel"), decision(manifest, 0, "remove")])
    with pytest.raises(NearfarError, match="a second decision on sample 0"):
        apply_decisions(manifest, twice)


def test_audit_of_other_data_is_refused(tmp_path: Path) -> None:
    found = audit(torch.randn(9, 3), [0, 1, 2] * 3)
    with pytest.raises(ValueError, match="pass the audit of this data"):
        write_csv(found, data(), tmp_path / "a.csv")
