"""Pairs of images and texts, as two manifests of equal length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.csv_files import parse_csv, read_text
from nearfar.data.layouts.paths import find_missing
from nearfar.data.layouts.text_checks import check_texts
from nearfar.data.manifest import Manifest, number_labels
from nearfar.data.python_dataset import as_manifest
from nearfar.errors import NearfarError


def open_pairs(data: Any) -> tuple[Manifest, Manifest]:
    """Open pairs of an image and a text. Return the manifest of the images and the manifest of the texts.

    Pairs with the same text have the same label.

    Args:
        data: A CSV or TSV file with the columns `path` and `text`, or a map-style dataset whose items are pairs (image,
            text) or dicts with the keys `image` and `text`.

    Raises:
        NearfarError: If a column, a key or a file is missing, or if a text is empty.
    """
    if isinstance(data, str | Path):
        return _open_csv(Path(data).expanduser())
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__") or not len(data):
        kind = type(data).__name__
        raise NearfarError(f"data must be a CSV file or a non-empty dataset of pairs (image, text), got {kind}")
    first = data[0]
    if isinstance(first, Mapping):
        missing = [key for key in ("image", "text") if key not in first]
        if missing:
            raise NearfarError(f"an item has no key {missing[0]!r}: its keys are {', '.join(map(str, first))}")
        images = as_manifest(data, image="image", label="text")
    else:
        images = as_manifest(data)
    texts = [images.classes[label] for label in images.labels.tolist()]
    return images, _texts(images, texts, Path(images.source))


def _open_csv(path: Path) -> tuple[Manifest, Manifest]:
    table = parse_csv(read_text(path), path, delimiter="\t" if path.suffix == ".tsv" else ",")
    names = [name.strip() for name in table[0]] if table else []
    for name in ("path", "text"):
        if name not in names:
            raise NearfarError(f"{path} has no column {name!r} (it has {', '.join(names) or 'none'})")
    rows = [row for row in table[1:] if row]
    if not rows or any(len(row) != len(names) for row in rows):
        raise NearfarError(f"{path} needs at least one row, and every row must have {len(names)} cells")
    files, texts = ([row[names.index(name)] for row in rows] for name in ("path", "text"))
    absent = find_missing(path.parent, files)
    if absent:
        count = f"{len(absent):,} of {len(files):,}"
        raise NearfarError(
            f"{path}: {count} listed files do not exist, the first: {absent[0]}: correct the paths, which are relative "
            f"to {path.parent}"
        )
    check_texts(path, texts, range(2, len(rows) + 2))
    labels, classes = number_labels(texts)
    split = np.full(len(rows), "train")
    images = Manifest(
        labels=labels, classes=classes, split=split, paths=tuple(files), root=path.parent, source=path.name
    )
    return images, _texts(images, texts, path)


def _texts(images: Manifest, texts: list[str], path: Path) -> Manifest:
    check_texts(path, texts, range(len(texts)))
    return Manifest(
        labels=images.labels, classes=images.classes, split=images.split, texts=tuple(texts), source=images.source
    )
