"""The trainer calls its hooks, and a command opens its data once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nearfar.cli import main
from nearfar.training import splits
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer
from training_cases import configured


def test_hooks_see_every_step_and_epoch(vectors: str, tmp_path: Path) -> None:
    config = configured("features", vectors, "proxy-anchor")
    losses: list[float] = []
    epochs: list[int] = []
    trainer = Trainer(
        config,
        open_manifest(config.data),
        tmp_path,
        on_step_end=lambda _, result: losses.append(float(result.loss)),
        on_epoch_end=lambda _, entry: epochs.append(entry["epoch"]),
    )
    trainer.fit(progress=False)
    assert len(losses) == trainer.state.step == 12
    assert epochs == list(range(len(epochs)))
    assert len(epochs) > 1


def test_the_train_command_opens_its_data_once(vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    open_data = splits.open_data

    def count(source: Any, **options: Any) -> Any:
        opened.append(source)
        return open_data(source, **options)

    monkeypatch.setattr(splits, "open_data", count)
    out = tmp_path / "run"
    arguments = ["train", vectors, "--out", str(out), "--set", "steps=4", "--set", "batches.size=24"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert (out / "report.html").is_file()
    assert opened == [vectors]
