"""0 fine, 1 an error in one line, 2 wrong usage, 130 interrupted; see docs/trust.md."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from nearfar.cli import main

CODES = [
    (["--version"], 0),
    (["recipes"], 0),
    (["data", "/nowhere/at/all"], 1),
    (["train", "/nowhere/at/all"], 1),
    (["train", "sketches", "--set", "optimizer.momentun=1"], 1),
    (["losses", "tripelt"], 1),
    (["recipes", "tripelt"], 1),
    (["train", "--no-such-option"], 2),
    (["no-such-command"], 2),
    (["eval", "/nowhere/at/all"], 2),
    (["demo", "--steps", "0"], 2),
]


@pytest.mark.parametrize(("words", "code"), CODES, ids=[" ".join(words) for words, _ in CODES])
def test_exit_code(words: list[str], code: int) -> None:
    found = CliRunner().invoke(main, words)
    assert found.exit_code == code
    assert "Traceback" not in found.output
    if code == 1:
        assert found.output.startswith("Error: ")
        assert len(found.output.splitlines()) == 1


def test_interruption_before_training_says_how_to_start(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nearfar.training.trainer.Trainer.__init__", interrupt)
    found = CliRunner().invoke(main, ["train", vectors, "--out", str(tmp_path / "run")])
    assert found.exit_code == 130
    assert (
        f"Interrupted before training started: run the same command again to start {tmp_path / 'run'}" in found.stderr
    )


def test_interrupted_training_is_130_and_goes_on(vectors: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = ["steps=1000000", "log_every=1", "save_every=0", "threads=1", "model.dim=8", "batches.size=24"]
    words = [word for each in settings for word in ("--set", each)]
    command = [sys.executable, "-m", "nearfar", "train", vectors, "--recipe", "triplet", "--out", str(out), *words]
    # a shell that starts this in the background lets its children ignore Ctrl-C
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeds)
    while not (out / "checkpoint" / "previous.safetensors").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=600)[1]
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "--resume" in errors
    assert not list(out.rglob(".*.part"))
