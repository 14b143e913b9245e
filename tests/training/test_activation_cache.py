"""Training on cached activations gives the weights of training with the same blocks frozen, under all conditions."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from nearfar.cli.dry_run import check_run
from nearfar.config.merge import resolve
from nearfar.data import row_store
from nearfar.data.activations import ActivationDataset
from nearfar.data.row_store import list_stores
from nearfar.errors import NearfarError
from nearfar.training import Config, Run, train
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer
from training_cases import configured

forked = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "SHARD_BYTES", 1 << 14)


def split(drawings: str, *settings: str, recipe: str = "proxy-anchor") -> Config:
    """A run of 20 steps that trains the upper half of the small network."""
    base = ("model.train_from=block2", "steps=20", "save_every=0", "metrics=[recall@1,map@r]")
    return configured("pixels", drawings, recipe, *base, *settings)


def cached(config: Config, folder: Path, *, dtype: str = "float32", **options: object) -> Config:
    return replace(config, cache=replace(config.cache, activations=str(folder), dtype=dtype, **options))


def quiet(config: Config, out: Path, **options: object) -> Run:
    return train(config, out, say=lambda _: None, progress=False, **options)  # type: ignore[arg-type]


def largest_difference(one: Run, other: Run) -> float:
    a, b = (load_file(run.path / "model.safetensors") for run in (one, other))
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


CASES = {
    "one view without augmentation": ("proxy-anchor", ["images.augment=false"]),
    "a view for each epoch": ("proxy-anchor", ["steps=8"]),
    "pca, two passes": ("proxy-anchor", ["steps=8", "model.init=pca", "micro_batch=7"]),
    "class means": ("proxy-anchor", ["steps=8", "model.proxies=class-means"]),
    "self-paced": ("bspml", ["steps=8", "data.noise.rate=0.2"]),
    "profs": (
        "m-profs-hncm",
        ["batches.classes=3", "batches.size=null", "batches.steps=3", "batches.fill=true", "steps=8"],
    ),
    "validation, ema": ("triplet", ["steps=8", "data.validation=0.5", "ema=0.9", "schedule.warm_up_epochs=1"]),
    "head": ("proxy-anchor", ["steps=8", "model.train_from=head"]),
}


@pytest.mark.parametrize("case", CASES)
def test_cached_training_equals_direct_training(case: str, drawings: str, tmp_path: Path) -> None:
    recipe, settings = CASES[case]
    config = split(drawings, *settings, recipe=recipe)
    views = 1 if case.startswith("one view") else 12
    direct = quiet(config, tmp_path / "direct")
    fast = quiet(cached(config, tmp_path / "cache", views=views), tmp_path / "cached")
    assert largest_difference(direct, fast) == 0
    assert direct.results()["test"] == fast.results()["test"]
    assert list_stores(tmp_path / "cache")


def test_float16_rounds_and_takes_half_the_size(drawings: str, tmp_path: Path) -> None:
    config = split(drawings, "images.augment=false")
    wide, half = (
        Trainer(
            cached(config, tmp_path / dtype, dtype=dtype), open_manifest(config.data), tmp_path, say=lambda _: None
        ).train_loader.dataset.fetch(range(48))
        for dtype in ("float32", "float16")
    )
    assert half.dtype == torch.float32
    assert torch.equal(half, wide.half().float())
    assert not torch.equal(half, wide)
    sizes = [sum(store.about["bytes"] for store in list_stores(tmp_path / dtype)) for dtype in ("float32", "float16")]
    assert sizes[0] / sizes[1] == pytest.approx(2, abs=0.05)


def test_view_v_is_the_augmentation_of_epoch_v(drawings: str, tmp_path: Path) -> None:
    config = split(drawings)
    manifest = open_manifest(config.data)
    images = Trainer(config, manifest, tmp_path / "a", say=lambda _: None).train_loader.dataset
    trainer = Trainer(cached(config, tmp_path / "cache", views=3), manifest, tmp_path / "b", say=lambda _: None)
    dataset, network = trainer.train_loader.dataset, trainer.state.embedder.eval()
    assert isinstance(dataset, ActivationDataset)
    for epoch in range(5):
        expected = network.lower(images.fetch([7, 3], epoch=epoch % 3, train=True))
        torch.testing.assert_close(dataset.fetch([7, 3], epoch=epoch, train=True), expected, rtol=1e-5, atol=1e-5)
    expected = network.lower(images.fetch([7, 3]))
    torch.testing.assert_close(dataset.fetch([7, 3]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", [(), ("autocast=bf16",), ("micro_batch=7", "model.init=pca")])
def test_a_stopped_run_resumes_to_the_same_weights(settings: tuple[str, ...], drawings: str, tmp_path: Path) -> None:
    config = cached(split(drawings, "steps=12", *settings), tmp_path / "cache", dtype="float16", views=2)
    whole = quiet(config, tmp_path / "whole")
    quiet(config, tmp_path / "cut", stop_after=6)
    shutil.rmtree(tmp_path / "cache")  # it is computed again
    assert largest_difference(whole, quiet(config, tmp_path / "cut", resume=True)) == 0


def killed(config: Config, out: Path, when: Path | None) -> None:
    """Train in a process that is killed once `when` exists, or after its first checkpoint."""
    process = forked.Process(target=quiet, args=(config, out), kwargs={"resume": (out / "config.yaml").exists()})
    process.start()
    when = when or out / "checkpoint" / "state.safetensors"
    while not (list(when.parent.glob(when.name)) if "*" in when.name else when.exists()):
        assert process.is_alive()
        time.sleep(0.002)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_kills_while_building_and_while_training(drawings: str, tmp_path: Path) -> None:
    config = split(drawings, "steps=40")
    whole = quiet(cached(config, tmp_path / "cache"), tmp_path / "whole")
    # a name for the shards of the whole cache, to be found while another is built
    names = sorted(path.relative_to(tmp_path / "cache") for path in (tmp_path / "cache").rglob("*.rows"))
    fault = replace(cached(config, tmp_path / "faulty"))
    for name in (names[0], names[len(names) // 2]):
        if not (tmp_path / "faulty" / name).exists():
            killed(fault, tmp_path / "cut", tmp_path / "faulty" / name)
    killed(fault, tmp_path / "cut", None)
    assert not (tmp_path / "cut" / "scores.json").exists()
    cut = quiet(fault, tmp_path / "cut", resume=True)
    assert largest_difference(whole, cut) == 0
    for name in names:
        assert (tmp_path / "cache" / name).read_bytes() == (tmp_path / "faulty" / name).read_bytes()
    assert not list((tmp_path / "faulty").rglob(".*"))


def test_two_runs_that_build_at_once(drawings: str, tmp_path: Path) -> None:
    config = cached(split(drawings), tmp_path / "cache")
    processes = [forked.Process(target=quiet, args=(config, tmp_path / f"run {i}")) for i in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert largest_difference(Run(tmp_path / "run 0"), Run(tmp_path / "run 1")) == 0


def test_a_damaged_shard_is_computed_again(drawings: str, tmp_path: Path) -> None:
    config = cached(split(drawings), tmp_path / "cache")
    whole = quiet(config, tmp_path / "whole")
    path = min((tmp_path / "cache").rglob("*.rows"))
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    said: list[str] = []
    again = train(config, tmp_path / "again", say=said.append)
    assert f"warning: {path.parent}: shard {int(path.stem)} is damaged and is computed again" in said
    assert largest_difference(whole, again) == 0


def test_runs_share_the_views_that_are_equal(drawings: str, tmp_path: Path) -> None:
    def keys(*settings: str, **options: object) -> set[str]:
        before = {store.folder.name for store in list_stores(tmp_path / "cache")}
        config = cached(split(drawings, *settings), tmp_path / "cache", **{"views": 2, **options})  # type: ignore[arg-type]
        Trainer(config, open_manifest(config.data), tmp_path / "run", say=lambda _: None)
        return {store.folder.name for store in list_stores(tmp_path / "cache")} - before

    assert len(keys()) == 3  # two training views and the test view
    for same in ("optimizer.lr=0.5", "loss.alpha=16", "data.noise.rate=0.2", "model.train_from=2", "model.dim=4"):
        assert keys(same) == set(), same
    assert len(keys("model.init=pca")) == 1  # the view of the training images for evaluation
    assert len(keys(views=3)) == 1
    assert len(keys("images.flip=0")) == 2
    assert len(keys("model.train_from=0.5", "images.augment=false")) == 1
    assert len(keys("model.train_from=block1")) == 3
    assert len(keys(dtype="float16")) == 3
    assert len(keys("seed=1")) == 3  # other random weights


def test_a_limit_reduces_the_views(drawings: str, tmp_path: Path) -> None:
    config = cached(split(drawings), tmp_path / "cache", views=4)
    trainer = Trainer(config, open_manifest(config.data), tmp_path / "a", say=lambda _: None)
    train_size, test_size = (
        max(store.about["bytes"] for store in list_stores(tmp_path / "cache") if store.about["part"] == part)
        for part in ("train", "test")
    )
    assert trainer.activations is not None
    assert trainer.activations.views == 4
    limit = (2 * train_size + test_size) / 1e9
    said: list[str] = []
    small = replace(config, cache=replace(config.cache, limit_gb=limit))
    trainer = Trainer(small, open_manifest(config.data), tmp_path / "b", say=said.append)
    assert trainer.activations is not None
    assert trainer.activations.views == 2
    assert said[0] == f"cache.limit_gb={limit:g} has room for 2 views instead of 4"
    tiny = replace(config, cache=replace(config.cache, limit_gb=test_size / 1e9))
    with pytest.raises(NearfarError, match=r"cache.limit_gb=.* is too small: with one augmented view, the cache takes"):
        Trainer(tiny, open_manifest(config.data), tmp_path / "c", say=said.append)


def test_a_full_disk_is_a_one_line_error(drawings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = cached(split(drawings), tmp_path / "cache")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(NearfarError, match=r"cache: the cache needs .* kB more, but only 1.0 kB are free"):
        quiet(config, tmp_path / "run")
    monkeypatch.undo()
    monkeypatch.setattr(row_store, "SHARD_BYTES", 1 << 14)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nearfar.files.os.fsync", full)
    (tmp_path / "cache").mkdir(exist_ok=True)
    with pytest.raises(NearfarError, match=r"cannot be written \(No space left on device\)"):
        quiet(config, tmp_path / "run")
    assert not list((tmp_path / "cache").rglob(".*")) + list((tmp_path / "cache").rglob("*.rows"))


def test_activations_beyond_float16_are_an_error(drawings: str, tmp_path: Path) -> None:
    start = Trainer(split(drawings), open_manifest(split(drawings).data), tmp_path / "a", say=lambda _: None)
    weights = {name: value.contiguous() for name, value in start.state.embedder.state_dict().items()}
    name = next(name for name in weights if name.startswith("backbone.layers.1."))  # scale of the first batch norm
    weights[name] = weights[name] * 1e9
    save_file(weights, tmp_path / "large.safetensors")
    config = cached(split(drawings, f"model.pretrained={tmp_path / 'large.safetensors'}"), tmp_path / "cache")
    half = replace(config, cache=replace(config.cache, dtype="float16"))
    with pytest.raises(NearfarError, match=r"cache.dtype=float16 cannot hold activations up to .*dtype=float32"):
        quiet(half, tmp_path / "b")
    Trainer(config, open_manifest(config.data), tmp_path / "c", say=lambda _: None)


def test_a_checkpoint_with_other_frozen_weights_is_an_error(drawings: str, tmp_path: Path) -> None:
    start = Trainer(split(drawings), open_manifest(split(drawings).data), tmp_path / "a", say=lambda _: None)
    weights = {name: value.contiguous() for name, value in start.state.embedder.state_dict().items()}
    file = tmp_path / "weights.safetensors"
    save_file(weights, file)
    config = cached(split(drawings, f"model.pretrained={file}"), tmp_path / "cache")
    quiet(config, tmp_path / "run", stop_after=3)
    save_file({name: value + 1 if value.is_floating_point() else value for name, value in weights.items()}, file)
    with pytest.raises(NearfarError, match="the frozen blocks of the checkpoint differ"):
        quiet(config, tmp_path / "run", resume=True)


def test_settings_that_do_not_fit_are_errors(drawings: str, vectors: str, tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match=r"cache.activations needs frozen blocks: set model.train_from"):
        configured("pixels", drawings, "supcon", f"cache.activations={tmp_path}")
    config = configured("features", vectors, "supcon", f"cache.activations={tmp_path}", "model.train_from=head")
    with pytest.raises(NearfarError, match=r"cache.activations needs images, but the data are feature vectors"):
        quiet(config, tmp_path / "run")


def test_a_dry_run_does_not_write_the_cache(drawings: str, tmp_path: Path) -> None:
    config = cached(split(drawings), tmp_path / "cache")
    text = check_run(config, open_manifest(config.data))
    assert "# plan: this computes 240 of 240 views of images" in text  # 4 views of 48 images, and 48 test images
    assert " for the cache and " in text
    assert not (tmp_path / "cache").exists()


def test_image_files_with_workers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for c in range(4):
        (tmp_path / "images" / f"class {c}").mkdir(parents=True)
        for i in range(6):
            pixels = (rng.integers(0, 200, 3) + rng.integers(0, 40, (24, 30, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / f"class {c}" / f"{i}.png")
    settings = [
        *(f"data.source={tmp_path / 'images'}", "model.backbone=small", "model.pretrained=false", "images.crop=16"),
        *("model.train_from=block1", "model.dim=4", "batches.size=6", "epochs=3", "threads=1"),
    ]
    config = resolve("files", recipe="proxy-anchor", settings=[*settings, "data.workers=0"])
    direct = quiet(config, tmp_path / "direct")
    for workers in (0, 2):
        more = replace(config, data=replace(config.data, workers=workers))
        run = quiet(cached(more, tmp_path / f"cache {workers}"), tmp_path / f"run {workers}")
        assert largest_difference(direct, run) < 1e-5
    # a changed file is another image
    before = {store.folder.name for store in list_stores(tmp_path / "cache 0")}
    image = tmp_path / "images" / "class 0" / "0.png"
    os.utime(image, (1, 1))
    quiet(cached(config, tmp_path / "cache 0"), tmp_path / "changed")
    new = {store.folder.name for store in list_stores(tmp_path / "cache 0")} - before
    assert len(new) == 3  # the views of training; the test images did not change


def test_augmented_views_have_the_size_of_training_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "abcd":
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{i}.png")
    base = ("model.backbone=small", "model.pretrained=false", "model.train_from=block2", "model.pooling=average")
    sizes = ("images.crop=24", "images.train_crop=16", "batches.size=4", "steps=4")
    config = configured("files", str(tmp_path / "data"), "proxy-anchor", *base, *sizes)
    fast = quiet(cached(config, tmp_path / "cache", views=2), tmp_path / "cached")
    assert largest_difference(quiet(config, tmp_path / "direct"), fast) == 0
    assert fast.embedder().input_size == 24
    shapes = {store.about["view"]: tuple(store.about["shape"]) for store in list_stores(tmp_path / "cache")}
    assert shapes[0] == shapes[1] != shapes["test"]


def test_arrays_have_no_other_size_for_training(drawings: str, tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match="train_crop needs image files, but the data are arrays"):
        quiet(split(drawings, "images.train_crop=16"), tmp_path / "run")
