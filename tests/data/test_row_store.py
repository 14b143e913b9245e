"""Rows on disk: checksummed shards that survive kills, damage, a full disk and several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar import files
from nearfar.data import row_store
from nearfar.data.row_store import RowLayout, RowStore, list_stores, remove_store
from nearfar.errors import NearfarError

LAYOUT = RowLayout(10, (2, 3), "float32")
ROWS = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
forked = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "SHARD_BYTES", 100)  # 4 rows of 24 bytes


def opened(folder: Path) -> RowStore:
    return RowStore(folder, LAYOUT, {"data": "toy"})


def complete(folder: Path, *, pause: float = 0.0, log: Path | None = None) -> None:
    """Write the missing shards, and log each."""
    store = opened(folder)
    with store.building(lambda: None):
        absent, damaged = store.find_missing()
        for number in [*absent, *damaged]:
            time.sleep(pause)
            store.write_shard(number, ROWS[list(LAYOUT.shard(number))])
            if log is not None:
                with log.open("a") as file:
                    file.write(f"{number}\n")


def test_rows_are_read_in_any_order(tmp_path: Path) -> None:
    assert (LAYOUT.rows_per_shard, LAYOUT.shards) == (4, 3)
    complete(tmp_path / "a")
    store = opened(tmp_path / "a")
    assert store.find_missing() == ([], [])
    for rows in ([0], [9, 0, 4, 4, 3], list(range(10)), []):
        assert np.array_equal(store.read(rows), ROWS[rows])
    assert sum(path.stat().st_size for path in (tmp_path / "a").glob("*.rows")) == LAYOUT.size


def test_a_shard_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"shard 2 must have shape \[2, 2, 3\], got \[4, 2, 3\]"):
        opened(tmp_path).write_shard(2, ROWS[:4])


@pytest.mark.parametrize("kind", ["changed", "cut", "digest", "absent"])
def test_damage_is_found_and_repaired(kind: str, tmp_path: Path) -> None:
    complete(tmp_path)
    path = tmp_path / "00001.rows"
    data = bytearray(path.read_bytes())
    if kind == "absent":
        path.unlink()
    else:
        data[-1 if kind == "digest" else 5] ^= 1
        path.write_bytes(data[:-7] if kind == "cut" else data)
    assert opened(tmp_path).find_missing() == (([1], []) if kind == "absent" else ([], [1]))
    complete(tmp_path)
    assert opened(tmp_path).find_missing() == ([], [])
    assert np.array_equal(opened(tmp_path).read(range(10)), ROWS)


def test_a_missing_shard_is_a_one_line_error(tmp_path: Path) -> None:
    complete(tmp_path)
    store = opened(tmp_path)
    (tmp_path / "00000.rows").unlink()
    with pytest.raises(NearfarError, match=r"00000\.rows cannot be read"):
        store.read([1])


def test_a_killed_process_leaves_complete_shards_and_no_lock(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = forked.Process(target=complete, args=(tmp_path / "a",), kwargs={"pause": 0.2, "log": log})
    process.start()
    while not log.exists():
        time.sleep(0.01)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    (tmp_path / "a" / f".00001.rows.{files._HOST}.{process.pid}.part").write_bytes(b"half a shard")
    done = len(log.read_text().split())
    assert len(opened(tmp_path / "a").find_missing()[0]) == 3 - done
    complete(tmp_path / "a", log=log)
    assert sorted(log.read_text().split()) == ["0", "1", "2"]  # none twice
    assert not list((tmp_path / "a").glob(".*"))
    assert np.array_equal(opened(tmp_path / "a").read(range(10)), ROWS)


def test_two_processes_share_the_work(tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [
        forked.Process(target=complete, args=(tmp_path / "a",), kwargs={"pause": 0.02, "log": log}) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(log.read_text().split()) == ["0", "1", "2"]


def test_a_full_disk_is_a_one_line_error_without_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nearfar.files.os.fsync", full)
    with pytest.raises(NearfarError, match="No space left on device"), store.building(lambda: None):
        store.write_shard(0, ROWS[:4])
    assert not list(tmp_path.glob("*.rows")) + list(tmp_path.glob(".*"))


def test_stores_are_listed_and_removed_unless_in_use(tmp_path: Path) -> None:
    complete(tmp_path / "a")
    complete(tmp_path / "b")
    os.utime(tmp_path / "a" / "use.lock", (1, 1))
    (tmp_path / "other").mkdir()
    (tmp_path / "b" / "about.json").write_text("{")
    first, second = list_stores(tmp_path)
    assert (first.folder.name, second.folder.name, second.last_used) == ("b", "a", 1)
    assert (first.about, second.about["data"], second.size) == ({}, "toy", LAYOUT.size)

    holding = forked.Event()
    release = forked.Event()

    def hold() -> None:
        store = opened(tmp_path / "a")
        holding.set()
        release.wait(30)
        del store

    process = forked.Process(target=hold)
    process.start()
    holding.wait(30)
    assert not remove_store(tmp_path / "a")
    release.set()
    process.join()
    assert remove_store(tmp_path / "a")
    assert [store.folder.name for store in list_stores(tmp_path)] == ["b"]
    assert list_stores(tmp_path / "nowhere") == []
