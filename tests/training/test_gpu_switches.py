"""The settings that set PyTorch's switches for GPUs, and the memory layout of images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nearfar
from nearfar.config.schema import Config
from nearfar.training.gpu_switches import set_gpu_switches
from own_parts import BarImages


@pytest.fixture
def _restored() -> Iterator[None]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    yield
    cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


@pytest.mark.usefixtures("_restored")
def test_defaults_are_those_of_pytorch() -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    set_gpu_switches(Config())
    assert (cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32) == before


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("tf32", "expected"), [("none", (False, False)), ("all", (True, True))])
def test_settings(tf32: str, expected: tuple[bool, bool]) -> None:
    set_gpu_switches(Config(tf32=tf32, cudnn_benchmark=True))
    assert torch.backends.cudnn.benchmark
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == expected


class Recorder(nn.Module):
    """A network that records whether its inputs and weights have the usual layout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 2)
        self.last: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.last = [tensor.is_contiguous() for tensor in (x, self.conv.weight)]
        y: Tensor = self.conv(x).mean((2, 3))
        return y


@pytest.mark.parametrize("channels_last", [True, False])
def test_layout_of_images(channels_last: bool, tmp_path: Path) -> None:
    network = Recorder()
    settings = {"steps": 2, "batch_size": 12, "model.channels_last": channels_last}
    run = nearfar.fit(network, BarImages(), out=tmp_path / "run", say=lambda _: None, progress=False, **settings)
    assert network.last == [not channels_last] * 2
    assert run.embedder().channels_last == channels_last
