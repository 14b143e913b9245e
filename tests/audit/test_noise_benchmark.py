"""The noise benchmark runs on the embedded drawings and measures what its columns say."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from nearfar.audit import noise_benchmark
from nearfar.audit.baselines import confident_learning, knn_vote, loss_ranking
from nearfar.cli import main
from nearfar.data import load_sketches
from nearfar.errors import NearfarError


def test_small_run() -> None:
    threads = torch.get_num_threads()
    ended = CliRunner().invoke(main, ["bench", "audit", "sketches", "--classes", "4", "--seeds", "1"])
    torch.set_num_threads(threads)
    assert ended.exit_code == 0, ended.output
    lines = ended.output.splitlines()
    assert lines[0].startswith("| rate 0.2, 1 seed")
    assert {"audit", "kNN vote, k=20", "loss ranking"} <= {line.split("|")[1].strip() for line in lines[2:-2]}
    assert lines[-1].startswith("At its cut-off, the audit calls ")


def test_measures_the_score_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_sketches().subset(np.arange(400))
    truth = torch.tensor(data.compact().labels)
    monkeypatch.setitem(noise_benchmark.BASELINES, "oracle", lambda x, y: (y != truth).double().numpy())
    found = noise_benchmark.measure(data, rate=0.3, seeds=1, names=["oracle"])
    assert found["oracle"] == [(1.0, 1.0, 1.0)]


def test_baselines_rank_the_odd_one_first() -> None:
    x = torch.eye(2).repeat_interleave(10, 0) + 0.01 * torch.randn(20, 2)
    labels = torch.arange(2).repeat_interleave(10)
    labels[3] = 1
    assert knn_vote(x, labels, k=5).argmax() == 3
    assert loss_ranking(x, labels).argmax() == 3


def test_cleanlab_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cleanlab", None)
    monkeypatch.setitem(sys.modules, "cleanlab.rank", None)
    with pytest.raises(ImportError, match="pip install cleanlab"):
        confident_learning(torch.ones(4, 2), torch.tensor([0, 0, 1, 1]))


def test_images_need_features(tmp_path: object) -> None:
    from nearfar.data import Manifest

    data = Manifest(labels=[0, 1], classes=("a", "b"), split=["train"] * 2, paths=("x", "y"))
    with pytest.raises(NearfarError, match="needs features or gray drawings"):
        noise_benchmark.load_vectors(data)
