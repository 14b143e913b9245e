"""The GPU report, on the CPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--batch", "40", "--repeats", "1", "--side", "32", "--images", "2"]
    assert gpu.main(["--device", "cpu", "--only", "supcon", "proxy-anchor", *options]) == 0
    text = capsys.readouterr().out
    assert "supcon                     ok" in text
    assert "equal to 1e-10 on two CPU processes with gloo" in text
    assert "0 failures" in text


def test_a_wrong_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([1.0, 1.01])
    monkeypatch.setattr(gpu, "step", lambda loss, x, labels: (torch.tensor(next(values, 1.0)), torch.ones(2)))
    assert "value differs by 1.0e-02" in gpu.check_loss("supcon", torch.device("cpu"), 20)


def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "there is no CUDA GPU" in capsys.readouterr().err
