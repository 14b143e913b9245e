"""A small run on drawings, served on a real socket. The name of one class contains HTML."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from nearfar.data import Manifest, load_sketches, save_manifest
from nearfar.serve.api import create_app
from nearfar.serve.collection import Collection, open_collection
from nearfar.serve.server import guard_app, run_in_background
from nearfar.training import train
from training_cases import configured

HOSTILE = "<img src=x onerror=document.title='broken'>"
KINDS = ("apple", "bicycle", "cat", "circle", "fish", "house", "ladder", "line", "star", "umbrella")


@pytest.fixture(scope="session")
def sketch_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Save ten classes of twelve drawings each, five of them for training."""
    whole = load_sketches()
    rows = np.concatenate([np.flatnonzero(whole.labels == whole.classes.index(name))[:12] for name in KINDS])
    names = tuple(HOSTILE if name == "fish" else name for name in KINDS)
    assert whole.pixels is not None
    manifest = Manifest(
        labels=np.repeat(np.arange(10), 12), classes=names, split=["train"] * 120, pixels=whole.pixels[rows]
    )
    path: Path = tmp_path_factory.mktemp("data") / "sketches.npz"
    save_manifest(manifest.split_by_class_order(), path)
    return str(path)


@pytest.fixture(scope="session")
def run_path(sketch_file: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = configured("pixels", sketch_file, "proxy-anchor")
    return train(config, tmp_path_factory.mktemp("runs") / "run", say=lambda _: None).path


@pytest.fixture(scope="session")
def collection(run_path: Path) -> Collection:
    return open_collection(run_path, say=lambda _: None)


@pytest.fixture(scope="session")
def address(collection: Collection) -> Iterator[str]:
    with run_in_background(guard_app(create_app(collection))) as where:
        yield where


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60) as found:
        yield found


def get_when_ready(client: httpx.Client, path: str, **options: Any) -> httpx.Response:
    """Request a result that is computed in the background, until it is ready."""
    for _ in range(600):
        response = client.get(path, **options)
        if response.status_code != 202:
            return response
        time.sleep(0.05)
    raise AssertionError(f"{path} was not ready in time")
