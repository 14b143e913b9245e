"""Defaults for image files: full size with a GPU, smaller training images without, and plain ones elsewhere."""

from __future__ import annotations

import pytest

from nearfar.config.defaults import CACHED, LEAST_SAMPLES, MOST_EPOCHS, OURS, PLAIN_FILES, WITHOUT_GPU
from nearfar.config.merge import resolve
from nearfar.config.schema import Config

FILES = OURS["files"]


def files(*settings: str, **options: object) -> Config:
    return resolve("files", recipe="proxy-anchor", settings=settings, **options)  # type: ignore[arg-type]


def test_with_a_gpu_the_whole_network_is_trained_on_images_of_full_size() -> None:
    config = files()
    assert (config.model.train_from, config.cache.activations, config.images.train_crop) == (None, None, None)
    assert (config.model.init, config.model.pooling) == (FILES["model"]["init"], FILES["model"]["pooling"])
    assert (config.optimizer.lr, config.batches.size) == (FILES["optimizer"]["lr"], 64)


def test_without_a_gpu_training_images_are_smaller() -> None:
    config = files(cache="folder")
    assert (config.model.train_from, config.cache.activations) == (None, None)
    assert config.images.train_crop == WITHOUT_GPU["images"]["train_crop"]
    assert config.optimizer == files().optimizer
    assert files("images.train_crop=null", cache="folder").images == files().images


def test_without_a_gpu_the_output_of_frozen_blocks_is_cached() -> None:
    config = files("model.train_from=0.5", cache="folder")
    assert (config.cache.activations, config.cache.views) == ("folder", CACHED["cache"]["views"])
    assert config.images.train_crop is None
    assert files("model.train_from=0.5").cache.activations is None


@pytest.mark.parametrize("setting", ["model.freeze_backbone=true", "shard_network=true", "setting=paper"])
def test_settings_that_train_otherwise_have_the_defaults_of_a_gpu(setting: str) -> None:
    config = files(setting, cache="folder")
    assert (config.model.train_from, config.cache.activations, config.images.train_crop) == (None, None, None)


def test_given_settings_override_the_defaults() -> None:
    config = files("model.train_from=head", "cache.views=1", "epochs=9", cache="folder", samples=10)
    assert (config.model.train_from, config.cache.views, config.epochs) == ("head", 1, 9)
    assert config.cache.activations == "folder"
    config = files("model.train_from=0.5", "cache.activations=null", cache="folder")
    assert (config.model.train_from, config.cache.activations) == (0.5, None)
    assert files("steps=7", samples=10).epochs is None


@pytest.mark.parametrize("setting", ["model.backbone=transformers:some/vit", "model.backbone=timm:vit"])
def test_networks_of_other_libraries_have_no_pooling_and_are_trained_whole(setting: str) -> None:
    config = files(setting, cache="folder")
    assert (config.model.pooling, config.model.train_from, config.cache.activations) == (None, None, None)


def test_random_weights_papers_and_suites_have_plain_defaults() -> None:
    for config in (files("model.pretrained=false", cache="folder"), files("setting=paper"), files(shared=True)):
        assert (config.model.init, config.cache.activations, config.select.untrained) == (None, None, False)
    assert files(shared=True).optimizer.lr == PLAIN_FILES["optimizer"]["lr"]
    assert files(shared=True).batches.size == 128


@pytest.mark.parametrize(
    ("samples", "epochs"),
    [
        (10 * LEAST_SAMPLES, FILES["epochs"]),
        (LEAST_SAMPLES // FILES["epochs"], FILES["epochs"]),
        (LEAST_SAMPLES // 10, 10),
        (1, MOST_EPOCHS),
    ],
)
def test_few_images_are_trained_for_more_epochs(samples: int, epochs: int) -> None:
    assert files(samples=samples).epochs == epochs
    assert files().epochs == FILES["epochs"]


def test_the_network_before_training_can_be_selected_except_in_suites() -> None:
    assert resolve("features", recipe="proxy-anchor").select.untrained
    assert not resolve("features", recipe="proxy-anchor", shared=True).select.untrained


def test_only_embeddings_of_texts_are_centered() -> None:
    assert resolve("text", recipe="proxy-anchor").model.center
    assert not resolve("text", recipe="proxy-anchor", settings=["setting=paper"]).model.center
    for kind in ("files", "pixels", "features"):
        assert not resolve(kind, recipe="proxy-anchor", width=4).model.center
