import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from data import builders
from nearfar.data import (
    BatchAugment,
    BatchLoader,
    FeatureDataset,
    ImageDataset,
    Manifest,
    PixelDataset,
    cache_images,
    create_dataset,
    open_data,
)
from nearfar.errors import NearfarError

BATCHES = [[5, 0, 3], [1, 2, 7, 6], [4], [0, 5]]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return open_data(builders.folder(tmp_path_factory.mktemp("d"), {"a": 4, "b": 4}))


def foreign(image):
    """Transform that draws from every global generator."""
    noise = torch.rand(1) + random.random() + np.random.rand()
    return torch.full((1, 2, 2), float(np.asarray(image).mean()) + float(noise))


def run(samples, workers, epoch=0, train=True):
    with_workers = BatchLoader(samples, workers=workers)
    return list(with_workers.load(BATCHES, epoch=epoch, train=train))


@pytest.mark.parametrize("transform", [None, foreign], ids=["ours", "foreign"])
def test_worker_count_and_batches_do_not_change_a_sample(manifest, transform):
    def samples():
        return create_dataset(manifest, size=9, seed=3, train_transform=transform)

    alone = run(samples(), 0, epoch=2)
    for workers in (1, 2):
        for a, b in zip(alone, run(samples(), workers, epoch=2), strict=True):
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.labels, b.labels)
            assert torch.equal(a.indices, b.indices)
    assert [b.indices.tolist() for b in alone] == BATCHES
    assert torch.equal(alone[0].labels, torch.tensor([1, 0, 0]))
    # a sample is the same in another batch, and differs in another epoch or with another seed
    assert torch.equal(alone[3].x[0], alone[0].x[1])
    assert not torch.equal(run(samples(), 0, epoch=3)[0].x, alone[0].x)
    assert not torch.equal(
        run(create_dataset(manifest, size=9, seed=4, train_transform=transform), 0, epoch=2)[0].x, alone[0].x
    )


def test_evaluation_does_not_depend_on_epoch_or_seed(manifest):
    a = create_dataset(manifest, size=8, seed=1).fetch(range(8), epoch=1)
    assert torch.equal(a, create_dataset(manifest, size=8, seed=2).fetch(range(8), epoch=5))
    assert torch.equal(
        torch.cat([b.x for b in BatchLoader(create_dataset(manifest, size=8)).load_all(batch_size=3)]), a
    )


def test_a_foreign_transform_leaves_the_global_generators_alone(manifest):
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    create_dataset(manifest, train_transform=foreign).fetch([0, 1], train=True)
    list(BatchLoader(create_dataset(manifest, size=8), workers=1).load([[0]]))
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


def test_one_loader_for_many_epochs_also_after_a_break(manifest):
    samples = create_dataset(manifest, size=8)
    loader = BatchLoader(samples, workers=2)
    first = [b.x for b in loader.load(BATCHES, epoch=0)]
    for batch in loader.load(BATCHES, epoch=1):
        assert torch.equal(batch.x, samples.fetch(BATCHES[0], epoch=1, train=True))
        break
    again = [b.x for b in loader.load(BATCHES, epoch=0)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert len(list(loader.load_all(batch_size=5))) == 2
    loader.close()


def test_torch_data_loader_with_persistent_workers(manifest):
    samples = create_dataset(manifest, size=8, seed=7)
    assert isinstance(samples, ImageDataset)
    loader = DataLoader(samples, batch_size=4, num_workers=1, persistent_workers=True)
    for epoch in (0, 1):
        samples.set_epoch(epoch)
        x = torch.cat([x for x, _, _ in loader])
        assert torch.equal(x, samples.fetch(range(8), epoch=epoch, train=True))
    samples.set_epoch(0, train=False)
    x, labels, indices = next(iter(loader))
    assert torch.equal(x, samples.fetch(range(4)))
    assert (labels.tolist(), indices.tolist()) == ([0] * 4, [0, 1, 2, 3])


@pytest.mark.parametrize("workers", [0, 1])
def test_broken_images_raise_or_are_skipped_and_listed(tmp_path, workers):
    root = builders.folder(tmp_path, {"a": 3, "b": 3})
    builders.write(root / "a/1.jpg", b"")
    builders.write(root / "b/0.jpg", b"junk")
    m = open_data(root)
    with pytest.raises(NearfarError, match=r"a/1\.jpg is empty") as caught:
        list(BatchLoader(create_dataset(m, size=8), workers=workers).load([[0, 1, 2]]))
    assert "\n" not in str(caught.value)
    loader = BatchLoader(create_dataset(m, size=8, on_error="skip"), workers=workers)
    batches = list(loader.load([[0, 1, 2], [3, 4, 5]]))
    assert [b.indices.tolist() for b in batches] == [[0, 2], [4, 5]]
    assert [b.labels.tolist() for b in batches] == [[0, 0], [1, 1]]
    assert [len(b.x) for b in batches] == [2, 2]
    assert sorted(loader.skipped) == [1, 3]
    assert "is empty" in loader.skipped[1]
    with pytest.raises(NearfarError, match="none of the 2 images of a batch"):
        list(loader.load([[1, 3]]))
    with pytest.raises(ValueError, match="on_error"):
        create_dataset(m, on_error="ignore")


def test_features():
    m = Manifest(
        labels=[0, 1, 1], classes=("a", "b"), split=["train"] * 3, features=np.arange(6, dtype=np.float16).reshape(3, 2)
    )
    samples = create_dataset(m)
    assert isinstance(samples, FeatureDataset)
    assert samples.fetch(torch.tensor([2, 0]), train=True).tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert samples.fetch([0]).dtype == torch.float32
    batch = next(BatchLoader(samples, workers=2).load([[2, 0]]))
    assert batch.labels.tolist() == [1, 0]


def test_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    m = Manifest(labels=[0] * 6, classes=("a",), split=["train"] * 6, pixels=pixels)
    samples = create_dataset(m)
    assert isinstance(samples, PixelDataset)
    assert torch.allclose(samples.fetch([4, 1])[:, 0] * 255, torch.tensor(pixels[[4, 1]]).float())
    a = samples.fetch([4, 1], epoch=1, train=True)
    assert a.shape == (2, 1, 8, 8)
    assert torch.equal(a, samples.fetch([4, 1], epoch=1, train=True))
    assert torch.allclose(a[1:], samples.fetch([1], epoch=1, train=True), atol=1e-6)
    assert not torch.equal(a, samples.fetch([4, 1], epoch=2, train=True))
    small = create_dataset(m, size=6, mean=[0.5], std=[0.25])
    assert torch.allclose(small.fetch([0])[0, 0], (torch.tensor(pixels[0, 1:7, 1:7]) / 255 - 0.5) / 0.25)
    assert small.fetch([0], train=True).shape == (1, 1, 6, 6)
    plain = create_dataset(m, augment=BatchAugment())
    assert torch.allclose(plain.fetch([0], train=True), plain.fetch([0]), atol=1e-5)
    color = create_dataset(
        Manifest(labels=[0], classes=("a",), split=["train"], pixels=np.zeros((1, 4, 4, 3), np.uint8))
    )
    assert color.fetch([0]).shape == (1, 3, 4, 4)
    with pytest.raises(ValueError, match="size must be at most"):
        create_dataset(m, size=9)
    with pytest.raises(ValueError, match=r"need one value per channel \(1\)"):
        create_dataset(m, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="apply only to files"):
        create_dataset(m, train_transform=foreign)


def test_cache_equals_the_evaluation_input_and_is_built_once(manifest, tmp_path):
    m = cache_images(manifest, tmp_path, size=9, workers=2)
    assert m.kind == "pixels"
    assert isinstance(m.pixels, np.memmap)
    assert m.pixels.shape == (8, 9, 9, 3)
    plain = create_dataset(manifest, size=9, resize=9).fetch(range(8))
    assert torch.allclose(create_dataset(m).fetch(range(8)), plain, atol=1e-5)
    built = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert len(built) == 2
    again = cache_images(manifest, tmp_path, size=9)
    assert again == m
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == built
    # the file does not contain labels, so label noise does not rebuild it
    cache_images(manifest.with_labels(1 - manifest.labels), tmp_path, size=9)
    assert len(list(tmp_path.iterdir())) == 2
    assert cache_images(manifest, tmp_path, size=8).pixels.shape[1] == 8
    assert cache_images(m, tmp_path, size=9) is m
    with pytest.raises(ValueError, match="size"):
        cache_images(manifest, tmp_path, size=0)


def test_cache_notices_changed_files_and_broken_ones(tmp_path):
    root, cache = builders.folder(tmp_path / "d", {"a": 2, "b": 2}), tmp_path / "cache"
    m = open_data(root)
    before = cache_images(m, cache, size=8)
    builders.write(root / "a/1.jpg", b"")
    with pytest.raises(NearfarError, match=r"a/1\.jpg is empty"):
        cache_images(m, cache, size=8)
    # no incomplete file remains
    assert len(list(cache.iterdir())) == 2
    for _ in range(2):
        after = cache_images(m, cache, size=8, on_error="skip")
        assert after.paths == ("a/0.jpg", "b/0.jpg", "b/1.jpg")
        assert "1 sample left out" in after.notes[-1]
        assert np.array_equal(after.pixels, before.pixels[[0, 2, 3]])
    with pytest.raises(NearfarError, match=r"a/1\.jpg is empty"):
        cache_images(m, cache, size=8)
    for file in cache.glob("*.npy"):
        file.write_bytes(b"junk")
    with pytest.raises(NearfarError, match="delete it to build it again"):
        cache_images(m, cache, size=8)
