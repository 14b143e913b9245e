"""Runs with an equal initial state share it, and end as if each had computed its own."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import normalize

from nearfar.config.schema import Config
from nearfar.losses import create
from nearfar.runs import Run
from nearfar.training import train
from nearfar.training.evaluate import Evaluator
from nearfar.training.initialization import CACHE_SIZE, InitialStateCache
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer
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


@pytest.mark.parametrize("proxies", ["class-means", "random"])
def test_mpa_with_one_proxy_trains_like_proxy_anchor(vectors: str, tmp_path: Path, proxies: str) -> None:
    """The loss is the same function, and the same initial length makes every step of the optimizer the same."""
    weights = []
    same = ["loss.alpha=32", "loss.delta=0.1"]
    for name, options in (("proxy-anchor", same), ("mpa", [*same, "loss.proxies_per_class=1"])):
        config = configured("features", vectors, "mpa", f"loss.name={name}", f"model.proxies={proxies}", *options)
        train(config, tmp_path / name, say=quiet)
        weights.append(load_file(tmp_path / name / "model.safetensors"))
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.parametrize("name", ["mpa", "mpa-dw", "mpa-ap"])
def test_the_mpa_family_starts_with_the_proxy_length_of_proxy_anchor(name: str) -> None:
    loss = create(name, classes=50, dim=512, proxies_per_class=8)
    assert loss.proxies.std().item() == pytest.approx(math.sqrt(2 / (50 * 8)), rel=0.02)


def test_proxies_start_at_random_or_at_class_means_whatever_the_head(vectors: str, tmp_path: Path) -> None:
    starts = {}
    for init in ("pca", "random"):
        for proxies in ("class-means", "random", "null"):
            config = configured("features", vectors, "proxy-anchor", f"model.init={init}", f"model.proxies={proxies}")
            trainer = Trainer(config, open_manifest(config.data), tmp_path, say=quiet)
            data = trainer.train_loader.dataset
            embeddings = torch.cat([trainer.state.embedder(batch.x) for batch in trainer.train_loader.load_all()])
            means = torch.stack([normalize(embeddings)[data.labels == c].mean(0) for c in data.labels.unique()])
            cosine = (normalize(means) * normalize(trainer.state.loss.proxies)).sum(1).mean().item()
            starts[init, proxies] = cosine > 0.999
    assert starts == {
        ("pca", "class-means"): True,
        ("pca", "random"): False,
        ("pca", "null"): True,
        ("random", "class-means"): True,
        ("random", "random"): False,
        ("random", "null"): False,
    }
