"""Samplers by name, built-in ones and a user's own."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from nearfar import samplers
from nearfar.cli import main
from nearfar.runs import Run
from nearfar.samplers.batch_sampler import SAMPLERS
from training_cases import saved_vectors

LABELS = np.arange(24) % 6


@pytest.fixture
def in_order() -> Iterator[str]:
    @samplers.register("in-order")
    class InOrder(samplers.BatchSampler):
        def __init__(
            self, labels: np.ndarray, *, size: int = 4, skip: int = 0, seed: int = 0, rank: int = 0, world: int = 1
        ):
            super().__init__(seed=seed, rank=rank, world=world)
            self.size, self.indices = size, np.arange(skip, len(labels))

        def plan(self, rng: np.random.Generator) -> list[np.ndarray]:
            return [self.indices[start : start + self.size] for start in range(0, len(self.indices), self.size)]

    yield "in-order"
    del SAMPLERS._entries["in-order"]


@pytest.mark.parametrize("name", ["pk", "profs", "shuffled"])
def test_every_built_in_sampler_is_created_by_its_name(name: str) -> None:
    assert name in samplers.names()
    sampler = samplers.create(name, labels=LABELS, size=8)
    assert sampler.size == 8
    assert sorted(len(batch) for batch in sampler)[-1] == 8


def test_options_are_the_settings_of_a_sampler() -> None:
    assert set(samplers.options("shuffled")) == {"size", "drop_last"}
    assert set(samplers.options("pk")) == {"size", "classes", "per_class", "epoch"}
    assert {"rho", "steps", "mining"} < set(samplers.options("profs"))
    assert samplers.options("pk")["size"].default == 128


def test_a_sampler_from_outside(in_order: str) -> None:
    assert in_order in samplers.names()
    assert set(samplers.options(in_order)) == {"size", "skip"}
    sampler = samplers.create(in_order, labels=LABELS, size=12, skip=4, world=2, rank=1)
    assert list(sampler) == [[5, 7, 9, 11, 13, 15], [17, 19, 21, 23]]


def test_errors_suggest_the_nearest_name_and_option(in_order: str) -> None:
    with pytest.raises(ValueError, match="unknown sampler 'prof'; did you mean 'profs'"):
        samplers.create("prof", labels=LABELS)
    with pytest.raises(ValueError, match=r"'in-order' has no option 'skp'; did you mean 'skip'\? Options: size, skip"):
        samplers.create(in_order, labels=LABELS, skp=1)
    with pytest.raises(ValueError, match="sampler 'pk' is already registered by nearfar"):
        samplers.register("pk")(samplers.Shuffled)


def test_the_train_command_uses_a_sampler_from_outside(in_order: str, tmp_path: Path) -> None:
    source = saved_vectors(tmp_path / "vectors.npz", classes=8, per_class=6, noise=0.5)
    settings = ["loss.name=triplet", f"batches.name={in_order}", "batches.size=6", "batches.skip=4", "steps=3"]

    def train(*settings: str) -> Result:
        options = [word for setting in settings for word in ("--set", setting)]
        return CliRunner().invoke(main, ["train", source, "--out", str(tmp_path / "run"), *options])

    misspelled = train(*settings, "batches.skp=4")
    assert misspelled.exit_code == 1
    assert "batches has no 'skp'" in misspelled.output
    assert train(*settings).exit_code == 0
    assert Run(tmp_path / "run").config.batches.options == {"skip": 4}
