"""Proxy-ISA: its schedule, its state over many steps against a slow one, and its identities."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from losses.proxy_oracles import CLASSES, DIM, SlowISA
from nearfar.losses import ProxyISALoss, create
from nearfar.losses.proxies.class_memory import ClassMemory
from nearfar.losses.proxy_isa import progress

# a class learns within tens of samples, so that every branch is taken in a short run
FAST = {"volume": 8.0, "hardness": 0.5, "sensitivity": 0.2, "margin": 0.05, "alpha": 8.0, "memory_size": 25}
VARIANTS = [
    {},
    {"positive_penalty": "none", "negative_penalty": "none"},
    {"positive_penalty": "none"},
    {"positive_penalty": "inverse"},
    {"positive_penalty": "nu"},
    {"base": "proxy-nca"},
    {"base": "proxy-nca", "nca_scale": 6.0},
    {"base": "proxy-nca", "positive_penalty": "nu", "negative_penalty": "none"},
    {"init_learned_sim": 0.4, "memory_epoch": 0, "filter_epoch": 1},
]


def make(**options: Any) -> ProxyISALoss:
    loss = create("proxy-isa", **({"classes": CLASSES, "dim": DIM} | options)).double()
    assert isinstance(loss, ProxyISALoss)
    return loss


def stream(steps: int, seed: int = 0) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Batches of changing size, mostly near their class's center, some with weights and weights of 0."""
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(CLASSES, DIM, generator=g, dtype=torch.float64)
    out: list[tuple[Tensor, Tensor, Tensor | None]] = []
    for step in range(steps):
        n = int(torch.randint(1, 12, (), generator=g))
        labels = torch.randint(CLASSES - 1, (n,), generator=g)
        x = centers[labels] + 0.8 * torch.randn(n, DIM, generator=g, dtype=torch.float64)
        weights = torch.rand(n, generator=g, dtype=torch.float64) if step % 3 == 0 else None
        if weights is not None and n > 1:
            weights[0] = 0.0
        out.append((x, labels, weights))
    return out


def now(seen: list[int], learned: float = 0.1, volume: float = 100.0) -> Any:
    full = torch.full((len(seen),), learned, dtype=torch.float64)
    return progress(torch.tensor(seen), full, volume=volume, sensitivity=0.9, margin=0.1, tau=1.5)


def test_schedule_limits_and_order() -> None:
    at = now([*range(2000), 10**9])
    assert at.effective[0] == 0
    assert at.nu[0] == 1
    assert at.sigma[0] == 1
    assert at.sigma[-1] == pytest.approx(1 / (1 + math.log(101)), abs=1e-12)
    assert at.nu[-1] == pytest.approx(1 / (1 + math.log(101)), abs=1e-12)
    assert (at.sigma.diff() <= 1e-15).all()
    assert (at.nu.diff() <= 0).all()
    assert (at.sigma >= at.nu).all()
    beta = 0.99
    torch.testing.assert_close(at.effective[1:2000], 1 + beta * at.effective[:1999], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(at.outlier, at.learned - at.eta)
    assert now([3], volume=1e6).sigma.isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_many_steps_are_those_of_the_slow_loss(variant: dict[str, Any]) -> None:
    """Loss, gradients and every state entry after each step, through all epochs and many times round the memory."""
    loss = make(**(FAST | variant))
    slow = SlowISA(CLASSES, **(FAST | variant))
    with torch.no_grad():  # proxies that are already near their classes, but not all
        loss.proxies[:4] = stream(1)[0][0][:1] + torch.randn(4, DIM, dtype=torch.float64)
    outliers = 0
    for step, (x, labels, weights) in enumerate(stream(60)):
        if step % 10 == 0:
            loss.start_epoch(step // 10)
            slow.epoch = step // 10
        leaf, slow_leaf = x.clone().requires_grad_(), x.clone().requires_grad_()
        slow_proxies = loss.proxies.detach().clone().requires_grad_()
        before = sum(slow.seen)
        wanted = slow(slow_leaf, labels, slow_proxies, weights)
        value = loss(leaf, labels, weights=weights)
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-10)
        value.backward()
        wanted.backward()
        torch.testing.assert_close(leaf.grad, slow_leaf.grad, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(loss.proxies.grad, slow_proxies.grad, rtol=1e-8, atol=1e-9)

        assert loss.seen.tolist() == slow.seen
        torch.testing.assert_close(loss.learned, torch.tensor(slow.learned, dtype=torch.float64), rtol=0, atol=1e-11)
        kept = contents(loss.memory)
        assert [y for _, y in kept] == [y for _, y in slow.memory]
        for (row, _), (slow_row, _) in zip(kept, slow.memory, strict=True):
            assert row == pytest.approx(slow_row.tolist(), abs=1e-14)
        check_sums(loss.memory)
        alive = len(x) if weights is None else int((weights > 0).sum())
        outliers += alive - (sum(slow.seen) - before)

        with torch.no_grad():  # a step of training, so that similarities rise
            loss.proxies -= 0.05 * loss.proxies.grad
        loss.proxies.grad = None
    assert sum(slow.seen) > 3 * FAST["memory_size"]
    assert outliers > 5, "the filter was never used"


def contents(memory: ClassMemory) -> list[tuple[tuple[float, ...], int]]:
    """Rows and ids, the oldest first."""
    n, position = int(memory.counts.sum()), int(memory.position)
    order = [(position - n + i) % memory.size for i in range(n)]
    return [(tuple(memory.rows[i].tolist()), int(memory.labels[i])) for i in order]


def check_sums(memory: ClassMemory) -> None:
    """Bit for bit those of a memory that counts its rows afresh."""
    fresh = copy.deepcopy(memory)
    fresh.recount()
    assert torch.equal(fresh.sums, memory.sums)
    assert torch.equal(fresh.counts, memory.counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_does_not_drift(dtype: torch.dtype) -> None:
    memory = ClassMemory(classes=20, dim=8, size=1000).to(dtype)
    g = torch.Generator().manual_seed(1)
    for step in range(1500):
        x = torch.nn.functional.normalize(torch.randn(128, 8, generator=g, dtype=dtype))
        y = torch.randint(20, (128,), generator=g)
        memory.add(x, y, torch.rand(128, generator=g) < (step % 5) / 4)
    assert int(memory.counts.sum()) == 1000
    check_sums(memory)
    labels, vectors = torch.arange(20), torch.randn(20, 8, dtype=torch.float64)
    direct = [memory.rows[memory.labels == c].double().mean(0) @ vectors[c] for c in range(20)]
    torch.testing.assert_close(memory.mean_dot(labels, vectors), torch.stack(direct), rtol=1e-10, atol=1e-10)


def test_memory_keeps_nothing_where_nothing_is_kept() -> None:
    memory = ClassMemory(classes=2, dim=2, size=3)
    memory.add(torch.eye(2), torch.tensor([0, 1]), torch.tensor([False, False]))
    assert contents(memory) == []
    assert memory.mean_dot(torch.tensor([0, 1]), torch.ones(2, 2)).tolist() == [0, 0]
    memory.add(torch.eye(2), torch.tensor([0, 1]), torch.tensor([False, True]))
    assert contents(memory) == [((0.0, 1.0), 1)]


def test_narrower_rows_keep_their_sums() -> None:
    loss = make(**FAST, memory_epoch=0)
    for x, labels, weights in stream(10):
        loss(x, labels, weights=weights)
    loss.float()
    assert loss.memory.rows.dtype == torch.float32
    check_sums(loss.memory)
    loss.double()
    check_sums(loss.memory)


def test_memory_smaller_than_a_batch_is_an_error_and_changes_nothing() -> None:
    loss = make(memory_size=4)
    state = copy.deepcopy(loss.state_dict())
    x, labels = torch.randn(5, DIM), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(
        ValueError,
        match=r"memory_size \(loss proxy-isa\) or size \(pacer prism\) must be at least the batch size 5, got 4",
    ):
        loss(x, labels)
    assert all(torch.equal(value, state[key]) for key, value in loss.state_dict().items())
    loss.eval()(x, labels)


@pytest.mark.parametrize("at", [3, 25, 47])
def test_saved_and_resumed_is_never_stopped(at: int, tmp_path: Any) -> None:
    torch.manual_seed(3)
    straight = make(**FAST).float()
    resumed = make(**FAST).float()
    resumed.load_state_dict(straight.state_dict())
    runs: list[list[Tensor]] = [[], []]
    for which, loss in enumerate((straight, resumed)):
        adam = torch.optim.Adam(loss.parameter_groups(1e-3, 10))
        for step, (x, labels, weights) in enumerate(stream(60)):
            if which == 1 and step == at:
                torch.save([loss.state_dict(), adam.state_dict()], tmp_path / "checkpoint")
                loss = make(**FAST).float()
                adam = torch.optim.Adam(loss.parameter_groups(1e-3, 10))
                state, moments = torch.load(tmp_path / "checkpoint", weights_only=True)
                loss.load_state_dict(state, strict=True)
                adam.load_state_dict(moments)
            if step % 10 == 0:
                loss.start_epoch(step // 10)
            adam.zero_grad()
            value = loss(x.float(), labels, weights=weights)
            value.backward()
            adam.step()
            runs[which].append(value.detach())
        resumed = loss
    assert torch.equal(torch.stack(runs[0]), torch.stack(runs[1]))
    for key, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key
    assert torch.equal(straight.memory.sums, resumed.memory.sums)
    assert torch.equal(straight.memory.counts, resumed.memory.counts)


def test_state_is_in_the_state_dict() -> None:
    wanted = {"proxies", "seen", "learned", "epoch", "memory.rows", "memory.labels", "memory.position"}
    assert set(make(memory_size=9).state_dict()) == wanted


def test_state_changes_in_train_mode_only() -> None:
    loss = make(**FAST)
    loss.start_epoch(4)
    for x, labels, weights in stream(20):
        loss(x, labels, weights=weights)
    state = copy.deepcopy(loss.state_dict())
    x, labels, weights = stream(21)[-1]
    value = loss.eval()(x, labels, weights=weights)
    assert all(torch.equal(entry, state[key]) for key, entry in loss.state_dict().items())
    assert torch.equal(loss.train()(x, labels, weights=weights), value), "the loss is that of the state before"
    assert not torch.equal(loss.seen, state["seen"])


def test_epochs_switch_memory_and_filter() -> None:
    loss = make(**FAST)
    x = torch.cat([loss.proxies.detach()[:2], -loss.proxies.detach()[:2]])
    labels = torch.tensor([0, 1, 0, 1])
    sizes, counts = [], []
    for epoch in range(5):
        loss.start_epoch(epoch)
        loss(x, labels)
        sizes.append(int(loss.memory.counts.sum()))
        counts.append(int(loss.seen.sum()))
    assert sizes == [0, 0, 4, 6, 8]  # from epoch 3 on the two opposite to their proxy are outliers
    assert counts == [4, 8, 12, 14, 16]
    with pytest.raises(ValueError, match="-1"):
        loss.start_epoch(-1)


@pytest.mark.parametrize("weighted", [False, True])
def test_without_weighting_and_at_the_start_it_is_proxy_anchor(weighted: bool) -> None:
    x, labels, _ = max(stream(20), key=lambda batch: len(batch[0]))
    weights = torch.rand(len(x), dtype=torch.float64) if weighted else None
    anchor = create("proxy-anchor", classes=CLASSES, dim=DIM).double()
    start = make(memory_size=100)
    unweighted = make(memory_size=100, positive_penalty="none", negative_penalty="none")
    unweighted.seen += 500
    unweighted.start_epoch(9)
    for loss in (start, unweighted):
        with torch.no_grad():
            loss.proxies.copy_(anchor.proxies)
        torch.testing.assert_close(
            loss(x, labels, weights=weights), anchor(x, labels, weights=weights), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize(
    ("scale", "options"), [(1.0, {}), (6.0, {"scale": 6.0}), (6.0, {"scale": 12.0, "form": "cosine"})]
)
def test_proxy_nca_base_at_the_start_is_proxy_nca(scale: float, options: dict[str, Any]) -> None:
    """The baseline of the released code has scale 12 on cosines, which is 6 on squared distances."""
    x, labels, _ = max(stream(20), key=lambda batch: len(batch[0]))
    loss = make(base="proxy-nca", nca_scale=scale, memory_size=100)
    nca = create("proxy-nca", classes=CLASSES, dim=DIM, **options).double()
    with torch.no_grad():
        nca.proxies.copy_(loss.proxies)
    torch.testing.assert_close(loss(x, labels), nca(x, labels), rtol=1e-12, atol=1e-12)


def test_gradient_is_that_of_constant_weights() -> None:
    loss = make(**FAST).eval()
    loss.seen += torch.tensor([3, 8, 13, 18, 23, 28])
    loss.learned.fill_(0.2)
    loss.start_epoch(5)
    x, labels, _ = max(stream(20), key=lambda batch: len(batch[0]))
    positive, negative, _ = loss.similarity_weights(loss.class_similarities(x, labels))
    assert len(positive.unique()) > 2
    assert len(negative.unique()) > 2
    assert torch.autograd.gradcheck(
        lambda x, _: loss.anchor(loss.class_similarities(x, labels), positive, negative),
        (x.requires_grad_(), loss.proxies),
    )
    got = torch.autograd.grad(loss(x, labels), [x, loss.proxies])
    wanted = torch.autograd.grad(loss.anchor(loss.class_similarities(x, labels), positive, negative), [x, loss.proxies])
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_training_compiles_to_one_graph_that_updates_the_state() -> None:
    torch._dynamo.reset()
    loss = make(**FAST)
    other = copy.deepcopy(loss)
    compiled = torch.compile(other, fullgraph=True, backend="eager", dynamic=False)
    x, labels, _ = max(stream(20), key=lambda batch: len(batch[0]))
    for epoch in range(6):  # epochs are tensors: no epoch compiles again
        loss.start_epoch(epoch)
        other.start_epoch(epoch)
        with torch.compiler.set_stance("fail_on_recompile" if epoch else "default"):
            value = compiled(x, labels)
        torch.testing.assert_close(value, loss(x, labels))
        for key, entry in loss.state_dict().items():
            torch.testing.assert_close(other.state_dict()[key], entry)
    check_sums(other.memory)


def test_counting_again_leaves_rows_alone() -> None:
    memory = ClassMemory(classes=3, dim=2, size=4).double()
    rows = torch.tensor([[0.6, 0.8], [1.0, 0.0]], dtype=torch.float64)
    memory.add(rows, torch.tensor([0, 2]), torch.tensor([True, True]))
    before, sums = memory.rows.clone(), memory.sums.clone()
    memory.recount()
    assert torch.equal(memory.rows, before)
    assert torch.equal(memory.sums, sums)
