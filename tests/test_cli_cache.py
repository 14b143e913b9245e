"""`nearfar cache ls` and `nearfar cache rm`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from click.testing import CliRunner

from nearfar.cli import main
from nearfar.data.row_store import RowLayout, RowStore


def fill(folder: Path, key: str, *, shards: bool = True) -> RowStore:
    about = {
        "data": "birds",
        "part": "train",
        "view": 1,
        "backbone": "small",
        "train_from": "block2",
        "dtype": "float32",
    }
    store = RowStore(folder / key, RowLayout(4, (3,), "float32"), about)
    with store.building(lambda: None):
        if shards:
            store.write_shard(0, np.zeros((4, 3), np.float32))
    return store


def nearfar(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["cache", *arguments])
    return result.exit_code, result.output


def test_views_are_listed_and_removed(tmp_path: Path) -> None:
    fill(tmp_path, "abc1")
    fill(tmp_path, "abd2", shards=False)
    code, output = nearfar("ls", str(tmp_path))
    assert code == 0
    assert "abc1  80 bytes" in output
    assert "birds train, view 1, small below block2, float32\n" in output
    assert "birds train, view 1, small below block2, float32, 0% complete\n" in output
    assert output.endswith("2 views, 80 bytes\n")
    assert nearfar("rm", str(tmp_path), "xyz")[0] == 1
    assert "no view has a name that begins with 'xyz'" in nearfar("rm", str(tmp_path), "xyz")[1]
    assert nearfar("rm", str(tmp_path))[0] == 2
    assert nearfar("rm", str(tmp_path), "abc") == (0, "removed abc1, 80 bytes\n")
    assert nearfar("rm", str(tmp_path), "--all") == (0, "removed abd2, 0 bytes\n")
    assert nearfar("ls", str(tmp_path)) == (0, "0 views, 0 bytes\n")


def test_a_view_in_use_is_kept(tmp_path: Path) -> None:
    store = fill(tmp_path, "abc1")
    code, output = nearfar("rm", str(tmp_path), "--all")
    assert code == 1
    assert "kept abc1, which a running process uses" in output
    assert store.find_missing() == ([], [])
