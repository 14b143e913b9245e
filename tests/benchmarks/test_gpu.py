"""The GPU report, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import gpu
from benchmarks.proxy_speed import PROXY_LOSSES
from benchmarks.speed import LOSSES
from nearfar.config import recipes
from nearfar.losses import names


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--recipes", "prism", "--batch", "40", "--repeats", "1", "--side", "32", "--images", "2"]
    assert gpu.main(["--device", "cpu", "--only", "supcon", "proxy-anchor", *options]) == 0
    text = capsys.readouterr().out
    assert "supcon                     ok" in text
    speed = {line.split()[0]: line for line in text.splitlines() if "pytorch-metric-learning" in line}
    assert set(speed) == {"supcon", "proxy-anchor"}
    assert f"{'prism':26s} Recall@1" in text
    assert "equal to 1e-10 on two CPU processes with gloo" in text
    assert "0 failures" in text


def test_every_loss_is_checked() -> None:
    assert {label.split()[0] for label in [*LOSSES, *PROXY_LOSSES]} == set(names())


def test_recipes_are_known() -> None:
    assert set(gpu.RECIPES) <= set(recipes.names())


def test_a_wrong_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([1.0, 1.01])
    monkeypatch.setattr(gpu, "step", lambda *_: (torch.tensor(next(values, 1.0)), torch.ones(2)))
    assert gpu.check_loss("supcon", torch.device("cpu"), 20) == "value differs by 1.0e-02"


def test_a_wrong_value_with_weights_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10))
    step = gpu.step

    def wrong_on_the_device(loss: Any, x: Tensor, labels: Tensor, weights: Tensor | None = None) -> Any:
        number = next(calls)  # CPU, device and count of waits without weights, then CPU and device with weights
        return step(loss, x, labels, None if number == 4 else weights)

    monkeypatch.setattr(gpu, "step", wrong_on_the_device)
    assert "gradient with weights differs" in gpu.check_loss("supcon", torch.device("cpu"), 20)


def test_a_wrong_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SAME_RECALL", -1.0)
    line, problem = gpu.check_training("supcon", torch.device("cpu"))
    assert line.startswith("Recall@1")
    assert "on the CPU" in problem


def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert gpu.main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith("there is no CUDA GPU: ")
