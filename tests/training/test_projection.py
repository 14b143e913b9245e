"""The projection term, and PROFS as a whole on a small network that really learns."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nearfar.losses import create
from nearfar.samplers import Profs
from nearfar.training import projection as module
from nearfar.training.projection import Projection


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


LABELS = torch.arange(12).repeat_interleave(5)
DATA = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))[LABELS] + 0.5 * torch.randn(
    60, 6, generator=torch.Generator().manual_seed(2)
)


class Small:
    """A training run that a person reads top to bottom."""

    def __init__(self, loss: str = "contrastive", *, weight: float = 0.1, plain: bool = False, **batches: Any) -> None:
        self.network, self.loss, self.plain = network(), create(loss), plain
        self.batches = Profs(LABELS, **({"classes": 6, "per_class": 2, "seed": 3} | batches))
        self.projection = Projection(self.network.parameters(), weight=weight)
        parameters = [*self.network.parameters(), *self.loss.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=0.02, weight_decay=1e-3)
        self.cycle, self.values = -1, list[float]()
        self.seen: list[tuple[int, list[int]]] = []

    def steps(self, count: int) -> Small:
        stream = (batch for _ in range(count) for batch in self.batches)
        for _ in range(count):
            self.step(next(stream))
        return self

    def step(self, batch: list[int]) -> None:
        if self.batches.cycle != self.cycle:
            self.projection.snapshot()
            self.cycle = self.batches.cycle
        x = self.network(DATA[batch])
        n = self.batches.representatives
        if self.plain:  # the ordinary loss: the first of a class is the anchor, the second its positive
            order = [*range(n, len(batch)), *range(n)]
            value = self.loss(x[order], LABELS[batch][order])
        else:
            value = self.loss(x, LABELS[batch], representatives=n)
        self.optimizer.zero_grad()
        value.backward()
        self.projection.add_to_gradients()
        self.optimizer.step()
        self.batches.observe(x.detach(), value.detach())
        self.values.append(value.item())
        self.seen.append((self.batches.cycle, batch[:n]))

    def state(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in ("network", "loss", "batches", "projection", "optimizer")}
        return copy.deepcopy({"cycle": self.cycle} | {name: part.state_dict() for name, part in parts.items()})

    def load(self, state: dict[str, Any]) -> Small:
        self.cycle = state.pop("cycle")
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)
        return self

    def theta(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in (*self.network.parameters(), *self.loss.parameters())])


def test_gradient_equals_that_of_the_formula() -> None:
    net, labels = network().double(), LABELS[:30]
    projection = Projection(net.parameters(), weight=0.3)
    start = [p.detach().clone() for p in net.parameters()]
    for p in net.parameters():
        p.data += torch.randn_like(p)
    loss = create("contrastive")(net(DATA[:30].double()), labels)
    term = 0.3 / 2 * sum((p - s).square().sum() for p, s in zip(net.parameters(), start, strict=True))
    wanted = torch.autograd.grad(loss + term, list(net.parameters()), retain_graph=True)
    loss.backward()
    projection.add_to_gradients()
    torch.testing.assert_close([p.grad for p in net.parameters()], list(wanted), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(projection.value(), term.detach(), rtol=1e-12, atol=0)
    projection.snapshot()
    assert projection.value() == 0


def test_groups_cover_all_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUP_SIZE", 10)
    parameters = [torch.zeros(n, requires_grad=True) for n in (3, 7, 1, 40, 2, 8, 10)]
    projection = Projection(parameters, weight=1.0)
    for p in parameters:
        p.data += 2
        p.grad = torch.zeros_like(p)
    assert [[len(p) for (p,) in group] for group in module.group_by_size((p,) for p in parameters)] == [
        *([3, 7], [1], [40], [2, 8], [10])
    ]
    projection.add_to_gradients()
    assert all(p.grad is not None and (p.grad == 2).all() for p in parameters)


def test_unchanged_parameters_keep_their_gradient_bit_for_bit() -> None:
    p = torch.tensor([1.0, -2.0, 3e-40, 0.0, 7.0], requires_grad=True)
    p.grad = torch.tensor([0.1, -0.0, 0.0, -1e-42, float("nan")])
    before = p.grad.clone()
    Projection([p], weight=123.0).add_to_gradients()
    assert torch.equal(p.grad.view(torch.int32), before.view(torch.int32))


def test_parameters_without_a_gradient_are_ignored() -> None:
    a, b, frozen = (torch.ones(3, requires_grad=k < 2) for k in range(3))
    projection = Projection([a, b, frozen], weight=1.0)
    for p in (a, b, frozen):
        p.data += 1
    projection.add_to_gradients()  # nobody has one
    a.grad = torch.zeros(3)
    projection.add_to_gradients()
    assert a.grad.tolist() == [1.0] * 3
    assert b.grad is None
    assert frozen.grad is None


@pytest.mark.parametrize("loss", ["contrastive", "margin", "n-pair"])
@pytest.mark.parametrize("mining", [None, "hncm"])
def test_the_weight_has_no_effect_with_one_step_per_cycle(loss: str, mining: str | None) -> None:
    runs = [Small(loss, weight=w, steps=1, mining=mining).steps(25) for w in (0.0, 1e-3, 50.0)]
    assert torch.equal(runs[0].theta(), runs[1].theta())
    assert torch.equal(runs[0].theta(), runs[2].theta())
    # and with more steps it is not
    runs = [Small(loss, weight=w, steps=2, mining=mining).steps(25) for w in (0.0, 50.0)]
    assert not torch.equal(runs[0].theta(), runs[1].theta())


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("loss", ["n-pair", "angular"])
def test_n_pair_and_angular_are_the_plain_loss_on_the_same_batches(loss: str, steps: int) -> None:
    ours, plain = (Small(loss, weight=0.0, steps=steps, plain=p) for p in (False, True))
    if loss == "angular":
        plain.loss = create("angular", batch="n-pair")
    ours.steps(25), plain.steps(25)
    assert ours.seen == plain.seen
    # The plain N-pair loss is computed as a cross-entropy, which rounds differently.
    tolerance = 0.0 if loss == "angular" else 2e-6
    assert ours.values == pytest.approx(plain.values, rel=tolerance, abs=0)
    # Adam amplifies the rounding of gradients that are close to 0.
    torch.testing.assert_close(ours.theta(), plain.theta(), rtol=0, atol=100 * tolerance)


@pytest.mark.parametrize("loss", ["contrastive", "triplet", "margin", "lifted", "n-pair", "angular", "dro", "circle"])
@pytest.mark.parametrize("mining", [None, "hncm"])
def test_every_pair_loss_learns(loss: str, mining: str | None) -> None:
    """The same representatives for M steps, others then, and a loss that falls."""
    run = Small(loss, weight=1e-3, steps=5, mining=mining).steps(60)
    of: dict[tuple[int, int], int] = {}
    for t, (cycle, representatives) in enumerate(run.seen):
        assert cycle == t // 5
        for i in representatives:
            assert of.setdefault((cycle, int(LABELS[i])), i) == i
    assert any(of[c, k] != of[c + 1, k] for c, k in of if (c + 1, k) in of)
    assert sum(run.values[-10:]) < 0.7 * sum(run.values[:10])


RESUMED: dict[str, dict[str, Any]] = {
    "random": {"steps": 6},
    "hncm": {"steps": 6, "mining": "hncm"},
    "patience": {"mining": "hncm", "patience": 3},
}


@pytest.mark.parametrize("options", RESUMED.values(), ids=RESUMED)
@pytest.mark.parametrize("stop", [3, 6, 17])
def test_resume_in_the_middle_of_a_cycle(options: dict[str, Any], stop: int) -> None:
    whole = Small("margin", **options).steps(30)
    first = Small("margin", **options).steps(stop)
    second = Small("margin", **options).load(first.state())
    second.steps(30 - stop)
    assert first.values + second.values == whole.values
    assert torch.equal(second.theta(), whole.theta())
    assert second.batches.cycle == whole.batches.cycle > 0


def test_a_large_weight_holds_the_parameters() -> None:
    """Plain gradient descent: the pull toward theta_k keeps a cycle's way short."""

    def way(weight: float) -> float:
        run = Small(weight=weight, steps=100)
        run.optimizer = torch.optim.SGD(run.network.parameters(), lr=0.1)
        start = run.theta()
        return (run.steps(50).theta() - start).norm().item()

    assert way(5.0) < 0.5 * way(0.0)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="weight must be a finite number, at least 0, got -1"):
        Projection(network().parameters(), weight=-1)
    with pytest.raises(ValueError, match="parameters is empty"):
        Projection([])
    state = Projection([torch.zeros(3)]).state_dict()
    with pytest.raises(ValueError, match="do not match the 1 parameters"):
        Projection([torch.zeros(4)]).load_state_dict(state)
