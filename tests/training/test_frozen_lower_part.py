"""`model.train_from` freezes the lower blocks of the network in training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nearfar.errors import NearfarError
from nearfar.training import train
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer
from training_cases import configured


@pytest.mark.parametrize(
    "extra", [(), ("micro_batch=7", "optimizer.layer_decay=0.5"), ("ema=0.5", "schedule.warm_up_epochs=1")]
)
def test_only_the_upper_blocks_change(extra: tuple[str, ...], drawings: str, tmp_path: Path) -> None:
    config = configured("pixels", drawings, "proxy-anchor", "model.train_from=block2", *extra)
    trainer = Trainer(config, open_manifest(config.data), tmp_path / "start", say=lambda _: None)
    start = {name: value.clone() for name, value in trainer.state.embedder.state_dict().items()}
    frozen = set(trainer.state.embedder.frozen_state())
    run = train(config, tmp_path / "run", say=lambda _: None)
    trained = load_file(run.path / "model.safetensors")
    for name, value in trained.items():
        if value.is_floating_point():
            assert torch.equal(value, start[name]) == (name in frozen), name
    assert run.embedder().is_split


def test_an_unknown_block_is_a_one_line_error(drawings: str, tmp_path: Path) -> None:
    config = configured("pixels", drawings, "proxy-anchor", "model.train_from=layer3")
    with pytest.raises(NearfarError, match=r"model: train_from=layer3 is not a block.* Known: stem, block1, block2"):
        train(config, tmp_path / "run", say=lambda _: None)
