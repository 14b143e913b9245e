"""Embeddings averaged over an image and its mirror image (model.mirror)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nearfar.errors import NearfarError
from nearfar.models import Embedder, create_embedder, init_head_from_pca
from nearfar.runs import load_embedder, save_embedder
from nearfar.training.memory import trial_step
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer
from training_cases import configured

X = torch.randn(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def make_embedders() -> tuple[Embedder, Embedder]:
    """Return an embedder with `mirror`, and one with the same weights without it, in evaluation mode."""
    torch.manual_seed(1)
    embedder = create_embedder("small", dim=8, mirror=True)
    plain = create_embedder("small", dim=8)
    plain.load_state_dict(embedder.state_dict())
    return embedder.eval(), plain.eval()


@torch.no_grad()
def test_the_embedding_is_the_mean_over_both_images() -> None:
    embedder, plain = make_embedders()
    mirrored = X[..., torch.arange(27, -1, -1)]
    torch.testing.assert_close(embedder(X), (plain(X) + plain(mirrored)) / 2)
    torch.testing.assert_close(embedder(X), embedder(mirrored))
    assert not torch.allclose(plain(X), plain(mirrored))


def test_training_steps_use_the_image_alone() -> None:
    embedder, plain = make_embedders()
    with trial_step(embedder):
        assert torch.equal(embedder(X), plain(X))
    assert embedder.mirror
    embedder.freeze_batchnorm()
    plain.freeze_batchnorm()
    assert torch.equal(embedder.train()(X), plain.train()(X))


@torch.no_grad()
def test_it_is_saved_and_works_with_pca_and_truncation(tmp_path: Path) -> None:
    embedder, _ = make_embedders()
    init_head_from_pca(embedder, X)
    save_embedder(embedder, tmp_path / "model.safetensors")
    loaded = load_embedder(tmp_path / "model.safetensors")
    assert loaded.mirror
    assert torch.equal(loaded(X), embedder(X))
    assert torch.equal(embedder.truncate(2)(X), embedder(X)[:, :2])


def test_scores_of_a_run_are_those_of_its_saved_model(drawings: str, tmp_path: Path) -> None:
    config = configured("pixels", drawings, "proxy-anchor", "model.mirror=true", "metrics=[map@r]")
    trainer = Trainer(config, open_manifest(config.data), tmp_path / "run", say=lambda _: None)
    trainer.fit(progress=False)
    loaded = load_embedder(tmp_path / "run" / "model.safetensors")
    assert trainer.score("test", loaded) == trainer.score("test")
    loaded.mirror = False
    assert trainer.score("test", loaded) != trainer.score("test")


def test_it_needs_images_without_cached_activations(drawings: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mirror=True needs a network for images"):
        create_embedder("features", channels=4, dim=2, mirror=True)
    settings = ("model.mirror=true", "model.train_from=block2", f"cache.activations={tmp_path}")
    with pytest.raises(NearfarError, match=r"model\.mirror=true does not work with cached activations"):
        configured("pixels", drawings, "proxy-anchor", *settings)
