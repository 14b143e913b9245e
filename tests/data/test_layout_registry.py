from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from nearfar.cli import main
from nearfar.data import Manifest, layout_names, layouts, open_data, register_layout
from nearfar.errors import NearfarError


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the layouts that a test registers."""
    layout_names()
    monkeypatch.setattr(layouts.LAYOUTS, "_entries", dict(layouts.LAYOUTS._entries))
    monkeypatch.setattr(layouts, "_recognition", dict(layouts._recognition))


def open_lines(path: Path, *, allow_partial: bool = False) -> Manifest:
    words = path.read_text().split()
    return Manifest(
        labels=np.arange(len(words)),
        classes=tuple(words),
        split=["train"] * len(words),
        features=np.eye(len(words)),
        notes=(f"allow_partial={allow_partial}",),
    )


def test_the_order_of_recognition_is_explicit() -> None:
    names = layout_names()
    assert names[-1] == "folder"
    assert names[:2] == ["pairs", "shards"]  # before csv and archive, which accept every .csv and every .tar
    assert names[2:-1] == sorted(names[2:-1])
    assert {"archive", "cars", "csv", "cub", "in-shop", "npy", "npz", "parquet", "sketches", "sop"} < set(names)
    assert layouts.embedded_names() == ["sketches"]


def test_a_registered_layout_is_recognized(tmp_path: Path) -> None:
    register_layout("words", recognizes=lambda path: path.suffix == ".words")(open_lines)
    (tmp_path / "a.words").write_text("cat dog")
    manifest = open_data(tmp_path / "a.words", allow_partial=True)
    assert manifest.classes == ("cat", "dog")
    assert manifest.notes == ("allow_partial=True",)


def test_a_registered_layout_comes_before_the_built_in_ones(tmp_path: Path) -> None:
    register_layout("words", recognizes=lambda path: path.name == "words.csv")(open_lines)
    (tmp_path / "words.csv").write_text("cat dog")
    assert open_data(tmp_path / "words.csv").classes == ("cat", "dog")


def test_a_layout_can_be_chosen_by_its_name(tmp_path: Path) -> None:
    register_layout("words", recognizes=lambda path: False)(open_lines)
    (tmp_path / "a.txt").write_text("cat dog")
    assert open_data(f"words:{tmp_path / 'a.txt'}", split="class-order").split.tolist() == ["train", "test"]
    with pytest.raises(NearfarError, match=r"no data layout recognizes this file\. Known: words, pairs, shards"):
        open_data(tmp_path / "a.txt")
    with pytest.raises(NearfarError, match="no such file, folder or built-in dataset"):
        open_data(f"word:{tmp_path / 'a.txt'}")


def test_a_registered_dataset_needs_no_path() -> None:
    @register_layout("toy")
    def open_toy() -> Manifest:
        return Manifest(labels=[0, 1], classes=("a", "b"), split=["train", "test"], features=np.eye(2), source="toy")

    assert open_data("toy").source == "toy"


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match=r"layout 'cub' is already registered by nearfar\.data\.layouts\.cub"):
        register_layout("cub", recognizes=Path.is_dir)(open_lines)
    assert layouts._recognition["cub"].recognizes is not Path.is_dir


def test_a_new_layout_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "new_layout.py").write_text(
        "from nearfar.data.layouts import register\n"
        "from nearfar.data.layouts.arrays import open_npz\n"
        '@register("new", recognizes=lambda path: path.suffix == ".new")\n'
        "def open_new(path):\n"
        "    return open_npz(path)\n"
    )
    monkeypatch.setattr(layouts.LAYOUTS, "_package", "nearfar.data.layouts")
    monkeypatch.setattr(layouts, "__path__", [*layouts.__path__, str(package)])
    np.savez(tmp_path / "x.npz", x=np.eye(4), y=[0, 0, 1, 1])
    (tmp_path / "x.npz").rename(tmp_path / "x.new")
    assert len(open_data(tmp_path / "x.new")) == 4
    sys.modules.pop("nearfar.data.layouts.new_layout")


def test_commands_open_a_registered_layout_by_its_name(tmp_path: Path) -> None:
    register_layout("words", recognizes=lambda path: False)(open_lines)
    (tmp_path / "a.txt").write_text("cat dog")
    result = CliRunner().invoke(main, ["data", f"words:{tmp_path / 'a.txt'}"])
    assert result.exit_code == 0, result.output
    assert "2 features" in result.output
