"""Matryoshka training in a run, and truncated embeddings in encode, eval, index, search and export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import nearfar as package
from command_line import done
from nearfar.errors import NearfarError
from nearfar.losses import MatryoshkaLoss
from nearfar.search import Encoder, Index
from nearfar.training import Run, train
from nearfar.training.checkpoint import load_state
from nearfar.training.embedder_file import load_embedder
from training_cases import configured


@pytest.fixture(scope="module")
def run(vectors: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = configured("features", vectors, "proxy-anchor", "loss.matryoshka=[2,4,8]")
    return train(config, tmp_path_factory.mktemp("runs") / "matryoshka", say=lambda _: None)


def test_a_run_trains_proxies_of_every_size(run: Run) -> None:
    state = load_state(run.path / "checkpoint" / "state.safetensors")
    assert [list(state["loss"][f"losses.{i}.proxies"].shape) for i in range(3)] == [[6, 2], [6, 4], [6, 8]]


def test_the_last_size_must_be_the_dimension(vectors: str, tmp_path: Path) -> None:
    config = configured("features", vectors, "proxy-anchor", "loss.matryoshka=[2,4]")
    with pytest.raises(NearfarError, match="must end with the dimension of the embeddings, 8"):
        train(config, tmp_path / "run", say=lambda _: None)
    assert MatryoshkaLoss.__name__ in package.losses.__all__


def test_encode_keeps_the_first_dimensions(run: Run) -> None:
    model = package.load(run.path)
    features = run.manifest().features
    assert features is not None
    whole = model.encode(features[:5], normalize=False)
    expected = whole[:, :4] / np.linalg.norm(whole[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose(model.encode(features[:5], truncate=4), expected, atol=1e-6)
    assert model.encode(features[:5]).shape == (5, 8)
    shorter = Encoder(run, truncate=4)
    assert shorter.dim == 4
    np.testing.assert_allclose(shorter.encode(features[:5]), expected, atol=1e-6)
    with pytest.raises(ValueError, match="truncate must be at most 8"):
        model.encode(features[:5], truncate=9)
    with pytest.raises(NearfarError, match="truncate must be at most 8"):
        Encoder(run, truncate=9)


def test_eval_index_search_and_export(run: Run, vectors: str, tmp_path: Path) -> None:
    scores = json.loads(done("eval", run.path, "--truncate", 4, "--json"))
    assert scores != json.loads(done("eval", run.path, "--json"))
    done("index", run.path, vectors, "--truncate", 4, "--out", tmp_path / "index")
    index = Index.load(tmp_path / "index")
    assert index.dim == 4
    (found,) = json.loads(done("search", run.path, 30, "-k", 3, "--index", tmp_path / "index", "--json"))
    expected = index.search(index.vector_of(30)[None], 4)[1][0, 1:]
    assert [hit["id"] for hit in found["results"]] == expected.tolist()
    done("export", run.path, "--format", "safetensors", "--truncate", 4, "--out", tmp_path / "model")
    exported = load_embedder(tmp_path / "model" / "model.safetensors")
    assert exported.dim == 4
    card = (tmp_path / "model" / "README.md").read_text()
    assert "into 4 dimensions" in card
    assert "the scores are for all dimensions" in card
    assert "`nearfar eval RUN --truncate 4` measures" in card


def test_a_calibration_is_for_one_number_of_dimensions(run: Run) -> None:
    done("calibrate", run.path, "--truncate", 4)
    assert Encoder(run).calibration is None
    shorter = Encoder(run, truncate=4).calibration
    assert shorter is not None
    assert shorter.dim == 4
