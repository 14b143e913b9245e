"""Runs with an equal initial state share it, and end as if each had computed its own."""

from pathlib import Path

import pytest
import torch

from nearfar.config.schema import Config
from nearfar.runs import Run
from nearfar.training import train
from nearfar.training.evaluate import Evaluator
from nearfar.training.initialization import CACHE_SIZE, InitialStateCache
from training_cases import configured, saved_vectors


def quiet(text: str) -> None:
    pass


def ended(run: Run) -> tuple[dict[str, torch.Tensor], object, object]:
    found = run.results()
    return run.embedder().state_dict(), found["test"], found["untrained"]


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    return saved_vectors(tmp_path / "vectors.npz", classes=12, per_class=10, noise=1.0)


def test_sharing_the_initial_state_does_not_change_a_run(vectors: str, tmp_path: Path) -> None:
    initial_states = InitialStateCache()
    for recipe in ("multi-similarity", "proxy-anchor", "proxy-anchor", "mpa-ap"):
        config = configured("features", vectors, recipe)
        shared = ended(
            train(
                config, tmp_path / f"{recipe}{len(list(tmp_path.iterdir()))}", say=quiet, initial_states=initial_states
            )
        )
        alone = ended(train(config, tmp_path / f"{recipe}{len(list(tmp_path.iterdir()))}", say=quiet))
        assert shared[1:] == alone[1:]
        torch.testing.assert_close(shared[0], alone[0], rtol=0, atol=0)
    assert len(initial_states._states) == 1


def test_the_initial_state_is_computed_once(vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[str] = []
    embed = Evaluator.embed

    def count(
        self: Evaluator, network: torch.nn.Module, loader: object, name: str, rows: object = None
    ) -> torch.Tensor:
        passes.append(name)
        return embed(self, network, loader, name, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(Evaluator, "embed", count)
    initial_states = InitialStateCache()
    for i in range(3):
        train(
            configured("features", vectors, "proxy-anchor"), tmp_path / f"{i}", say=quiet, initial_states=initial_states
        )
    assert passes.count("test") == 1 + 3  # before training once, after it each time


@pytest.mark.parametrize(
    "setting",
    ["seed=1", "model.dim=7", "model.init=random", "data.per_class=5", "data.noise.rate=0.5", "metrics=[recall@2]"],
)
def test_settings_that_change_the_initial_state(vectors: str, setting: str) -> None:
    initial_states = InitialStateCache()
    first = initial_states.get(configured("features", vectors, "proxy-anchor"))
    assert initial_states.get(configured("features", vectors, "multi-similarity", "optimizer.lr=0.1")) is first
    assert initial_states.get(configured("features", vectors, "proxy-anchor", setting)) is not first


def test_the_cache_keeps_the_most_recent_states(vectors: str) -> None:
    def config(seed: int) -> Config:
        return configured("features", vectors, "proxy-anchor", f"seed={seed}")

    initial_states = InitialStateCache()
    first = initial_states.get(config(0))
    for seed in range(1, CACHE_SIZE):
        initial_states.get(config(seed))
    assert initial_states.get(config(0)) is first  # used again: the newest now
    for seed in range(CACHE_SIZE, 2 * CACHE_SIZE - 1):
        initial_states.get(config(seed))
    assert initial_states.get(config(0)) is first
    assert initial_states.get(config(1)) is not first
    for seed in range(CACHE_SIZE):
        initial_states.get(config(100 + seed))
    assert initial_states.get(config(0)) is not first


def test_an_overwritten_weight_file_gives_another_state(vectors: str, tmp_path: Path) -> None:
    file, initial_states = tmp_path / "w.safetensors", InitialStateCache()
    config = configured("features", vectors, "proxy-anchor", f"model.pretrained={file}")
    file.write_bytes(b"one")
    first = initial_states.get(config)
    assert initial_states.get(config) is first
    file.write_bytes(b"another")
    assert initial_states.get(config) is not first
