"""Datasets of Python as manifests: pairs, dicts, Hugging Face datasets, arrays, splits, and what is refused."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data import as_manifest
from nearfar.data.images import ImageReader
from nearfar.errors import NearfarError
from own_parts import BarImages, Bars


class Pairs:
    def __init__(self, items: list[Any], **attributes: Any) -> None:
        self.items, self.reads = items, 0
        for name, value in attributes.items():
            setattr(self, name, value)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        self.reads += 1
        return self.items[row]


def test_tensors_are_read_lazily_and_split_by_class() -> None:
    manifest = as_manifest(Bars())
    assert (manifest.kind, len(manifest), manifest.source) == ("tensors", 36, "python:Bars")
    assert manifest.classes == tuple(f"bar {label}" for label in range(6))
    part = manifest.subset("test")
    assert set(part.labels.tolist()) == {3, 4, 5}
    assert part.items is not None
    torch.testing.assert_close(part.items[0], Bars()[3][0])


def test_labels_are_read_without_the_samples_if_possible() -> None:
    data = Pairs([(torch.zeros(1, 4, 4), 7)] * 5, targets=[0, 1, 1, 0, 2], classes=("x", "y", "z"))
    manifest = as_manifest(data)
    assert data.reads == 1
    assert [manifest.classes[label] for label in manifest.labels] == ["x", "y", "y", "x", "z"]


def test_images_are_decoded_by_the_reader() -> None:
    manifest = as_manifest(BarImages())
    assert (manifest.kind, manifest.name(2)) == ("files", "item 2")
    image = BarImages()[5]["image"]
    reader = ImageReader(manifest)
    np.testing.assert_array_equal(np.asarray(reader.read_image(5)), np.asarray(image))
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(reader.read_bytes(5)))), np.asarray(image))


def test_vectors_texts_and_arrays() -> None:
    vectors = as_manifest(Pairs([(np.full(3, row), row // 2) for row in range(4)]))
    assert vectors.features is not None
    assert vectors.features.tolist() == [[row] * 3 for row in range(4)]
    texts = as_manifest(Pairs([{"text": f"text {row}", "label": "ab"[row // 2]} for row in range(4)]))
    assert texts.texts == ("text 0", "text 1", "text 2", "text 3")
    pixels = as_manifest((np.zeros((4, 5, 5), np.uint8), torch.tensor([0, 0, 1, 1])))
    assert (pixels.kind, pixels.classes) == ("pixels", ("0", "1"))


def test_a_dict_gives_the_splits() -> None:
    manifest = as_manifest({"train": Bars(), "validation": Bars(), "test": Bars()})
    assert [int((manifest.split == name).sum()) for name in ("train", "val", "test")] == [36, 36, 36]
    assert manifest.items is not None
    torch.testing.assert_close(manifest.items[36 + 7], Bars()[7][0])
    assert as_manifest({"train": Bars(), "test": Bars()}, split="class-order").split[5] == "test"


def test_hugging_face_datasets() -> None:
    datasets = pytest.importorskip("datasets")
    images = [BarImages()[row]["image"] for row in range(6)]
    features = datasets.Features({"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["owl", "cat"])})
    data = datasets.Dataset.from_dict({"picture": images, "kind": [1, 0, 1, 0, 1, 0]}, features=features)
    manifest = as_manifest(data, image="picture", label="kind")
    assert [manifest.classes[label] for label in manifest.labels[:2]] == ["cat", "owl"]
    np.testing.assert_array_equal(np.asarray(ImageReader(manifest).read_image(3)), np.asarray(images[3]))
    both = as_manifest(datasets.DatasetDict({"train": data, "test": data}), image="picture", label="kind")
    assert both.split.tolist() == ["train"] * 6 + ["test"] * 6


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Pairs([]), {}, "the dataset is empty"),
        (Pairs([3]), {}, r"an item must be a pair \(x, label\) or a dict, got int"),
        (Pairs([{"picture": 1, "label": 1}]), {}, "no key for the image, such as 'image': set image to one of picture"),
        (Pairs([{"image": torch.zeros(2), "kind": 1}]), {"label": "knd"}, "has no key 'knd', the value of label"),
        (Pairs([(torch.zeros(2), 0.5)]), {}, "a label must be a string or an integer, got float 0.5"),
        (Pairs([(" ", "a")]), {}, "python:Pairs, row 0: the text is empty"),
        ({"trian": Bars()}, {}, "the keys of a dict of datasets must be among train, val, test, got trian"),
        ((np.zeros((2, 3)), [1]), {}, "features has 2 rows but labels has 1"),
    ],
)
def test_errors_are_one_line(data: Any, options: dict[str, str], message: str) -> None:
    with pytest.raises(NearfarError, match=message) as caught:
        as_manifest(data, **options)
    assert "\n" not in str(caught.value)
