"""Which device and which backend a run uses."""

from __future__ import annotations

import os

import click
import pytest
import torch
from click.testing import CliRunner
from torch.distributed.distributed_c10d import BackendConfig

from nearfar.cli import options
from nearfar.errors import NearfarError
from nearfar.training.distributed import process_group
from nearfar.training.distributed.process_group import DEVICE_VARIABLE, backend, local_device


def test_auto_follows_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE_VARIABLE, "cpu")
    assert local_device("auto") == torch.device("cpu")
    monkeypatch.setenv(DEVICE_VARIABLE, "nowhere")
    with pytest.raises(NearfarError, match="device=nowhere is unknown"):
        local_device("auto")


def test_mps_is_refused_in_one_line() -> None:
    with pytest.raises(NearfarError, match="device=mps is not supported"):
        local_device("mps")


def test_one_gpu_for_several_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(NearfarError, match="device=cuda:0 would put all processes on one GPU"):
        local_device("cuda:0")


@pytest.mark.parametrize("has_gpu", [False, True])
def test_cpu_tensors_always_have_a_backend(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(process_group.dist, "is_nccl_available", lambda: True)
    backends = BackendConfig(backend()).device_backend_map
    assert backends["cpu"] == "gloo"
    assert backends["cuda"] == ("nccl" if has_gpu else "gloo")


def test_device_option_applies_to_one_command_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)

    @click.command()
    @options.DEVICE
    def command() -> None:
        click.echo(os.environ.get(DEVICE_VARIABLE))

    assert options.DEVICE_VARIABLE == DEVICE_VARIABLE
    assert CliRunner().invoke(command, ["--device", "cuda:1"]).output == "cuda:1\n"
    assert DEVICE_VARIABLE not in os.environ
    assert CliRunner().invoke(command, []).output == "\n"
