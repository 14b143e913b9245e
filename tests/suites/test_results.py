"""The results file: lines that are whole count, one run writes at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearfar.errors import NearfarError
from nearfar.suites.results import ResultsFile, read_lines, read_results
from nearfar.suites.suite_file import suite_from_dict

SUITE = suite_from_dict({"name": "s", "data": [{"name": "d"}], "methods": [{"name": "m"}], "seeds": [0, 1]}).to_dict()
PLACES = [{"data": "d", "method": "m", "sweep": None, "seed": seed, "id": f"id{seed}"} for seed in (0, 1)]
ASKED = {"kind": "suite", "suite": SUITE, "places": PLACES}


def test_a_torn_last_line_is_ignored_and_then_removed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.jsonl"
    with ResultsFile(path) as file:
        file.append(ASKED)
        file.append({"kind": "cell", "id": "id0"})
    whole = path.read_bytes()
    for cut in (b'{"kind": "cell", "id": "id1", "te', b'{"kind": "cell", "id": "id1"}'):
        path.write_bytes(whole + cut)
        assert [line["kind"] for line in read_lines(path)] == ["suite", "cell"]
        with ResultsFile(path) as file:
            assert len(file.lines) == 2
        assert path.read_bytes() == whole
    path.write_bytes(b'{"kind": "su')
    assert read_lines(path) == []


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for wrong in ("{broken", "[1]", '{"kind": "other"}', "7", "{}"):
        path.write_text(json.dumps(ASKED) + "\n" + wrong + "\n" + json.dumps(ASKED) + "\n")
        with pytest.raises(NearfarError, match=r"r\.jsonl: line 2 is damaged"):
            read_lines(path)


def test_scores_replace_an_error_whatever_the_order(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ResultsFile(path) as file:
        for entry in (
            ASKED,
            {"kind": "error", "id": "id0", "message": "first"},
            {"kind": "cell", "id": "id0"},
            {"kind": "error", "id": "id1", "message": "old"},
            {"kind": "error", "id": "id1", "message": "new"},
        ):
            file.append(entry)
    results = read_results(path)
    assert results.cell("d", "m", None, 0) == {"kind": "cell", "id": "id0"}
    assert results.cell("d", "m", None, 1) is None
    assert results.cell("d", "m", None, 2) is None
    assert results.errors == {"id1": "new"}


def test_two_runs_do_not_write_to_one_file(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / "r.jsonl"
    with ResultsFile(path), pytest.raises(NearfarError, match="another process is writing"):
        ResultsFile(path)
    with ResultsFile(path) as file:
        file.append(ASKED)


def test_what_is_no_results_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(NearfarError, match="contains no line of kind 'suite'"):
        read_results(tmp_path / "empty.jsonl")
    with pytest.raises(NearfarError, match="cannot be read"):
        read_results(tmp_path / "nowhere.jsonl")
    with ResultsFile(tmp_path / "nan.jsonl") as file, pytest.raises(ValueError, match="JSON"):
        file.append({"kind": "cell", "id": "a", "test": {"recall@1": float("nan")}})
    assert (tmp_path / "nan.jsonl").read_bytes() == b""


def test_what_is_no_file_of_results_or_has_none_yet_says_so(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text("name: mine\nseeds: [0]\n")
    with pytest.raises(NearfarError, match=r"suite\.yaml: not a results file"):
        read_results(path)
    path.write_text(json.dumps({"kind": "trial", "id": "a"}) + "\n")
    with pytest.raises(NearfarError, match=r"there are only tuning trials \(1\), no scores yet"):
        read_results(path)
    path.write_text("")
    with pytest.raises(NearfarError, match="contains no line of kind 'suite'"):
        read_results(path)
