"""Vectors and small images in NumPy files: .npz files that contain labels, and .npy files with a labels file."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.manifest import SPLITS, Array, Ints, Manifest, number_labels
from nearfar.errors import NearfarError
from nearfar.files import atomic

CONTENT = ("features", "pixels", "x", "embeddings", "images")
LABELS = ("labels", "y", "label")
NAMES = ("classes", "names")
LABEL_FILES = (
    "{stem}.labels.npy",
    "{stem}.labels.txt",
    "{stem}_labels.npy",
    "{stem}_labels.txt",
    "labels.npy",
    "labels.txt",
)
FINITE_ROWS = 8192
SMALLEST = 1e-18  # the squares of much smaller numbers underflow in float32


def _has_suffix(suffix: str) -> Callable[[Path], bool]:
    return lambda path: path.name.lower().endswith(suffix) and path.is_file()


@register("npz", recognizes=_has_suffix(".npz"), order=SPECIFIC)
def open_npz(path: Path) -> Manifest:
    """Open an .npz file. Pickled objects are never read.

    Required arrays:

    - `features`, `pixels`, `x`, `embeddings` or `images`: vectors [N, d], or uint8 images [N, H, W] or [N, H, W, 3];
    - `labels`, `y` or `label`: integers or strings [N].

    Optional arrays:

    - `classes` or `names`: class names. Integer labels are indices into them;
    - `split`: "train", "val" or "test" for each sample or each class. By default, the first half of the classes is for
      training and the other half for testing;
    - `is_eval`: a boolean for each sample or each class, where true means test;
    - `role`: "query", "gallery", "train" or "" for each sample, for benchmarks that search with separate queries;
    - `paths`: the name of each sample.

    If there is a file NAME.names.txt next to NAME.npz, its lines are the names of the samples.
    """
    arrays = _load_npz(path)
    nested = next((name for name in ("paths", "role", *NAMES) if name in arrays and arrays[name].ndim != 1), None)
    if nested is not None:
        raise NearfarError(f"{path}: {nested} must have one dimension, got shape {list(arrays[nested].shape)}")
    key = next((name for name in CONTENT if name in arrays), None)
    label_key = next((name for name in LABELS if name in arrays), None)
    if key is None or label_key is None:
        required = "'features' (or 'x')" if key is None else "'labels' (or 'y')"
        raise NearfarError(f"{path} has no array {required}; it has {', '.join(arrays) or 'no arrays'}")
    content = arrays[key]
    if not content.ndim:
        raise NearfarError(f"{path}: {key} must be an array of shape [N, ...], got a single value")
    names_key = next((name for name in NAMES if name in arrays), None)
    names = None if names_key is None else [str(name) for name in arrays[names_key].tolist()]
    labels, classes = _number_labels(path, label_key, arrays[label_key], names)
    if len(labels) != len(content):
        raise NearfarError(f"{path}: {key} has {len(content):,} rows but {label_key} has {len(labels):,}")
    paths = arrays.get("paths", _read_names(path, len(content)))
    manifest = _manifest(path, key, content, labels, classes, arrays.get("role"), paths)
    if "note" in arrays:
        manifest = replace(manifest, source=str(arrays["note"]))
    try:
        return _set_split(path, manifest, arrays)
    except ValueError as error:
        raise NearfarError(f"{path}: split or is_eval cannot be read ({error})") from error


@register("npy", recognizes=_has_suffix(".npy"), order=SPECIFIC)
def open_npy(path: Path, *, labels: Path | None = None) -> Manifest:
    """Open an .npy file of vectors [N, d] or uint8 images as a memory map.

    The first half of the classes is for training and the other half for testing.

    The labels are read from the file `labels`, or from one of these files next to the .npy file: NAME.labels.npy,
    NAME.labels.txt (one label per line), NAME_labels.npy, NAME_labels.txt, labels.npy, labels.txt.
    """
    content = _load_npy(path, mmap_mode="r")
    if not content.ndim:
        raise NearfarError(f"{path} must hold an array of shape [N, ...], got a single value")
    if labels is None:
        files = [path.with_name(pattern.format(stem=path.stem)) for pattern in LABEL_FILES]
        labels = next((file for file in files if file.is_file() and file != path), None)
        if labels is None:
            raise NearfarError(
                f"{path}: there is no labels file next to it: write the labels to {files[1].name}, one per line"
            )
    values = _read_labels(labels)
    numbers, classes = _number_labels(labels, "labels", values, None)
    if len(numbers) != len(content):
        raise NearfarError(f"{labels} has {len(numbers):,} labels but {path.name} has {len(content):,} rows")
    return _manifest(path, "array", content, numbers, classes, None, None).split_by_class_order()


def save_npz(manifest: Manifest, path: Path) -> None:
    """Save a manifest of features or pixels as .npz, without its notes. The file is replaced atomically."""
    arrays: dict[str, Array] = {
        "labels": manifest.labels,
        "classes": np.array(manifest.classes, dtype=np.str_),
        "split": manifest.split,
        "note": np.array(manifest.source, dtype=np.str_),
    }
    if manifest.pixels is not None:
        arrays["pixels"] = manifest.pixels
    elif manifest.features is not None:
        arrays["features"] = manifest.features
    elif manifest.items is not None:
        raise NearfarError(f"{path}: the samples of {manifest.source} are read from a dataset, so they cannot be saved")
    else:
        raise NearfarError(f"{path}: a manifest of {manifest.kind} has no arrays: save it as .csv")
    if manifest.paths is not None:
        arrays["paths"] = np.array(manifest.paths, dtype=np.str_)
    if manifest.role is not None:
        arrays["role"] = manifest.role
    with atomic(path) as draft, open(draft, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _load_npz(path: Path) -> dict[str, Array]:
    try:
        with zipfile.ZipFile(path) as packed:
            size, memory = sum(member.file_size for member in packed.infolist()), _memory_size()
        if size > memory:
            raise NearfarError(
                f"{path} needs {size:,} bytes of memory, but this machine has {memory:,}: save the array as .npy, "
                "which is read from disk"
            )
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except NearfarError:
        raise
    except Exception as error:  # numpy, zipfile and the decompressors raise many types of exception
        raise NearfarError(
            f"{path} is not a readable .npz file without pickled objects ({error}): save it again"
        ) from error


def _memory_size() -> int:
    # if the system does not report the size of its memory, there is no limit
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else sys.maxsize


def _load_npy(path: Path, *, mmap_mode: Literal["r"] | None = None) -> Array:
    try:
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except Exception as error:  # numpy raises many types of exception for a damaged header
        raise NearfarError(f"{path} is not a readable .npy array ({error}): save it again") from error
    if not isinstance(array, np.ndarray):
        raise NearfarError(f"{path} is an archive of arrays: rename it to .npz")
    return array


def _read_names(path: Path, rows: int) -> Array | None:
    file = path.with_name(f"{path.stem}.names.txt")
    if not file.is_file():
        return None
    names = _read_labels(file)
    if len(names) != rows:
        raise NearfarError(
            f"{file} has {len(names):,} names but {path.name} has {rows:,} rows: remove or correct {file.name}"
        )
    return names


def _read_labels(path: Path) -> Array:
    if path.suffix == ".npy":
        return np.atleast_1d(_load_npy(path))
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NearfarError(f"{path} cannot be read ({error})") from error
    return np.array([line.strip() for line in lines if line.strip()], dtype=np.str_)


def _number_labels(path: Path, key: str, values: Array, names: Sequence[str] | None) -> tuple[Ints, tuple[str, ...]]:
    if values.ndim != 1 or values.dtype.kind not in "iuU":
        reason = ": floats are refused, because class ids must be exact" if values.dtype.kind == "f" else ""
        raise NearfarError(
            f"{path}: {key} must be integers or strings of shape [N], got {values.dtype} of shape "
            f"{list(values.shape)}{reason}"
        )
    if not len(values):
        raise NearfarError(f"{path}: {key} is empty")
    if values.dtype.kind == "U" or names is None:
        words = [str(value) for value in values.tolist()]
        order = None if names is None or not set(words) <= set(names) else names
        return number_labels(words, order)
    if int(values.min()) < 0 or int(values.max()) >= len(names):
        raise NearfarError(
            f"{path}: {key} has values from {values.min()} to {values.max()}, but there are {len(names)} class names"
        )
    if len(set(names)) != len(names):
        raise NearfarError(f"{path}: class names are not distinct: rename the duplicates")
    return values.astype(np.int64), tuple(names)


def _manifest(
    path: Path,
    key: str,
    content: Array,
    labels: Ints,
    classes: tuple[str, ...],
    role: Array | None,
    paths: Array | None,
) -> Manifest:
    if content.dtype == np.uint8 and (content.ndim == 3 or (content.ndim == 4 and content.shape[3] in (1, 3))):
        pixels = content[..., 0] if content.ndim == 4 and content.shape[3] == 1 else content
        features = None
    elif content.ndim == 2 and content.dtype.kind in "fiu":
        pixels, features = None, content
        _check_values(path, key, content)
    else:
        shapes = "a numeric array of shape [N, d] or a uint8 array of shape [N, H, W] or [N, H, W, 3]"
        raise NearfarError(f"{path}: {key} must be {shapes}, got {content.dtype} of shape {list(content.shape)}")
    try:
        return Manifest(
            labels=labels,
            classes=classes,
            split=np.full(len(labels), "train"),
            features=features,
            pixels=pixels,
            role=role,
            paths=None if paths is None else tuple(str(name) for name in paths.tolist()),
            root=path.parent,
            source=path.name,
        )
    except ValueError as error:
        raise NearfarError(f"{path}: {error}") from error


def _check_values(path: Path, key: str, content: Array) -> None:
    """Raise an error if a value is not finite, or if the squares of all values underflow in float32."""
    if content.dtype.kind != "f":
        return
    largest = 0.0
    for start in range(0, len(content), FINITE_ROWS):
        good = np.isfinite(content[start : start + FINITE_ROWS]).all(axis=1)
        if not good.all():
            row = start + int(np.flatnonzero(~good)[0])
            raise NearfarError(f"{path}: {key} has NaN or infinite values, the first in row {row}: remove these rows")
        largest = max(largest, float(np.abs(content[start : start + FINITE_ROWS]).max(initial=0.0)))
    if 0 < largest < SMALLEST:
        raise NearfarError(
            f"{path}: {key} has values of at most {largest:.1e}, whose squares underflow in float32: multiply them by "
            "a large constant"
        )


def _set_split(path: Path, manifest: Manifest, arrays: Mapping[str, Any]) -> Manifest:
    if "split" in arrays:
        words = np.asarray(arrays["split"], dtype=np.str_)
        unknown = sorted(set(words.ravel().tolist()) - set(SPLITS))
        if unknown:
            raise NearfarError(f"{path}: split has {unknown[0]!r}, but each value must be one of {', '.join(SPLITS)}")
        split = _expand_to_rows(path, "split", words, manifest)
    elif "is_eval" in arrays:
        split = np.where(
            _expand_to_rows(path, "is_eval", np.asarray(arrays["is_eval"], dtype=np.bool_), manifest), "test", "train"
        )
    else:
        return manifest.split_by_class_order()
    return replace(manifest, split=split)


def _expand_to_rows(path: Path, key: str, values: Array, manifest: Manifest) -> Array:
    if values.shape == (len(manifest),):
        return values
    if values.shape == (len(manifest.classes),):
        return values[manifest.labels]
    sizes = f"{len(manifest):,} rows or {len(manifest.classes):,} classes"
    raise NearfarError(f"{path}: {key} must have one value for each of the {sizes}, got shape {list(values.shape)}")
