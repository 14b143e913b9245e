"""Every pacer by its name: the contract of the loop, state, errors; and what they do on real drawings."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nearfar import losses
from nearfar.data import NoiseRecord, add_label_noise, load_sketches
from nearfar.pacing import PRISM, PointWise, SelfPaced, create, names
from nearfar.pacing.objective import maw

EVERY = pytest.mark.parametrize("name", names())
DATA_WISE = [name for name in losses.names() if hasattr(losses.loss_class(name), "per_sample")]


def batch(samples: int = 60, classes: int = 5) -> tuple[Tensor, Tensor]:
    labels = torch.arange(samples) % classes
    return torch.eye(classes, 8)[labels] + 0.4 * torch.randn(samples, 8), labels


def loss_for(name: str) -> Any:
    return losses.create("mpa-ap", classes=5, dim=8) if name == "point-wise" else losses.create("multi-similarity")


@lru_cache(maxsize=1)
def drawings() -> tuple[Tensor, Tensor, NoiseRecord]:
    """Pixels of 20 kinds of drawings, 40 of each, centered, with a fifth of the labels wrong."""
    data = load_sketches().subset(np.arange(2000)[np.arange(2000) % 100 < 40]).compact()
    noisy, record = add_label_noise(data, 0.2, seed=0)
    assert data.pixels is not None
    x = torch.nn.functional.avg_pool2d(torch.tensor(data.pixels[:, None]).float(), 4).flatten(1)
    return x - x.mean(0), torch.tensor(noisy.labels), record


@EVERY
def test_contract(name: str) -> None:
    x, labels = batch()
    pacer = create(name, samples=60, classes=5)
    assert pacer.weights.dtype == torch.float32
    assert pacer.weights.tolist() == [1.0] * 60
    rows = torch.tensor([3, 50, 7])
    pacer.batch_weights(x[rows], labels[rows], rows)
    logged = pacer.update(x, labels, loss=loss_for(name))
    assert {"maw", "sdaw", "kept"} <= set(logged)
    assert all(isinstance(value, float) and np.isfinite(value) for value in logged.values())
    assert pacer.weights.shape == (60,)
    assert logged["maw"] == pytest.approx(maw(pacer.weights, labels))
    assert ((pacer.weights >= 0) & (pacer.weights <= 1)).all()
    if not isinstance(pacer, PRISM):
        assert logged["lambda"] > 0
        assert 0.6 < logged["kept"] < 0.8
        assert pacer.batch_weights(x[rows], labels[rows], rows).tolist() == pacer.weights[rows].tolist()


@EVERY
def test_state_goes_on_exactly(name: str) -> None:
    x, labels = batch()
    steps = [torch.randperm(60)[:20] for _ in range(6)]

    def run(pacer: Any, which: list[Tensor]) -> list[list[float]]:
        seen = []
        for rows in which:
            seen.append(pacer.batch_weights(x[rows], labels[rows], rows).tolist())
            pacer.update(x + 0.01 * len(seen), labels, loss=loss)
        return [*seen, pacer.weights.tolist()]

    loss = loss_for(name)
    one, two = (create(name, samples=60, classes=5) for _ in range(2))
    run(one, steps[:3])
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    two.load_state_dict(torch.load(file, weights_only=True))
    assert run(two, steps[3:]) == run(one, steps[3:])
    assert two.rounds == one.rounds > 0


@EVERY
def test_state_of_something_else_is_refused(name: str) -> None:
    other = create(next(n for n in names() if n != name), samples=60, classes=5)
    with pytest.raises(ValueError, match="state is from the pacer"):
        create(name, samples=60, classes=5).load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="state has 9 samples"):
        create(name, samples=60, classes=5).load_state_dict(create(name, samples=9, classes=5).state_dict())


@EVERY
def test_update_wants_the_whole_set(name: str) -> None:
    x, labels = batch()
    with pytest.raises(ValueError, match="all 61 training samples"):
        create(name, samples=61, classes=5).update(x, labels, loss=loss_for(name))


def test_unknown_names_and_options() -> None:
    with pytest.raises(ValueError, match="did you mean 'self-paced'"):
        create("selfpaced", samples=4, classes=2)
    with pytest.raises(ValueError, match="has no option 'lambda'"):
        create("self-paced", samples=4, classes=2, **{"lambda": 1})
    with pytest.raises(ValueError, match="samples must be an integer"):
        create("prism", samples=0, classes=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mu": -1.0}, "mu must be at least 0"),
        ({"rule": "median"}, "rule must be one of"),
        ({"solver": "newton"}, "solver must be one of"),
        ({"beta": 0.0}, "beta must be a finite number above 0"),
        ({"warm_up": 0}, "warm_up must be an integer"),
        ({"every": 0}, "every must be an integer"),
        ({"noise_rate": 1.0}, "noise_rate must be at least 0 and below 1"),
        ({"noise_rate": 0.2, "age": 1.0}, "noise_rate=0.2 and age=1.0 cannot be combined"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create("self-paced", samples=4, classes=2, **options)


def test_when_updates_come() -> None:
    assert all(create("self-paced", samples=9, classes=3).should_update(e) for e in range(3))
    later = create("self-paced", samples=9, classes=3, warm_up=3, every=3)
    assert [e for e in range(10) if later.should_update(e)] == [2, 5, 8]
    assert not any(create("prism", samples=9, classes=3).should_update(e) for e in range(9))


def test_share_grows_over_the_rounds() -> None:
    x, labels, _ = drawings()
    pacer = SelfPaced(samples=800, classes=20, share=0.6, growth=1.2, most=0.8)
    shares, ages = [], []
    for _ in range(3):
        ages.append(pacer.update(x, labels)["lambda"])
        shares.append(float(pacer.weights.mean()))
    assert shares == pytest.approx([0.6, 0.72, 0.8], abs=0.003)
    assert ages == sorted(ages)


def test_a_known_share_of_wrong_labels_is_left_out_from_the_first_round_on() -> None:
    x, labels, _ = drawings()
    pacer = SelfPaced(samples=800, classes=20, noise_rate=0.2)
    for _ in range(2):
        pacer.update(x, labels)
        assert float(pacer.weights.mean()) == pytest.approx(0.8, abs=0.003)
    everybody = SelfPaced(samples=800, classes=20, noise_rate=0.0)
    everybody.update(x, labels)
    assert float(everybody.weights.mean()) == pytest.approx(1.0, abs=0.003)


def test_wrong_labels_lose_their_weight() -> None:
    x, labels, record = drawings()
    for mu in (0.0, 1.0):
        pacer = SelfPaced(samples=800, classes=20, share=0.8, mu=mu)
        pacer.update(x, labels)
        w = pacer.weights.numpy()
        assert w[~record.wrong].mean() > w[record.wrong].mean() + 0.3


def test_maw_rises_with_the_age() -> None:
    """Fig. 3."""
    x, labels, _ = drawings()
    for mu in (0.0, 1.0, 10.0):
        found = [create("self-paced", samples=800, classes=20, age=a, mu=mu).update(x, labels) for a in (2, 3, 4, 5)]
        values = [each["maw"] for each in found]
        assert values == sorted(values)
        assert values[-1] > values[0] + 0.3


def test_sdaw_falls_with_mu() -> None:
    """Fig. 4."""
    x, labels, _ = drawings()
    for age in (3.0, 4.0):
        found = [create("self-paced", samples=800, classes=20, age=age, mu=m).update(x, labels) for m in (0, 1, 10)]
        values = [each["sdaw"] for each in found]
        assert values[0] > values[1] > values[2]


def test_algorithm_3_as_solver() -> None:
    x, labels, _ = drawings()
    theirs = create("self-paced", samples=800, classes=20, solver="coordinate", share=0.8)
    ours = create("self-paced", samples=800, classes=20, rule="quantile", share=0.8)
    a, b = theirs.update(x, labels), ours.update(x, labels)
    assert a["lambda"] == b["lambda"]
    assert b["objective"] < a["objective"]
    assert b["residual"] < 1e-5 < a["residual"]
    first = theirs.weights.clone()
    theirs.update(x, labels)
    assert (theirs.weights != first).any()


def test_ages_are_solved_from_the_present_weights() -> None:
    x, labels, _ = drawings()
    pacer = SelfPaced(samples=800, classes=20, age=3.0, growth=1.5, most=4.0, mu=0.0)
    assert [pacer.update(x, labels)["lambda"] for _ in range(3)] == pytest.approx([3.0, 4.0, 4.0])
    before = pacer.weights.clone()
    pacer.update(x, labels)
    assert (pacer.weights == before).all()


@pytest.mark.parametrize("name", DATA_WISE)
def test_point_wise_is_equation_2(name: str) -> None:
    x, labels = batch()
    loss: Any = losses.create(name, classes=5, dim=8)
    each = loss.per_sample(x, labels).detach()
    pacer = PointWise(samples=60, classes=5, share=0.5)
    logged = pacer.update(x, labels, loss=loss)
    assert pacer.weights.sum() == 30
    assert each[pacer.weights == 1].max() <= each[pacer.weights == 0].min()
    by_age = PointWise(samples=60, classes=5, age=logged["lambda"] * (1 + 1e-6))
    by_age.update(x, labels, loss=loss)
    assert (by_age.weights == pacer.weights).all()


def test_point_wise_in_chunks_and_with_any_loss() -> None:
    x, labels = batch(2500)
    loss: Any = losses.create("arcface", classes=5, dim=8)
    pacer = PointWise(samples=2500, classes=5, share=0.4)
    pacer.update(x, labels, loss=loss)
    each = loss.per_sample(x, labels).detach()
    assert pacer.weights.sum() == 1000
    assert each[pacer.weights == 1].max() <= each[pacer.weights == 0].min()
    with pytest.raises(ValueError, match="needs a loss with the method per_sample, got Triplet"):
        pacer.update(x, labels, loss=losses.create("triplet"))
