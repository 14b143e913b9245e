"""Samples that `nearfar index --add` added to the index of a run are served beside the data of the run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from nearfar.data import Manifest, load_sketches, save_manifest
from nearfar.search import Index
from nearfar.search.command import index_command
from nearfar.serve.api import create_app
from nearfar.serve.collection import Collection, open_collection
from nearfar.serve.server import guard_app, run_in_background
from serve.conftest import get_when_ready

COUNT = 6


def save_drawings(path: Path, *kinds: str) -> str:
    """Save the last drawings of some classes, which are not in the data of the run."""
    whole = load_sketches()
    rows = np.concatenate([np.flatnonzero(whole.labels == whole.classes.index(kind))[-COUNT:] for kind in kinds])
    assert whole.pixels is not None
    labels = np.repeat(np.arange(len(kinds)), COUNT)
    save_manifest(Manifest(labels=labels, classes=kinds, split=["test"] * len(labels), pixels=whole.pixels[rows]), path)
    return str(path)


@pytest.fixture(scope="module")
def extended(run_path: Path, sketch_file: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose index has twelve more drawings: of a class of the run, and of a new one."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(run_path, folder / "run")
    index_command(folder / "run", sketch_file, out=None, kind="auto", add=False)
    added = save_drawings(folder / "added.npz", "cat", "zebra")
    index_command(folder / "run", added, out=None, kind="auto", add=True)
    return folder / "run"


@pytest.fixture(scope="module")
def messages() -> list[str]:
    return []


@pytest.fixture(scope="module")
def served(extended: Path, messages: list[str]) -> Collection:
    return open_collection(extended, say=messages.append)


@pytest.fixture(scope="module")
def client(served: Collection) -> Iterator[httpx.Client]:
    with (
        run_in_background(guard_app(create_app(served))) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        yield client


def test_added_samples_are_counted_listed_and_found(client: httpx.Client, extended: Path, messages: list[str]) -> None:
    info = client.get("/api/info").json()
    assert (info["samples"], info["classes"], info["not_shown"]) == (132, 11, "")
    assert messages == ["132 samples of 11 classes", f"12 of them are only in {extended / 'index'}"]
    classes = {each["name"]: each for each in client.get("/api/classes").json()}
    assert (classes["cat"]["count"], classes["cat"]["split"]) == (18, "train")
    assert (classes["zebra"]["count"], classes["zebra"]["split"]) == (COUNT, "added")
    zebras = client.get(f"/api/classes/{classes['zebra']['label']}").json()["samples"]
    assert [each["id"] for each in zebras] == list(range(126, 132))
    assert {each["split"] for each in zebras} == {"added"}
    near = client.get("/api/samples/126/neighbors", params={"k": 131}).json()
    assert near["query"]["label"] == classes["zebra"]["label"]
    assert sorted(each["id"] for each in near["neighbors"]) == [id for id in range(132) if id != 126]


@pytest.mark.parametrize("size", ["small", "medium", "large"])
def test_images_of_added_samples_are_theirs(size: str, client: httpx.Client, served: Collection) -> None:
    zebra = load_sketches().classes.index("zebra")
    drawing = load_sketches().subset(load_sketches().labels == zebra)
    assert served.added.images[COUNT] is not None
    thumbnails, row = served.added.images[COUNT]
    assert thumbnails.data.pixels is not None
    assert drawing.pixels is not None
    np.testing.assert_array_equal(thumbnails.data.pixels[row], drawing.pixels[-COUNT])
    response = client.get("/api/samples/126/image", params={"size": size})
    assert response.headers["content-type"] == "image/png"
    assert response.content != client.get("/api/samples/127/image", params={"size": size}).content


def test_map_has_added_samples_and_the_audit_leaves_them_out(client: httpx.Client, served: Collection) -> None:
    served.map.wait()
    assert client.get("/api/map").json()["points"] == 132
    suspects = get_when_ready(client, "/api/audit", params={"limit": 200}).json()
    assert suspects["total"] == 120
    assert max(each["sample"]["id"] for each in suspects["suspects"]) == 119
    refused = client.put("/api/audit/126", json={"decision": "remove"})
    assert refused.status_code == 422
    assert refused.json()["detail"] == "row must be in 0..119, the rows of the data, got 126"


def test_one_split_has_no_added_samples_and_says_so(extended: Path) -> None:
    collection = open_collection(extended, split="test", say=lambda _: None)
    assert (len(collection.ids), collection.classes) == (60, collection.manifest.classes)
    assert collection.added.problem == (
        "12 samples of the index are not shown, because the server serves only the test samples"
    )


def test_other_images_are_not_shown_if_the_data_has_changed(extended: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(extended, run)
    source = save_drawings(tmp_path / "more.npz", "owl")
    index_command(run, source, out=None, kind="auto", add=True)
    save_drawings(tmp_path / "more.npz", "pig")
    collection = open_collection(run, say=lambda _: None)
    assert len(collection.ids) == 138
    assert collection.image(137, "medium") is None
    assert collection.image(131, "medium") is not None
    assert collection.added.problem == f"cannot show the images of {source}: the data has changed since it was indexed"


def test_an_index_of_other_weights_is_named(extended: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(extended, run)
    index = Index.load(run / "index", mmap=False)
    index.model = "0" * 64
    index.save(run / "index")
    collection = open_collection(run, say=lambda _: None)
    assert len(collection.ids) == 120
    assert "was not built with the weights of" in collection.added.problem
