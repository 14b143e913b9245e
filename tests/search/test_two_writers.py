"""Several processes write and read one index: nothing is lost, and every reader sees one whole version."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from nearfar.data import Manifest, save_manifest
from nearfar.search import Index
from nearfar.search.command import index_command
from nearfar.training import Run
from processes import exit_codes, start

WRITERS = 4


@pytest.fixture
def run(vector_run: Run, vectors: str, tmp_path: Path) -> Path:
    """Return a copy of the run with an index of its data."""
    shutil.copytree(vector_run.path, tmp_path / "run")
    add(tmp_path / "run", vectors, first=True)
    return tmp_path / "run"


def add(run: Path, source: str, *, first: bool = False) -> None:
    index_command(run, source, out=None, kind="auto", add=not first)


def more_vectors(folder: Path, number: int) -> str:
    """Save three vectors of the new class "new NUMBER"."""
    features = np.random.default_rng(number).normal(size=(3, 16)).astype(np.float32)
    names = tuple(f"{number}-{i}" for i in range(3))
    more = Manifest(labels=[0] * 3, classes=(f"new {number}",), split=["test"] * 3, features=features, paths=names)
    save_manifest(more, folder / f"more {number}.npz")
    return str(folder / f"more {number}.npz")


def test_additions_at_the_same_time_lose_nothing(run: Path, tmp_path: Path) -> None:
    for trial in range(3):
        sources = [more_vectors(tmp_path, WRITERS * trial + i) for i in range(WRITERS)]
        assert exit_codes([start(add, run, source) for source in sources]) == [0] * WRITERS
        index = Index.load(run / "index")
        assert len(index) == 240 + 3 * WRITERS * (trial + 1)
        assert {f"new {i}" for i in range(WRITERS * (trial + 1))} <= set(index.classes)
        assert len(set(index.ids.tolist())) == len(index)


def save_often(folder: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        count = int(np.random.default_rng(time.monotonic_ns()).integers(1, 50))
        Index.from_vectors(np.full((count, 4), count), names=[str(count)] * count).save(folder)


def load_often(folder: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        index = Index.load(folder)
        assert set(index.names) == {str(len(index))}


def test_readers_see_one_whole_version_while_others_save(tmp_path: Path) -> None:
    Index.from_vectors(np.ones((1, 4)), names=["1"]).save(tmp_path / "index")
    processes = [start(save_often, tmp_path / "index", 1.5) for _ in range(2)]
    processes += [start(load_often, tmp_path / "index", 1.5) for _ in range(2)]
    assert exit_codes(processes) == [0] * 4
    names = {path.name.partition(".")[0] for path in (tmp_path / "index").iterdir()}
    assert names == {"index", "vectors", "ids", "names"}
    assert len(list((tmp_path / "index").iterdir())) == 4


def test_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    rng = np.random.default_rng(0)
    for _ in range(12):
        process = start(save_often, folder, 60)
        time.sleep(float(rng.uniform(0.01, 0.08)))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        if (folder / "index.json").exists():
            assert len(Index.load(folder)) > 0
    Index.from_vectors(np.ones((1, 4)), names=["1"]).save(folder)
    assert len(list(folder.iterdir())) == 4, [path.name for path in folder.iterdir()]
