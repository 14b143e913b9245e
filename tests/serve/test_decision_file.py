"""decisions.csv: written at once, read back, and accepted by `nearfar audit --apply`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from nearfar.audit import apply_decisions
from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.serve.decision_file import Decision, DecisionFile


def data() -> Manifest:
    names = ('an "odd", name.jpg', "line\nbreak.jpg", "bytes\udcff.jpg", "d.jpg", "e.jpg")
    return Manifest(labels=[0, 0, 1, 1, 2], classes=("ant", "owl, barn", "cat"), split=["train"] * 5, paths=names)


def test_decisions_are_saved_and_applied(tmp_path: Path) -> None:
    path = tmp_path / "decisions.csv"
    decisions = DecisionFile(path, data())
    assert decisions.all() == {}
    assert decisions.content() == b"row,path,label,suggested,decision\n"
    decisions.decide(2, "relabel", 0)
    decisions.decide(0, "keep")
    decisions.decide(1, "remove")
    decisions.decide(4, "relabel", 1)
    again = DecisionFile(path, data()).all()
    assert again == {0: Decision("keep"), 1: Decision("remove"), 2: Decision("relabel", 0), 4: Decision("relabel", 1)}
    corrected = apply_decisions(data(), path)
    assert corrected.labels.tolist() == [0, 0, 1, 1]
    decisions.decide(1, "")
    decisions.decide(2, "keep")
    assert apply_decisions(data(), path).labels.tolist() == [0, 0, 1, 1, 1]
    assert [each.name for each in tmp_path.iterdir()] == ["decisions.csv"]


def test_another_process_is_not_overwritten(tmp_path: Path) -> None:
    one, two = (DecisionFile(tmp_path / "decisions.csv", data()) for _ in range(2))
    one.decide(0, "keep")
    two.decide(1, "keep")
    one.decide(2, "keep")
    assert sorted(one.all()) == sorted(two.all()) == [0, 1, 2]


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    many = Manifest(labels=[0] * 60, classes=("a", "b"), split=["train"] * 60, paths=tuple(f"{i}" for i in range(60)))
    decisions = DecisionFile(tmp_path / "decisions.csv", many)
    threads = [threading.Thread(target=decisions.decide, args=(i, "relabel", 1)) for i in range(60)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(DecisionFile(tmp_path / "decisions.csv", many).all()) == list(range(60))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, "maybe"), "decision must be one of"),
        ((9, "keep"), r"row must be in 0\.\.4, the rows of the data, got 9"),
        ((0, "relabel"), "label is required for relabel"),
        ((0, "keep", 1), "not allowed for other decisions"),
        ((0, "relabel", 3), r"label must be in 0\.\.2, got 3"),
    ],
)
def test_invalid_decisions(tmp_path: Path, arguments: tuple[int, str], words: str) -> None:
    decisions = DecisionFile(tmp_path / "decisions.csv", data())
    with pytest.raises(ValueError, match=words):
        decisions.decide(*arguments)
    assert not (tmp_path / "decisions.csv").exists()


def test_decisions_on_other_data_are_refused(tmp_path: Path) -> None:
    DecisionFile(tmp_path / "decisions.csv", data()).decide(3, "keep")
    other = Manifest(labels=[0, 1], classes=("ant", "owl"), split=["train"] * 2, paths=("x", "y"))
    with pytest.raises(NearfarError, match="row 3 is out of range"):
        DecisionFile(tmp_path / "decisions.csv", other)
