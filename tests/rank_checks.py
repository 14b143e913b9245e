"""Checks that run on every process of a group: several processes compute what one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfar.errors import NearfarError
from nearfar.losses import create
from nearfar.losses.proxies.sharded import SHARDABLE, ShardedProxies
from nearfar.training import projection
from nearfar.training.compactness import measure_compactness
from nearfar.training.distributed import process_group
from nearfar.training.distributed.gradient_buckets import GradientBuckets
from nearfar.training.distributed.sync_norm import SyncedBatchNorm, sync_batch_norms

NAMES = {
    *("normalized-softmax", "cosface", "arcface", "subcenter-arcface", "proxy-nca"),
    *("soft-triple", "mpa-dw", "mpa-ap", "proxy-anchor", "mpa"),
}


def parts_are_gathered_in_order_with_their_gradients() -> None:
    for total in (7, 8, process_group.world_size()):
        whole = torch.randn(total, 3, generator=torch.Generator().manual_seed(total))
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            own = process_group.local_part(whole.to(dtype)).requires_grad_()
            found = process_group.gather_parts(own, total)
            assert torch.equal(found, whole.to(dtype))
            (found * torch.arange(total)[:, None]).sum().backward()
            assert torch.equal(own.grad, process_group.local_part(torch.arange(total))[:, None].expand(-1, 3).to(dtype))


def gradients_are_summed() -> None:
    parameters = [nn.Parameter(torch.zeros(n, 2)) for n in (3, 1, 4)]
    for i, p in enumerate(parameters[:2]):
        p.grad = torch.full_like(p, process_group.rank() + i)
    with GradientBuckets(parameters).reduce():
        pass
    total = sum(range(process_group.world_size()))
    assert [p.grad[0, 0].item() for p in parameters[:2]] == [total, total + process_group.world_size()]
    assert parameters[2].grad is None
    with GradientBuckets(parameters[:1], mean=True).reduce():
        pass
    assert parameters[0].grad[0, 0] == total


def gradients_are_summed_during_the_backward_pass() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4, dtype=torch.float64) for _ in range(4)]
    unused = nn.Linear(4, 4, dtype=torch.float64)
    layers[1].requires_grad_(False)
    network = nn.Sequential(*layers)
    x = torch.randn(6, 4, dtype=torch.float64)
    events: list[str] = []
    for name, p in network.named_parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda _, name=name: events.append(name))
    all_reduce = dist.all_reduce

    def record(*args: Any, **options: Any) -> Any:
        events.append("sum")
        return all_reduce(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projection, "GROUP_SIZE", 20)  # a layer has 20 parameters
        buckets = GradientBuckets([*unused.parameters(), *network.parameters()])
        patch.setattr(dist, "all_reduce", record)
        for frozen in (False, True, False):
            layers[3].requires_grad_(not frozen)
            network.zero_grad()
            network(process_group.local_part(x)).square().sum().backward()  # not reduced
            events.clear()
            with buckets.reduce():
                network(process_group.local_part(x)).square().sum().backward()
            assert events.count("sum") == (2 if frozen else 3)
            assert events.index("sum") < events.index("0.weight")
            trained = [p for p in network.parameters() if p.requires_grad]
            expected = torch.autograd.grad(2 * network(x).square().sum(), trained)
            for p, gradient in zip(trained, expected, strict=True):
                close(p.grad, gradient)
    assert unused.weight.grad is None


def batch_norms_use_the_global_batch() -> None:
    for shape, options in (
        ((7, 4, 3, 2), {}),
        ((7, 4), {"momentum": None}),
        ((8, 4, 5, 5), {"affine": False, "eps": 1e-3}),
        ((7, 4, 3, 3), {"track_running_stats": False}),
    ):
        generator = torch.Generator().manual_seed(1)
        x = 5 + torch.randn(shape, generator=generator, dtype=torch.float64)
        g = torch.randn(shape, generator=generator, dtype=torch.float64)
        kind = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
        plain, synced = (nn.Sequential(kind(4, **options)).double() for _ in range(2))
        sync_batch_norms(synced)
        assert isinstance(synced[0], SyncedBatchNorm)
        for norm in (plain, synced):
            with torch.no_grad():
                for i, p in enumerate(norm.parameters()):
                    p.add_(torch.arange(4) / (i + 2))
        for _ in range(2):
            whole, own = x.clone().requires_grad_(), process_group.local_part(x).clone().requires_grad_()
            expected, found = plain(whole), synced(own)
            expected.backward(g)
            found.backward(process_group.local_part(g))
        with GradientBuckets(synced.parameters()).reduce():
            pass
        close(found, process_group.local_part(expected))
        close(own.grad, process_group.local_part(whole.grad))
        for p, q in zip(synced.parameters(), plain.parameters(), strict=True):
            close(p.grad, q.grad)
        for name, value in plain.state_dict().items():
            close(synced.state_dict()[name], value)
        if plain[0].track_running_stats:  # otherwise the batch's own also in evaluation, which is not synced
            close(synced.eval()(own), process_group.local_part(plain.eval()(whole)))


def random_numbers_per_process_and_shared() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with process_group.per_rank_random(0, 5) as together:
        own = torch.rand(1 + process_group.rank())[:1]
        with together():
            first = torch.rand(2)
        again = torch.rand(1)
        with together():
            second = torch.rand(1)
    assert torch.equal(torch.cat([first, second, torch.rand(1)]), expected)
    everybody = process_group.gather_parts(torch.stack([own, again], 1), process_group.world_size())
    assert len(everybody.unique()) == 2 * process_group.world_size()


def the_main_process_broadcasts() -> None:
    assert process_group.broadcast_text(lambda: f"ä {process_group.rank()}") == "ä 0"
    tensor = torch.full((2, 3), float(process_group.rank())).T
    process_group.broadcast_from_main([tensor])
    assert torch.equal(tensor, torch.zeros(3, 2))
    process_group.check_ranks_agree("a", "")
    with pytest.raises(NearfarError, match="the processes have different settings or states: start again"):
        process_group.check_ranks_agree(f"{process_group.is_main_process()}", "start again")


def every_process_has_equally_many_chunks() -> None:
    for total in range(process_group.world_size(), 40):
        for size in range(1, 12):
            parts = process_group.even_chunk_size(total, size)
            assert size <= parts <= size + 4
            counts = {
                -(-len(range(total)[r :: process_group.world_size()]) // parts)
                for r in range(process_group.world_size())
            }
            assert len(counts) == 1


def sharded_proxies_equal_the_loss() -> None:
    assert {type(create(name, classes=9, dim=4)) for name in NAMES} == set(SHARDABLE)
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(10, 4, generator=generator, dtype=torch.float64)
    several = torch.randint(0, 9, (10,), generator=generator)
    weights = torch.rand(10, generator=generator, dtype=torch.float64)
    weights[3] = 0
    for name in sorted(NAMES):
        for labels in (several, torch.full((10,), 5)):
            for each in (None, weights, torch.zeros(10)):
                torch.manual_seed(4)
                whole = create(name, classes=9, dim=4).double()
                expected, found = rows.clone().requires_grad_(), rows.clone().requires_grad_()
                value = whole(expected, labels, weights=each)
                value.backward()
                gradient = whole.proxies.grad
                torch.manual_seed(4)
                split = ShardedProxies(create(name, classes=9, dim=4).double())
                assert len(split.loss.proxies) < 9
                same = split(found, labels, weights=each)
                same.backward()
                close(same, value)
                close(found.grad, expected.grad)
                close(split.loss.proxies.grad, split.select_classes(gradient))
                if process_group.is_main_process():
                    close(split.gather_classes(split.loss.proxies.detach()), whole.proxies.detach())
                else:
                    split.gather_classes(split.loss.proxies.detach())
    with pytest.raises(ValueError, match="processes need at least two classes each, got classes=3"):
        ShardedProxies(create("arcface", classes=3, dim=4))


def compactness_counts_the_proxies_of_all_processes() -> None:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))
    torch.manual_seed(4)  # all processes create equal losses
    for name in ("proxy-anchor", "mpa"):
        whole = create(name, classes=9, dim=4)
        expected = measure_compactness(x, whole)
        found = measure_compactness(x, ShardedProxies(whole))
        assert len(whole.proxies) < 9
        assert found == pytest.approx(expected, abs=1e-6)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


CHECKS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        parts_are_gathered_in_order_with_their_gradients,
        gradients_are_summed,
        gradients_are_summed_during_the_backward_pass,
        batch_norms_use_the_global_batch,
        random_numbers_per_process_and_shared,
        the_main_process_broadcasts,
        every_process_has_equally_many_chunks,
        sharded_proxies_equal_the_loss,
        compactness_counts_the_proxies_of_all_processes,
    )
}
