"""Vectors and small pictures in numpy files: .npz with labels inside, .npy with a labels file beside it."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nearfar.data.manifest import SPLITS, Array, Ints, Manifest, number_labels
from nearfar.errors import NearfarError
from nearfar.files import atomic

CONTENT = ("features", "pixels", "x", "embeddings", "images")
LABELS = ("labels", "y", "label")
NAMES = ("classes", "names")
BESIDE = (
    "{stem}.labels.npy",
    "{stem}.labels.txt",
    "{stem}_labels.npy",
    "{stem}_labels.txt",
    "labels.npy",
    "labels.txt",
)
FINITE_ROWS = 8192


def open_npz(path: Path) -> Manifest:
    """`features` or `x` [N, d], or uint8 pictures [N, H, W(, 3)]; `labels` or `y` [N]; the rest is optional.

    `classes` or `names`: class names that integer labels point into. `split`: words for each row or each class.
    `is_eval`: booleans for each row or each class, true = test. `role`, `paths`: words for each row. Without a
    split it is by class order. A file NAME.names.txt beside it gives the rows names, one a line. Nothing pickled is
    ever read.
    """
    arrays = _load_npz(path)
    flat = next((name for name in ("paths", "role", *NAMES) if name in arrays and arrays[name].ndim != 1), None)
    if flat is not None:
        raise NearfarError(f"{path}: {flat} must be [N], got shape {list(arrays[flat].shape)}")
    key = next((name for name in CONTENT if name in arrays), None)
    label_key = next((name for name in LABELS if name in arrays), None)
    if key is None or label_key is None:
        want = "'features' (or 'x')" if key is None else "'labels' (or 'y')"
        raise NearfarError(f"{path}: has no array {want}; it has {', '.join(arrays) or 'nothing'}")
    content = arrays[key]
    if not content.ndim:
        raise NearfarError(f"{path}: {key} must be [N, ...], got a single value")
    names_key = next((name for name in NAMES if name in arrays), None)
    names = None if names_key is None else [str(name) for name in arrays[names_key].tolist()]
    labels, classes = _labels(path, label_key, arrays[label_key], names)
    if len(labels) != len(content):
        raise NearfarError(f"{path}: {key} has {len(content):,} rows but {label_key} has {len(labels):,}")
    paths = arrays.get("paths", _names_beside(path, len(content)))
    manifest = _manifest(path, key, content, labels, classes, arrays.get("role"), paths)
    if "note" in arrays:
        manifest = replace(manifest, source=str(arrays["note"]))
    try:
        return _with_split(path, manifest, arrays)
    except ValueError as error:
        raise NearfarError(f"{path}: split or is_eval cannot be read ({error})") from error


def open_npy(path: Path, *, labels: Path | None = None) -> Manifest:
    """[N, d] vectors (mapped, not read into memory) or uint8 pictures, with labels from a file.

    The file is `labels`, or found beside: NAME.labels.npy, NAME.labels.txt (one label a line), NAME_labels.npy / .txt,
    labels.npy / .txt. Split by class order.
    """
    content = _load_npy(path, mmap_mode="r")
    if not content.ndim:
        raise NearfarError(f"{path}: must be [N, ...], got a single value")
    if labels is None:
        tried = [path.with_name(pattern.format(stem=path.stem)) for pattern in BESIDE]
        labels = next((file for file in tried if file.is_file() and file != path), None)
        if labels is None:
            raise NearfarError(f"{path}: no labels beside it: put them into {tried[1].name}, one line a row")
    values = _label_file(labels)
    numbers, classes = _labels(labels, "labels", values, None)
    if len(numbers) != len(content):
        raise NearfarError(f"{labels}: has {len(numbers):,} labels but {path.name} has {len(content):,} rows")
    return _manifest(path, "array", content, numbers, classes, None, None).split_by_class_order()


def save_npz(manifest: Manifest, path: Path) -> None:
    """Writes a manifest of features or pixels with everything it says, whole or not at all."""
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
    else:
        raise NearfarError(f"{path}: a manifest of files has no arrays for .npz: save it as .csv")
    if manifest.paths is not None:
        arrays["paths"] = np.array(manifest.paths, dtype=np.str_)
    if manifest.role is not None:
        arrays["role"] = manifest.role
    with atomic(path) as draft, open(draft, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _load_npz(path: Path) -> dict[str, Array]:
    try:
        with zipfile.ZipFile(path) as packed:
            size, most = sum(member.file_size for member in packed.infolist()), _memory()
        if size > most:
            raise NearfarError(f"{path}: has {size:,} bytes unpacked, above this machine's {most:,}: save .npy files")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except NearfarError:
        raise
    except Exception as error:  # numpy, zipfile and what unpacks for it raise a dozen kinds
        raise NearfarError(
            f"{path}: is not a readable .npz without pickled objects ({error}): save it again"
        ) from error


def _memory() -> int:
    # where the system does not tell, nothing is refused for its size
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else sys.maxsize


def _load_npy(path: Path, *, mmap_mode: Literal["r"] | None = None) -> Array:
    try:
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except Exception as error:  # of a damaged header numpy raises a dozen kinds
        raise NearfarError(f"{path}: is not a readable .npy array ({error}): save it again") from error
    if not isinstance(array, np.ndarray):
        raise NearfarError(f"{path}: is an archive of arrays: name it .npz")
    return array


def _names_beside(path: Path, rows: int) -> Array | None:
    file = path.with_name(f"{path.stem}.names.txt")
    if not file.is_file():
        return None
    names = _label_file(file)
    if len(names) != rows:
        raise NearfarError(
            f"{file}: has {len(names):,} names but {path.name} has {rows:,} rows: remove it or put it right"
        )
    return names


def _label_file(path: Path) -> Array:
    if path.suffix == ".npy":
        return np.atleast_1d(_load_npy(path))
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NearfarError(f"{path}: cannot be read ({error})") from error
    return np.array([line.strip() for line in lines if line.strip()], dtype=np.str_)


def _labels(path: Path, key: str, values: Array, names: Sequence[str] | None) -> tuple[Ints, tuple[str, ...]]:
    if values.ndim != 1 or values.dtype.kind not in "iuU":
        cure = "one integer or string a row; floats are refused because ids must be exact"
        raise NearfarError(f"{path}: {key} must be [N] integers or strings, got {values.dtype} {values.shape}: {cure}")
    if not len(values):
        raise NearfarError(f"{path}: {key} is empty")
    if values.dtype.kind == "U" or names is None:
        words = [str(value) for value in values.tolist()]
        order = None if names is None or not set(words) <= set(names) else names
        return number_labels(words, order)
    if int(values.min()) < 0 or int(values.max()) >= len(names):
        raise NearfarError(
            f"{path}: {key} runs from {values.min()} to {values.max()}, but there are {len(names)} class names"
        )
    if len(set(names)) != len(names):
        raise NearfarError(f"{path}: class names repeat: make them distinct")
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
        _check_finite(path, key, content)
    else:
        shapes = "numbers [N, d], or uint8 [N, H, W] or [N, H, W, 3]"
        raise NearfarError(f"{path}: {key} must be {shapes}, got {content.dtype} {content.shape}")
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


def _check_finite(path: Path, key: str, content: Array) -> None:
    if content.dtype.kind != "f":
        return
    for start in range(0, len(content), FINITE_ROWS):
        good = np.isfinite(content[start : start + FINITE_ROWS]).all(axis=1)
        if not good.all():
            row = start + int(np.flatnonzero(~good)[0])
            raise NearfarError(f"{path}: {key} has NaN or infinite values, first in row {row}: remove such rows")


def _with_split(path: Path, manifest: Manifest, arrays: Mapping[str, Any]) -> Manifest:
    if "split" in arrays:
        words = np.asarray(arrays["split"], dtype=np.str_)
        odd = sorted(set(words.ravel().tolist()) - set(SPLITS))
        if odd:
            raise NearfarError(f"{path}: split has {odd[0]!r}: expected {', '.join(SPLITS)}")
        split = _per_row(path, "split", words, manifest)
    elif "is_eval" in arrays:
        split = np.where(
            _per_row(path, "is_eval", np.asarray(arrays["is_eval"], dtype=np.bool_), manifest), "test", "train"
        )
    else:
        return manifest.split_by_class_order()
    return replace(manifest, split=split)


def _per_row(path: Path, key: str, values: Array, manifest: Manifest) -> Array:
    if values.shape == (len(manifest),):
        return values
    if values.shape == (len(manifest.classes),):
        return values[manifest.labels]
    wanted = f"each of the {len(manifest):,} rows or {len(manifest.classes):,} classes"
    raise NearfarError(f"{path}: {key} must have one entry for {wanted}, got {values.shape}")
