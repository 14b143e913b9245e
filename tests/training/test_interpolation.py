"""Average weights before and after training, and keep the network before training where it is better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.cli.train_command import describe_run
from nearfar.data import Manifest, save_manifest
from nearfar.errors import NearfarError
from nearfar.models import create_embedder
from nearfar.runs import BEST, START, load_embedder
from nearfar.training import Config, Run, train
from nearfar.training.evaluate import score
from nearfar.training.interpolation import interpolate
from training_cases import configured

RUINOUS = ("optimizer.lr=3.0", "data.noise.rate=0.9")


def quiet(config: Config, out: Path, **options: object) -> Run:
    return train(config, out, say=lambda _: None, progress=False, **options)  # type: ignore[arg-type]


def vectors_config(vectors: str, *settings: str) -> Config:
    return configured("features", vectors, "proxy-anchor", "save_every=0", *settings)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_each_weight_is_the_average(share: float) -> None:
    start, end = (create_embedder("small", dim=4) for _ in range(2))
    with torch.no_grad():
        for buffer in end.buffers():
            buffer.add_(2)
    unchanged = {name: value.clone() for name, value in end.state_dict().items()}
    result = interpolate(start, end, share).state_dict()
    for name, value in result.items():
        before, after = start.state_dict()[name], end.state_dict()[name]
        expected = (1 - share) * before + share * after if value.is_floating_point() else after
        torch.testing.assert_close(value, expected)
    assert all(torch.equal(value, unchanged[name]) for name, value in end.state_dict().items())


def test_a_single_share_needs_no_validation_classes(vectors: str, tmp_path: Path) -> None:
    plain = quiet(vectors_config(vectors), tmp_path / "plain")
    averaged = quiet(vectors_config(vectors, "model.interpolate=[0.5]"), tmp_path / "averaged")
    start = load_embedder(averaged.path / START)
    expected = interpolate(start, plain.embedder(), 0.5).state_dict()
    for name, value in averaged.embedder().state_dict().items():
        assert torch.equal(value, expected[name])
    assert averaged.results()["interpolation"] == 0.5
    assert "0.5 x trained" in describe_run(averaged)


def test_the_share_with_the_best_validation_score_is_kept(vectors: str, tmp_path: Path) -> None:
    shares = [0.25, 0.5, 0.75]
    settings = ("data.validation=0.5", f"model.interpolate={shares}", "select.metric=map@r")
    run = quiet(vectors_config(vectors, *settings), tmp_path / "run")
    start, end = load_embedder(run.path / START), load_embedder(run.path / BEST)
    scores = {}
    for share in [1.0, *shares]:
        network = interpolate(start, end, share)
        manifest = run.load_split("val", network)
        scores[share] = score(run.embed(manifest, network), manifest, ["map@r"])["map@r"]
    chosen = run.results()["interpolation"]
    assert scores[chosen] == max(scores.values())
    expected = interpolate(start, end, chosen).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in run.embedder().state_dict().items())


def test_a_resumed_run_has_the_same_average(vectors: str, tmp_path: Path) -> None:
    config = vectors_config(vectors, "model.interpolate=[0.5]")
    whole = quiet(config, tmp_path / "whole")
    quiet(config, tmp_path / "cut", stop_after=5)
    cut = quiet(config, tmp_path / "cut", resume=True)
    one, other = (run.embedder().state_dict() for run in (whole, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_several_shares_need_validation_classes(vectors: str, tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match=r"needs validation classes to choose a value: set data\.validation=0\.2"):
        quiet(vectors_config(vectors, "model.interpolate=[0.25,0.5]"), tmp_path / "run")


@pytest.mark.parametrize("shares", ["[0]", "[1.0]", "[0.5,2]"])
def test_shares_are_between_0_and_1(shares: str, vectors: str) -> None:
    with pytest.raises(NearfarError, match=r"model\.interpolate must hold numbers above 0 and below 1"):
        vectors_config(vectors, f"model.interpolate={shares}")


def test_the_network_before_training_is_kept_if_no_epoch_is_better(vectors: str, tmp_path: Path) -> None:
    run = quiet(vectors_config(vectors, "data.validation=0.5", *RUINOUS), tmp_path / "run")
    result = run.results()
    assert result["epoch"] is None
    assert result["test"] == result["untrained"]
    assert result["test_last"]["map@r"] < result["test"]["map@r"]
    text = describe_run(run)
    assert "kept the network before training, which has the best validation score" in text
    warning = "warning: on the validation classes, no epoch is better than the network before training: train fewer"
    assert warning in text


def test_without_the_setting_a_worse_epoch_is_kept(vectors: str, tmp_path: Path) -> None:
    settings = ("data.validation=0.5", *RUINOUS, "select.untrained=false")
    run = quiet(vectors_config(vectors, *settings), tmp_path / "run")
    result = run.results()
    assert result["epoch"] is not None
    assert result["test"]["map@r"] < result["untrained"]["map@r"]
    assert "warning: MAP@R on the test classes is below that of the network before training: train" in describe_run(run)


def test_a_run_without_validation_classes_says_that_training_did_harm(vectors: str, tmp_path: Path) -> None:
    run = quiet(vectors_config(vectors, *RUINOUS), tmp_path / "run")
    assert run.results()["selected_by"] == "last"
    assert "warning: MAP@R on the test classes is below that of the raw features: train fewer" in describe_run(run)


def test_a_good_run_has_no_warning(tmp_path: Path) -> None:
    """Half of the dimensions are noise with a large variance, which training learns to ignore."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 10)
    signal = rng.normal(size=(40, 8))[labels] + 0.2 * rng.normal(size=(400, 8))
    features = np.concatenate([signal, 3 * rng.normal(size=(400, 8))], axis=1)
    names = tuple(f"kind {i:02d}" for i in range(40))
    data = Manifest(labels=labels, classes=names, split=["train"] * 400, features=features)
    save_manifest(data.split_by_class_order(), tmp_path / "noisy.npz")
    settings = ("data.validation=0.25", "steps=100", "optimizer.lr=0.01")
    run = quiet(vectors_config(str(tmp_path / "noisy.npz"), *settings), tmp_path / "run")
    result = run.results()
    assert result["epoch"] is not None
    assert result["test"]["map@r"] > max(result[kind]["map@r"] for kind in ("untrained", "raw"))
    assert "warning:" not in describe_run(run)
