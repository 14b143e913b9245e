"""Losses over the samples of two processes equal the losses of one process, in values, gradients and parameters."""

from __future__ import annotations

import copy
import os
import re
import socket
import subprocess
import sys
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nearfar.distributed import gather_embeddings
from nearfar.losses import CrossBatchMemory, Loss, ProxyLoss, create, loss_class, names
from processes import exit_codes, start

SIZES = (5, 9)  # uneven batches
SAMPLES, CLASSES, DIM = sum(SIZES), 7, 6
GUIDE = Path(__file__).parent.parent / "docs" / "gpu.md"
PACKAGES = {"DistributedDataParallel": "torch", "Accelerate": "accelerate", "Fabric": "lightning_fabric"}


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels (two samples of each class) and weights of the whole batch."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, 8, generator=generator, dtype=torch.float64)
    return x, torch.arange(SAMPLES) % CLASSES, torch.rand(SAMPLES, generator=generator, dtype=torch.float64) + 0.1


def make(name: str) -> Loss:
    torch.manual_seed(0)
    options = {"classes": CLASSES, "dim": DIM} if issubclass(loss_class(name), ProxyLoss) else {}
    return create(name, **options).double()


def local(rank: int) -> slice:
    start = sum(SIZES[:rank])
    return slice(start, start + SIZES[rank])


def in_group(rank: int, store: str, check: object) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=len(SIZES), timeout=timedelta(seconds=60)
    )
    check(rank)  # type: ignore[operator]
    dist.destroy_process_group()


def on_two_processes(check: object, folder: Path) -> None:
    processes = [start(in_group, rank, str(folder / "store"), check) for rank in range(len(SIZES))]
    assert exit_codes(processes, seconds=90) == [0] * len(SIZES)


def compare_losses(rank: int) -> None:
    """Every loss with real DistributedDataParallel, against one process with the whole batch."""
    x, labels, weights = data()
    part = local(rank)
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, DIM)).double()
    for name in names():
        for w in (None, weights):
            if w is not None and name == "n-pair":
                continue  # weight and order select its anchors in the same way; one case suffices
            alone, expected = copy.deepcopy(network), make(name)
            value = expected(alone(x), labels, weights=w)
            value.backward()
            shared, loss = DistributedDataParallel(copy.deepcopy(network)), make(name)
            options = {} if w is None else {"weights": w[part]}
            found = loss(shared(x[part]), labels[part], across_processes=True, **options)
            found.backward()
            torch.testing.assert_close(found, value, rtol=0, atol=1e-10, msg=name)
            for ours, theirs in zip(shared.module.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-10, msg=name)
            for ours, theirs in zip(loss.parameters(), expected.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-10, msg=name)


def compare_memory(rank: int) -> None:
    """Cross-batch memory stores the samples of all processes, in the same order on each."""
    x, labels, _ = data()
    alone, shared = (CrossBatchMemory(create("contrastive"), size=20, dim=8).double() for _ in range(2))
    for step in range(3):
        value = alone(x + step, labels)
        found = shared(x[local(rank)] + step, labels[local(rank)], across_processes=True)
        torch.testing.assert_close(found, value, rtol=0, atol=1e-10)
    assert all(
        torch.equal(a, b) for a, b in zip(alone.state_dict().values(), shared.state_dict().values(), strict=True)
    )


def compare_different_losses(rank: int) -> None:
    """If each process computes its own loss from the gathered samples, the result is the gradient of their mean."""
    x, labels, weights = data()
    whole = x.clone().requires_grad_()
    (sum(create("supcon")(whole, labels, weights=weights**r) for r in range(len(SIZES))) / len(SIZES)).backward()
    mine = x[local(rank)].clone().requires_grad_()
    gathered, all_labels, w = gather_embeddings(mine, labels[local(rank)], weights=weights[local(rank)])
    create("supcon")(gathered, all_labels, weights=w**rank).backward()
    torch.testing.assert_close(mine.grad / len(SIZES), whole.grad[local(rank)], rtol=0, atol=1e-10)


def gather_odd_inputs(rank: int) -> None:
    """Multi-hot labels, a process without samples, equal sizes, and errors."""
    x, labels, _ = data()
    hot = nn.functional.one_hot(labels).bool()
    _, found = gather_embeddings(x[local(rank)], hot[local(rank)])
    assert torch.equal(found, hot)
    mine = x[:4].requires_grad_() if rank else x[:0].clone().requires_grad_()
    gathered, ids = gather_embeddings(mine, labels[: len(mine)])
    gathered.square().sum().backward()
    assert torch.equal(ids, labels[:4])
    assert mine.grad is not None
    assert torch.equal(mine.grad, 4 * mine)  # 2 x from each of two processes
    even, _ = gather_embeddings(x[7 * rank :][:7], labels[7 * rank :][:7], same_size=True)
    assert torch.equal(even, x)
    with pytest.raises(ValueError, match="ref_emb cannot be combined with across_processes"):
        create("supcon")(x, labels, ref_emb=x, ref_labels=labels, across_processes=True)
    with pytest.raises(ValueError, match="labels must be a tensor"):
        gather_embeddings(x, ["cat"] * len(x))  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="labels has 3 entries but embeddings has 14"):
        gather_embeddings(x, labels[:3])


@pytest.mark.parametrize(
    "check", [compare_losses, compare_memory, compare_different_losses, gather_odd_inputs], ids=lambda c: c.__name__
)
def test_two_processes(check: object, tmp_path: Path) -> None:
    on_two_processes(check, tmp_path)


def test_one_process_gathers_nothing() -> None:
    x, labels, weights = data()
    assert all(a is b for a, b in zip(gather_embeddings(x, labels), (x, labels), strict=True))
    assert torch.equal(
        create("supcon")(x, labels, weights=weights, across_processes=True),
        create("supcon")(x, labels, weights=weights),
    )


def test_planted_error_is_found(tmp_path: Path) -> None:
    """The comparison fails if gradients of other processes are dropped, the usual error."""

    def broken(rank: int) -> None:
        x, labels, _ = data()
        gathered, all_labels = gather_embeddings(x[local(rank)].requires_grad_(), labels[local(rank)])
        whole = x.clone().requires_grad_()
        create("supcon")(whole, labels).backward()
        mine = gathered[local(rank)].detach().requires_grad_()
        create("supcon")(
            torch.cat([mine if r == rank else gathered[local(r)].detach() for r in range(2)]), all_labels
        ).backward()
        torch.testing.assert_close(mine.grad / 2, whole.grad[local(rank)], rtol=0, atol=1e-10)

    processes = [start(in_group, rank, str(tmp_path / "store"), broken) for rank in range(len(SIZES))]
    assert exit_codes(processes, seconds=60) == [1, 1]


@pytest.mark.parametrize("name", PACKAGES)
def test_snippet_equals_one_process(name: str, tmp_path: Path) -> None:
    """The script of the guide ends with the same weights on two processes as on one."""
    if find_spec(PACKAGES[name]) is None:
        pytest.skip(f"NOT PROVEN: the snippet for {name} was not run, because {PACKAGES[name]} is not installed")
    blocks = re.findall(r"^```python\n(# [^\n]*\n.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if block.startswith(f"# {name}"))
    script = tmp_path / "script.py"
    script.write_text(code + '\nif __name__ == "__main__":\n    main()\n')
    weights = []
    for world in (1, 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "ACCELERATE_USE_CPU": "true"}
        out = tmp_path / f"weights-{world}.pt"
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(out)],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            errors = [process.communicate(timeout=120)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert [process.returncode for process in processes] == [0] * world, errors
        weights.append(torch.load(out, weights_only=True))
    one, two = weights
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=0, atol=1e-10, msg=f"{name}: {key}")
