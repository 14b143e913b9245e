"""Without a process group nothing changes, and unsupported settings are errors with advice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from nearfar.errors import NearfarError
from nearfar.losses import create
from nearfar.losses.proxies.sharded import ShardedProxies
from nearfar.training import train
from nearfar.training.distributed import process_group
from nearfar.training.distributed.gradient_buckets import GradientBuckets
from training_cases import configured


def test_functions_return_their_input() -> None:
    rows = torch.randn(3, 2, requires_grad=True)
    assert process_group.gather_parts(rows, 3) is rows
    assert process_group.local_part([4, 5, 6]) == [4, 5, 6]
    assert process_group.even_chunk_size(7, 2) == 2
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    with GradientBuckets([parameter]).reduce():
        pass
    assert parameter.grad.tolist() == [1, 1]
    assert (process_group.world_size(), process_group.rank(), process_group.is_main_process()) == (1, 0, True)
    assert process_group.broadcast_text(lambda: "text") == "text"
    process_group.check_ranks_agree("a", "")


def test_random_numbers_do_not_change() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with process_group.per_rank_random(0, 0) as together:
        first = torch.rand(1)
        with together():
            second = torch.rand(1)
    assert torch.equal(torch.cat([first, second, torch.rand(1)]), expected)


def test_a_restarted_process_resumes_its_run(vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured("features", vectors, "supcon", "save_every=0")
    train(config, tmp_path / "run", stop_after=5)
    said: list[str] = []
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(config, tmp_path / "run", say=said.append).finished
    assert said[0] == "resuming at step 4 of 12"  # the state before the step that was cut off


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("supcon", ["shard_proxies=true"], "shard_proxies=true needs a loss with proxies, got loss.name=supcon"),
        ("proxy-isa", ["shard_proxies=true"], "shard_proxies: the proxies of ProxyISALoss cannot be split"),
        ("mpa", ["shard_proxies=true", "optimizer.clip_norm=1"], "set optimizer.clip_value instead"),
        ("mpa", ["device=nowhere"], "device=nowhere is unknown"),
    ],
)
def test_unsupported_settings_are_errors(
    recipe: str, settings: list[str], message: str, vectors: str, tmp_path: Path
) -> None:
    with pytest.raises(NearfarError, match=message):
        train(configured("features", vectors, recipe, *settings), tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("name", ["arcface", "mpa", "proxy-anchor"])
def test_one_shard_equals_the_loss(name: str) -> None:
    whole = create(name, classes=5, dim=3)
    rows, labels = torch.randn(8, 3), torch.randint(0, 5, (8,))
    value = whole(rows, labels)
    split = ShardedProxies(whole)  # type: ignore[arg-type]
    assert split(rows, labels).item() == pytest.approx(value.item(), rel=1e-6)
    assert torch.equal(split.gather_classes(whole.proxies), split.select_classes(whole.proxies))
