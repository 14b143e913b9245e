from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from nearfar.errors import NearfarError
from nearfar.training.checkpoint import load_state, save_state
from nearfar.training.randomness import random_state, set_random_state


def test_a_tree_survives_saving_and_loading(tmp_path: Path) -> None:
    shared = torch.arange(6.0).view(2, 3).T
    tree = {
        "numbers": [1, 2.5, -math.inf, True, None],
        "tuple": (1, (2, "x")),
        "state": {0: {"exp": shared, "again": shared}, 1: {}},
        "half": torch.ones(2, dtype=torch.bfloat16),
        "empty": torch.zeros(0, dtype=torch.int64),
        "a/b": 1,
    }
    save_state(tmp_path / "s", tree)
    back = load_state(tmp_path / "s")
    assert str(back) == str(tree)
    assert torch.equal(back["state"][0]["exp"], shared)
    assert back["half"].dtype == torch.bfloat16
    assert isinstance(back["tuple"], tuple)


def test_the_memory_layout_survives_saving_and_loading(tmp_path: Path) -> None:
    """A fused Adam takes the layout of its moments for that of the parameter, and errs silently where they differ."""
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    save_state(tmp_path / "s", [x, x.contiguous()])
    last, first = load_state(tmp_path / "s")
    assert last.stride() == x.stride()
    assert first.is_contiguous()
    assert torch.equal(last, first)


def test_values_that_need_pickle_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a/0: a checkpoint can hold tensors, .+ and dicts, got set"):
        save_state(tmp_path / "s", {"a": [set()]})
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s"
    save_state(path, {"a": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(NearfarError, match="damaged"):
        load_state(path)
    with pytest.raises(NearfarError, match="does not exist"):
        load_state(tmp_path / "absent")


def test_random_generators_are_restored() -> None:
    state = random_state()
    first = torch.rand(3)
    set_random_state(state)
    assert torch.equal(torch.rand(3), first)
