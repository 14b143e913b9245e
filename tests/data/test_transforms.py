import math

import numpy as np
import pytest
import torch
from PIL import Image

from data.builders import make_image
from nearfar.data import BatchAugment, eval_transform, train_transform
from nearfar.data.augment import uniform
from nearfar.data.transforms import (
    CenterCrop,
    ColorJitter,
    HorizontalFlip,
    Normalize,
    RandomAffine,
    RandomResizedCrop,
    Resize,
    sample_rng,
)

RNG = sample_rng(0, 0, 0)


def test_crop_boxes_lie_inside_and_have_the_requested_area_and_ratio():
    crop = RandomResizedCrop(8, scale=(0.2, 0.5))
    areas, ratios = [], []
    for i in range(2000):
        left, top, w, h = crop.box((300, 200), sample_rng(0, 0, i))
        assert 0 <= left <= 300 - w
        assert 0 <= top <= 200 - h
        areas.append(w * h / 60000)
        ratios.append(w / h)
    assert 0.195 < min(areas) < 0.21
    assert 0.49 < max(areas) < 0.505
    assert 0.74 < min(ratios) < 0.76
    assert 1.32 < max(ratios) < 1.35
    assert abs(np.mean(areas) - 0.35) < 0.01


def test_crop_of_an_extreme_image_falls_back_to_its_center():
    assert RandomResizedCrop(8, scale=(1, 1)).box((1000, 10), RNG) == (493, 0, 13, 10)
    assert RandomResizedCrop(8, scale=(1, 1)).box((1, 1), RNG) == (0, 0, 1, 1)


def test_resize_and_center_crop():
    assert Resize(20)(make_image(0, (60, 40)), RNG).size == (30, 20)
    assert Resize(20)(make_image(0, (40, 60)), RNG).size == (20, 30)
    assert Resize(20)(make_image(0, (1000, 1)), RNG).size == (20000, 20)
    x = np.arange(25, dtype=np.uint8).reshape(5, 5)
    assert np.asarray(CenterCrop(3)(Image.fromarray(x), RNG)).tolist() == x[1:4, 1:4].tolist()
    padded = np.asarray(CenterCrop(7)(Image.fromarray(x + 1), RNG))
    assert padded[1:6, 1:6].tolist() == (x + 1).tolist()
    assert padded[0].sum() == 0


def test_flip_share():
    flip = HorizontalFlip(0.3)
    image = make_image(0)
    mirrored = sum(flip(image, sample_rng(1, 0, i)) is not image for i in range(2000))
    assert abs(mirrored / 2000 - 0.3) < 0.04


def test_jitter_changes_only_the_named_property():
    image = make_image(1, (20, 20))
    assert ColorJitter()(image, RNG) is image
    means = [np.asarray(ColorJitter(brightness=0.5)(image, sample_rng(0, 0, i))).mean() for i in range(50)]
    assert max(means) > 1.2 * np.asarray(image).mean() > 1.4 * min(means)
    gray = np.asarray(ColorJitter(saturation=1.0)(image.convert("L").convert("RGB"), RNG))
    assert np.abs(gray - np.asarray(image.convert("L"))[..., None].astype(int)).max() <= 1
    with pytest.raises(ValueError, match="contrast"):
        ColorJitter(contrast=-1)


def test_affine_identity_and_shift():
    image = make_image(2, (21, 21))
    assert np.array_equal(np.asarray(RandomAffine()(image, RNG)), np.asarray(image))
    dot = Image.new("RGB", (21, 21), (0, 0, 0))
    dot.putpixel((10, 10), (255, 255, 255))
    moved = {
        np.unravel_index(
            np.asarray(RandomAffine(shift=0.2, fill=(0, 0, 0))(dot, sample_rng(0, 0, i)))[..., 0].argmax(), (21, 21)
        )
        for i in range(50)
    }
    assert len(moved) > 20
    assert all(abs(y - 10) <= 5 and abs(x - 10) <= 5 for y, x in moved)
    with pytest.raises(ValueError, match="zoom"):
        RandomAffine(zoom=(0, 1))


def test_normalize():
    x = Normalize(mean=(0.5, 0.0, 1.0), std=(0.5, 1.0, 2.0))(Image.new("RGB", (2, 3), (255, 51, 0)))
    assert x.shape == (3, 3, 2)
    assert torch.allclose(x[:, 0, 0], torch.tensor([1.0, 0.2, -0.5]))
    with pytest.raises(ValueError, match="channels"):
        Normalize(mean=(0.5,), std=(1.0,))(make_image())
    with pytest.raises(ValueError, match="std"):
        Normalize(mean=(0.5,), std=(0.0,))


def test_pipelines():
    image = make_image(3, (90, 60))
    train, evaluation = train_transform(32, jitter=(0.2, 0.2, 0.2)), eval_transform(32)
    assert train(image, sample_rng(0, 1, 2)).shape == evaluation(image).shape == (3, 32, 32)
    assert torch.equal(train(image, sample_rng(0, 1, 2)), train(image, sample_rng(0, 1, 2)))
    assert not torch.equal(train(image, sample_rng(0, 1, 2)), train(image, sample_rng(0, 2, 2)))
    assert eval_transform(28, mean=(0.5,), std=(0.5,))(image).shape == (1, 28, 28)
    assert evaluation.draft == 2 * 37
    assert train.draft == math.ceil(32 / math.sqrt(0.16 * 0.75))
    with pytest.raises(ValueError, match="resize"):
        eval_transform(32, 30)
    with pytest.raises(ValueError, match="scale"):
        train_transform(32, scale=(0.0, 1.0))


def test_hash_is_uniform_independent_and_fixed():
    u = uniform(3, 5, np.arange(20000), 4)
    assert np.abs(u.mean(0) - 0.5).max() < 0.01
    assert np.abs(u.var(0) - 1 / 12).max() < 0.003
    assert np.abs(np.corrcoef(u.T) - np.eye(4)).max() < 0.03
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.03
    for other in (
        uniform(4, 5, np.arange(20000), 4),
        uniform(3, 6, np.arange(20000), 4),
        uniform(5, 3, np.arange(20000), 4),
    ):
        assert abs(np.corrcoef(u[:, 0], other[:, 0])[0, 1]) < 0.03
    # a change here would silently change every seeded run
    assert uniform(0, 0, [0, 1], 2).round(6).tolist() == [[0.29595, 0.155279], [0.212257, 0.48667]]


def test_no_augmentation_is_the_identity_and_flip_is_a_flip():
    x = torch.rand(3, 2, 7, 9) * 255
    for fill in (None, 0.0, 30.0):
        assert torch.allclose(BatchAugment(fill=fill)(x, [0, 1, 2], seed=0, epoch=0), x, atol=1e-3)
    assert torch.allclose(BatchAugment(flip=1.0)(x, [0, 1, 2], seed=0, epoch=0), x.flip(3), atol=1e-3)


def test_a_rotation_by_90_degrees_rotates_a_square():
    class Quarter(BatchAugment):
        def compute_maps(self, seed, epoch, indices, height, width):
            return torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]]])

    x = torch.rand(1, 1, 6, 6)
    assert torch.allclose(Quarter()(x, [0], seed=0, epoch=0), x.rot90(1, (2, 3)), atol=1e-5)
    # a rotation keeps distances in pixels, also in a wide image
    theta = BatchAugment(rotate=90.0).compute_maps(0, 0, range(50), 10, 20).double()
    to_pixels = torch.tensor([10.0, 5.0], dtype=torch.float64)
    matrix = theta[:, :, :2] * to_pixels[:, None] / to_pixels[None, :]
    assert torch.allclose(matrix @ matrix.mT, torch.eye(2, dtype=torch.float64).expand(50, 2, 2), atol=1e-5)


def test_crops_stay_inside_and_samples_do_not_depend_on_their_batch():
    augment = BatchAugment(crop=(0.2, 1.0), ratio=(3 / 4, 4 / 3), flip=0.5, brightness=0.2, contrast=0.2)
    theta = augment.compute_maps(1, 2, range(500), 32, 32)
    reach = theta[:, :, :2].abs().sum(2) + theta[:, :, 2].abs()
    assert float(reach.max()) <= 1 + 1e-5
    x = torch.rand(4, 3, 32, 32) * 255
    whole = augment(x, [7, 8, 9, 3], seed=1, epoch=2, size=16)
    assert whole.shape == (4, 3, 16, 16)
    assert torch.allclose(augment(x[2:3], [9], seed=1, epoch=2, size=16), whole[2:3], atol=1e-4)
    assert not torch.allclose(augment(x[2:3], [9], seed=1, epoch=3, size=16), whole[2:3], atol=1)


@pytest.mark.parametrize("options", [{"crop": (0.5, 1.5)}, {"zoom": (0.0, 1.0)}, {"flip": 2.0}, {"shift": -0.1}])
def test_bad_augmentation(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        BatchAugment(**options)
