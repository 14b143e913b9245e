"""Runs on tables in which a sample has several labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.config.merge import resolve
from nearfar.data import open_data
from nearfar.errors import NearfarError
from nearfar.losses import create
from nearfar.models import init_proxies_from_class_means
from nearfar.runs import CHECKPOINT
from nearfar.training import Config, train
from nearfar.training.checkpoint import load_state
from nearfar.training.components import check_label_sets
from nearfar.training.splits import describe_joined_labels


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of 24 images, each with the two labels of its color and its shape."""
    rows, rng = ["path,label,split"], np.random.default_rng(0)
    for i in range(24):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,color {i % 3}|shape {i % 4},{'train' if i < 16 else 'test'}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def configured(table: Path, *settings: str) -> Config:
    small = ["model.backbone=small", "model.pretrained=false", "images.crop=32", "model.dim=8", "steps=4", "threads=1"]
    return resolve(
        "files",
        recipe="proxy-anchor",
        settings=[f"data.source={table}", "batches.size=8", "data.separator='|'", *small, *settings],
    )


@pytest.mark.parametrize("proxies", ["random", "class-means"])
def test_proxy_anchor_trains_one_proxy_per_label(table: Path, tmp_path: Path, proxies: str) -> None:
    config = configured(table, f"model.proxies={proxies}", "metrics=[recall@1, graded-ndcg@5]")
    run = train(config, tmp_path / "run", say=lambda _: None)
    state = load_state(tmp_path / "run" / CHECKPOINT)
    assert state["loss"]["proxies"].shape == (7, 8)  # three colors and four shapes
    assert [entry["kind"] for entry in run.log()].count("step") > 0


def test_a_loss_for_one_label_per_sample_is_refused(table: Path) -> None:
    manifest = open_data(str(table), separator="|")
    with pytest.raises(
        NearfarError, match=r"loss\.name=arcface needs one label per sample, .* use loss\.name=proxy-anchor"
    ):
        check_label_sets(configured(table, "loss={name: arcface}"), manifest)
    with pytest.raises(NearfarError, match="shard_proxies=true needs one label per sample"):
        check_label_sets(configured(table, "shard_proxies=true"), manifest)


def test_labels_that_look_joined_are_pointed_out(table: Path) -> None:
    (warning,) = describe_joined_labels(open_data(str(table)))
    assert "12 of 12 class names contain '|' (for example 'color 0|shape 0')" in warning
    assert "data.separator='|'" in warning
    assert not describe_joined_labels(open_data(str(table), separator="|"))


def test_proxies_start_at_the_mean_of_all_samples_with_the_label() -> None:
    loss = create("proxy-anchor", classes=3, dim=2)
    unused = loss.proxies[2].clone()
    labels = torch.tensor([[1, 0, 0], [1, 1, 0]])
    init_proxies_from_class_means(loss, torch.tensor([[2.0, 0.0], [0.0, 3.0]]), labels)
    directions = torch.nn.functional.normalize(loss.proxies.detach())
    torch.testing.assert_close(directions[:2], torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, 1.0]]))
    assert torch.equal(loss.proxies[2], unused)
