"""Python objects as data: map-style torch datasets, Hugging Face datasets, arrays, or a dict of these by split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from nearfar.data.items import Items
from nearfar.data.layouts import PYTHON
from nearfar.data.layouts.text_checks import check_texts
from nearfar.data.manifest import SPLITS, Array, Manifest, number_labels
from nearfar.data.open import open_data
from nearfar.errors import NearfarError

Source = Any  # a path, a manifest, a dataset, a pair (x, labels), or a dict that maps split names to datasets or pairs
SPLIT_NAMES = {"train": "train", "test": "test", "val": "val", "valid": "val", "validation": "val"}
IMAGE_KEYS, TEXT_KEYS, LABEL_KEYS = ("image", "img", "x"), ("text", "sentence"), ("label", "labels", "target", "y")


def as_manifest(
    data: Source,
    *,
    image: str | None = None,
    text: str | None = None,
    label: str | None = None,
    split: str = "auto",
) -> Manifest:
    """Return data of any kind as a manifest. Images and tensors of a dataset are read only when they are needed.

    Args:
        data: One of these:

            - a path or name (see `open_data`), or a manifest;
            - a map-style dataset: it has a length, and `data[i]` is a pair (sample, label) or a dict;
            - a Hugging Face `datasets.Dataset` or `DatasetDict`;
            - a pair (x, labels), where x holds vectors [N, d], or uint8 images [N, H, W] or [N, H, W, 3];
            - a dict with datasets or pairs under the keys "train", "val" and "test".

            A sample of a dataset is a Pillow image, the bytes of an image file, a uint8 array [H, W] or [H, W, 3], a
            text, a vector, or any other tensor, which is passed to the network as it is. Texts and vectors are loaded
            into memory. Labels are read from the attribute `targets` or `labels` of a dataset if it has one, otherwise
            from every item. If labels are numbers, class names are read from the attribute `classes`.
        image, text, label: Keys of the image or text and of the label in items that are dicts.
        split: "auto" uses the splits of `data`. If there are none or only one, the first half of the classes is for
            training and the other half for testing. "class-order" always splits the classes in this way. If `data` is
            already a manifest, it is returned unchanged.

    Raises:
        NearfarError: If an item has a different form, or a key is missing.

    >>> as_manifest((np.eye(4, 3), ["a", "a", "b", "b"]))
    Manifest(python:array: 4 features, 2 classes)
    """
    if isinstance(data, Manifest):
        return data
    if isinstance(data, str | Path):
        return open_data(data, split=split)
    if isinstance(data, tuple) and len(data) == 2:
        manifest = _from_arrays(*data)
    elif isinstance(data, Mapping):
        manifest = _join(data, image=image, text=text, label=label)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        manifest = _from_dataset(data, image=image, text=text, label=label)
    else:
        raise NearfarError(
            "data must be a path, a manifest, a map-style dataset, a pair (x, labels) or a dict that maps split names "
            f"to these, got {type(data).__name__}"
        )
    has_splits = isinstance(data, Mapping) and len(data) > 1
    return manifest if has_splits and split == "auto" else manifest.split_by_class_order()


def _from_arrays(x: Any, labels: Any) -> Manifest:
    array = np.asarray(x.numpy() if isinstance(x, Tensor) else x)
    numbers, classes = number_labels([_name(value) for value in labels])
    content: dict[str, Any] = {"pixels" if array.dtype == np.uint8 and array.ndim > 2 else "features": array}
    source = f"{PYTHON}array"
    try:
        return Manifest(labels=numbers, classes=classes, split=_all_train(len(numbers)), source=source, **content)
    except ValueError as error:
        raise NearfarError(f"the pair (x, labels): {error}") from None


def _from_dataset(data: Any, *, image: str | None, text: str | None, label: str | None) -> Manifest:
    name = f"{PYTHON}{type(data).__name__}"
    if not len(data):
        raise NearfarError(f"{name}: the dataset is empty")
    if hasattr(data, "column_names"):
        data = _encoded_images(data, image)
    first = data[0]
    read = _reader(first, name, image=image, text=text)
    labels, classes = number_labels(*_labels(data, first, name, label))
    shared: dict[str, Any] = {"labels": labels, "classes": classes, "split": _all_train(len(labels)), "source": name}
    sample = read(first)
    rows = np.arange(len(labels))
    if isinstance(sample, str):
        texts = [read(data[row]) for row in rows.tolist()]
        check_texts(Path(name), texts, rows.tolist())
        return Manifest(texts=tuple(texts), **shared)
    if isinstance(sample, bytes | Image.Image) or _is_pixels(sample):
        items = Items(_Column(data, read), rows, are_images=True)
        return Manifest(items=items, paths=tuple(f"item {row}" for row in rows.tolist()), **shared)
    if np.ndim(sample) == 1:
        vectors = np.stack([np.asarray(read(data[row]), np.float32) for row in rows.tolist()])
        return Manifest(features=vectors, **shared)
    return Manifest(items=Items(_Column(data, read), rows, are_images=False), **shared)


class _Column:
    """The samples of a dataset without their labels."""

    def __init__(self, data: Any, read: Callable[[Any], Any]) -> None:
        self.data, self.read = data, read

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> Any:
        return self.read(self.data[row])


def _reader(item: Any, name: str, *, image: str | None, text: str | None) -> Callable[[Any], Any]:
    """Return the function that extracts the sample from an item."""
    if isinstance(item, Mapping):
        key = _find_key(item, name, image or text, (*IMAGE_KEYS, *TEXT_KEYS), "image" if text is None else "text")
        return lambda item: _without_path(item[key])
    if isinstance(item, tuple | list) and len(item) >= 2:
        return lambda item: item[0]
    raise NearfarError(f"{name}: an item must be a pair (x, label) or a dict, got {type(item).__name__}")


def _without_path(value: Any) -> Any:
    """Return the bytes of an undecoded Hugging Face image {"bytes": ..., "path": ...}, or any other value unchanged."""
    if isinstance(value, Mapping) and "bytes" in value:
        return value["bytes"] if value["bytes"] is not None else Path(value["path"]).read_bytes()
    return value


def _labels(data: Any, item: Any, name: str, label: str | None) -> tuple[list[str], Sequence[str] | None]:
    """Return the label of each item as a string, and the class names in order (None if the dataset has none)."""
    if isinstance(item, Mapping):
        key: Any = _find_key(item, name, label, LABEL_KEYS, "label")
    else:
        key = 1
    features = getattr(data, "features", None)
    if hasattr(data, "column_names"):
        values: Any = data[key]
        classes = getattr(features[key], "names", None) if features is not None else None
    else:
        known = next((getattr(data, word) for word in ("targets", "labels") if hasattr(data, word)), None)
        is_known = known is not None and np.ndim(known) == 1 and len(known) == len(data) and label is None
        values = known if is_known else [data[row][key] for row in range(len(data))]
        classes = getattr(data, "classes", None)
    values = list(values.tolist() if isinstance(values, Tensor | np.ndarray) else values)
    if classes is not None and len(set(map(str, classes))) == len(classes) and all(_is_number(v) for v in values):
        return [str(classes[int(value)]) for value in values], tuple(map(str, classes))
    return [_name(value) for value in values], None


def _find_key(item: Mapping[str, Any], name: str, chosen: str | None, usual: Sequence[str], setting: str) -> str:
    key = chosen or next((key for key in usual if key in item), None)
    if key is None or key not in item:
        wanted = f"{chosen!r}, the value of {setting}" if chosen else f"for the {setting}, such as {usual[0]!r}"
        raise NearfarError(f"{name}: an item has no key {wanted}: set {setting} to one of {', '.join(map(str, item))}")
    return key


def _encoded_images(data: Any, image: str | None) -> Any:
    """Return a Hugging Face dataset that does not decode images, so that nearfar can decode them at a reduced size."""
    for key, feature in data.features.items():
        if type(feature).__name__ == "Image" and (image is None or key == image):
            return data.cast_column(key, type(feature)(decode=False))
    return data


def _join(parts: Mapping[str, Any], **keys: Any) -> Manifest:
    unknown = [name for name in parts if name not in SPLIT_NAMES]
    if unknown or not parts:
        raise NearfarError(
            f"the keys of a dict of datasets must be among {', '.join(SPLITS)}, got {', '.join(parts) or 'none'}"
        )
    manifests = [as_manifest(part, **keys) for part in parts.values()]
    if len({manifest.kind for manifest in manifests}) > 1:
        raise NearfarError("all datasets of a dict must hold the same kind of samples")
    names = [m.classes[label] for m in manifests for label in m.labels.tolist()]
    orders = {m.classes for m in manifests}
    labels, classes = number_labels(names, orders.pop() if len(orders) == 1 else None)
    split = np.array([SPLIT_NAMES[name] for name, m in zip(parts, manifests, strict=True) for _ in range(len(m))])
    shared: dict[str, Any] = {"labels": labels, "classes": classes, "split": split, "source": manifests[0].source}
    first = manifests[0]
    if first.features is not None:
        return Manifest(features=np.concatenate([_array(m.features) for m in manifests]), **shared)
    if first.pixels is not None:
        return Manifest(pixels=np.concatenate([_array(m.pixels) for m in manifests]), **shared)
    if first.texts is not None:
        return Manifest(texts=tuple(text for m in manifests for text in m.texts or ()), **shared)
    if first.items is None:
        raise NearfarError(
            "a dict cannot contain datasets of image files: pass one folder with train/ and test/, or one CSV file "
            "with a column split"
        )
    chain = _Chain([m.items for m in manifests if m.items is not None])
    items = Items(chain, np.arange(len(labels)), are_images=first.items.are_images)
    paths = tuple(f"item {row}" for row in range(len(labels))) if items.are_images else None
    return Manifest(items=items, paths=paths, **shared)


class _Chain:
    """The items of several sources, one after the other."""

    def __init__(self, parts: Sequence[Items]) -> None:
        self.parts, self.ends = parts, np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, row: int) -> Any:
        part = int(np.searchsorted(self.ends, row, side="right"))
        return self.parts[part][row - (int(self.ends[part - 1]) if part else 0)]


def _array(values: Array | None) -> Array:
    assert values is not None
    return values


def _is_pixels(value: Any) -> bool:
    is_image = isinstance(value, np.ndarray) and value.dtype == np.uint8
    return is_image and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 3))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _name(value: Any) -> str:
    """Return a label as a string. A label is a string, an integer or a tensor of one integer."""
    if isinstance(value, Tensor | np.ndarray | np.generic) and np.ndim(value) == 0:
        value = value.item()
    if isinstance(value, str) or _is_number(value):
        return str(value)
    raise NearfarError(f"a label must be a string or an integer, got {type(value).__name__} {value!r}")


def _all_train(count: int) -> Array:
    return np.full(count, "train")
