"""Cars-196 in its three layouts. In all of them, classes 1 to 98 are for training and 99 to 196 for testing.

- `cars_annos.mat` + `car_ims/`: all images in one folder;
- `cars_train/`, `cars_test/` and `devkit/`: the release of the challenge, which needs `cars_test_annos_withlabels.mat`;
- `train/<class name>/` and `test/<class name>/`: the same images sorted into folders. Both folders contain all 196
  classes, because their split is for classification. They are merged and split by class in the order of the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.official import CARS, check_copy
from nearfar.data.layouts.paths import find_missing, manifest_from_paths, scan_folder
from nearfar.data.manifest import Array, Manifest
from nearfar.errors import NearfarError

ALL = "cars_annos.mat"
META = "devkit/cars_meta.mat"
TRAIN = "devkit/cars_train_annos.mat"
TEST = ("devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat")


def is_cars(root: Path) -> bool:
    """Return whether the folder has the .mat annotations, or train/ and test/ with the class names of Cars-196."""
    return (root / ALL).is_file() or (root / META).is_file() or _has_class_folders(root)


@register("cars", recognizes=is_cars, order=SPECIFIC)
def open_cars(root: Path, *, allow_partial: bool = False) -> Manifest:
    """Open Cars-196 in any of the three layouts. Reading .mat files needs scipy."""
    if (root / ALL).is_file():
        table, listing = ALL, _read_all(root)
    elif (root / META).is_file():
        table, listing = TRAIN, _read_devkit(root)
    else:
        return _open_folders(root, allow_partial=allow_partial)
    classes = tuple(listing.names)
    if listing.labels.min() < 1 or listing.labels.max() > len(classes):
        wrong = listing.labels.min() if listing.labels.min() < 1 else listing.labels.max()
        raise NearfarError(
            f"{root / table} has class {wrong}, but the class names are numbered 1 to {len(classes)}: download the "
            "dataset again"
        )
    labels = listing.labels - 1
    manifest = Manifest(
        labels=labels,
        classes=classes,
        split=np.where(labels < CARS.train_classes, "train", "test"),
        paths=tuple(listing.paths),
        root=root,
        source=CARS.name,
    )
    absent = find_missing(root, listing.paths)
    return check_copy(manifest, CARS, absent=absent, table=table, root=root, allow_partial=allow_partial)


@dataclass
class _Listing:
    names: list[str]
    paths: list[str]
    labels: Array


def _read_all(root: Path) -> _Listing:
    data = _load(root / ALL)
    annotations = _field(data, "annotations", root / ALL)
    return _Listing(
        _strings(_field(data, "class_names", root / ALL)), _strings(annotations["relative_im_path"]), _ints(annotations)
    )


def _read_devkit(root: Path) -> _Listing:
    test = next((root / name for name in TEST if (root / name).is_file()), None)
    if not (root / TRAIN).is_file() or test is None:
        absent = root / (TEST[0] if (root / TRAIN).is_file() else TRAIN)
        raise NearfarError(f"{absent} is missing: Cars-196 needs the labels of both the train and the test images")
    names = _strings(_field(_load(root / META), "class_names", root / META))
    paths: list[str] = []
    labels: list[Array] = []
    for folder, file in (("cars_train", root / TRAIN), ("cars_test", test)):
        annotations = _field(_load(file), "annotations", file)
        if "class" not in (annotations.dtype.names or ()):
            raise NearfarError(f"{file} has no field 'class': use cars_test_annos_withlabels.mat")
        paths += [f"{folder}/{name}" for name in _strings(annotations["fname"])]
        labels.append(_ints(annotations))
    return _Listing(names, paths, np.concatenate(labels))


def _load(path: Path) -> dict[str, Any]:
    try:
        loadmat = import_module("scipy.io").loadmat
    except ImportError as error:
        raise NearfarError(f"{path}: reading .mat files needs scipy: pip install scipy") from error
    try:
        data: dict[str, Any] = loadmat(path, squeeze_me=True)
    except Exception as error:  # scipy raises many types of exception for a damaged file
        raise NearfarError(f"{path} is not a readable .mat file ({error}): download it again") from error
    return data


def _field(data: dict[str, Any], name: str, path: Path) -> Array:
    if name not in data:
        raise NearfarError(f"{path} has no variable {name!r}, so it is not a Cars-196 annotation file")
    return np.atleast_1d(data[name])


def _strings(values: Array) -> list[str]:
    return [str(value) for value in np.atleast_1d(values).tolist()]


def _ints(annotations: Array) -> Array:
    return np.array([int(value) for value in annotations["class"].tolist()], dtype=np.int64)


def _has_class_folders(root: Path) -> bool:
    parts = [root / "train", root / "test"]
    return all(
        part.is_dir() and all((part / name).is_dir() for name in (CARS.first_class, CARS.last_class)) for part in parts
    )


def _open_folders(root: Path, *, allow_partial: bool) -> Manifest:
    scan = scan_folder(root)
    images = [path for path in scan.images if path.startswith(("train/", "test/"))]
    manifest = manifest_from_paths(images, root=root, source=CARS.name, notes=scan.notes).split_by_class_order()
    return check_copy(manifest, CARS, absent=[], table="train/ + test/", root=root, allow_partial=allow_partial)
