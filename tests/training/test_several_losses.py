"""Runs with several losses: settings, log, optimizer and resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from nearfar.config.merge import resolve
from nearfar.errors import NearfarError
from nearfar.training import train
from nearfar.training.components import make_loss
from training_cases import configured

LOSSES = "loss=[{name: proxy-anchor, alpha: 16}, {name: contrastive, weight: 0.5}]"


def quiet(text: str) -> None:
    pass


def test_a_run_logs_each_loss_and_resumes_to_the_same_weights(vectors: str, tmp_path: Path) -> None:
    config = configured("features", vectors, "supcon", LOSSES, "save_every=0")
    assert config.loss_name == "proxy-anchor + contrastive"
    assert resolve("features", file=yaml.safe_load(config.to_yaml())) == config
    whole = train(config, tmp_path / "whole", say=quiet)
    train(config, tmp_path / "cut", say=quiet, stop_after=6)
    cut = train(config, tmp_path / "cut", say=quiet, resume=True)
    one, other = (load_file(run.path / "model.safetensors") for run in (whole, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)
    steps = [entry for entry in whole.log() if entry["kind"] == "step"]
    for entry in steps:
        parts = entry["loss/proxy-anchor"] + 0.5 * entry["loss/contrastive"]
        assert entry["loss"] == pytest.approx(parts, rel=1e-5)
        assert 0 < entry["active_pairs"] <= 1
    for key in ("loss", "loss/proxy-anchor", "loss/contrastive"):
        assert [e[key] for e in steps] == [e[key] for e in cut.log() if e["kind"] == "step"]


def test_a_later_setting_replaces_the_list(vectors: str) -> None:
    config = configured("features", vectors, "supcon", LOSSES, "loss.name=triplet")
    assert config.loss == {"name": "triplet"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("loss=[{name: supcn}]", "did you mean 'supcon'"),
        ("loss=[supcon]", "list of mappings, each with a name"),
        ("loss=[{name: supcon, weight: heavy}]", "weight of a loss must be a number, got 'heavy'"),
        ("loss.name=several", "needs a list of losses"),
    ],
)
def test_errors_are_one_line(vectors: str, setting: str, message: str) -> None:
    with pytest.raises(NearfarError, match=message):
        make_loss(configured("features", vectors, "supcon", setting), 4, 8)
