"""Cars-196 in its three layouts, all split by class: 1 to 98 train, 99 to 196 test.

- `cars_annos.mat` + `car_ims/`: the whole set in one folder;
- `cars_train/`, `cars_test/` and `devkit/`: the challenge's release, with `cars_test_annos_withlabels.mat`;
- `train/<class name>/` and `test/<class name>/`: the same pictures sorted into folders. Both hold all 196 classes (a
  classification split), so they are put together and split by class, which is name order.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.layouts.official import CARS, check_copy
from nearfar.data.layouts.paths import find_missing, manifest_from_paths, scan_folder
from nearfar.data.manifest import Array, Manifest
from nearfar.errors import NearfarError

WHOLE = "cars_annos.mat"
META = "devkit/cars_meta.mat"
TRAIN = "devkit/cars_train_annos.mat"
TEST = ("devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat")
SIGNATURE = frozenset(("AM General Hummer SUV 2000", "smart fortwo Convertible 2012"))


def is_cars(root: Path) -> bool:
    """Whether the folder has the .mat annotations, or train/ and test/ with the names of the cars."""
    return (root / WHOLE).is_file() or (root / META).is_file() or _is_folders(root)


def open_cars(root: Path, *, allow_partial: bool = False) -> Manifest:
    """Whichever of the three layouts it is. The .mat files need scipy."""
    if (root / WHOLE).is_file():
        table, listing = WHOLE, _whole(root)
    elif (root / META).is_file():
        table, listing = TRAIN, _devkit(root)
    else:
        return _folders(root, allow_partial=allow_partial)
    classes = tuple(listing.names)
    if listing.labels.min() < 1 or listing.labels.max() > len(classes):
        raise NearfarError(f"{root / table}: has class {listing.labels.max()}, but {len(classes)} names")
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


def _whole(root: Path) -> _Listing:
    data = _load(root / WHOLE)
    notes = _field(data, "annotations", root / WHOLE)
    return _Listing(
        _strings(_field(data, "class_names", root / WHOLE)), _strings(notes["relative_im_path"]), _ints(notes)
    )


def _devkit(root: Path) -> _Listing:
    test = next((root / name for name in TEST if (root / name).is_file()), None)
    if not (root / TRAIN).is_file() or test is None:
        absent = root / (TEST[0] if (root / TRAIN).is_file() else TRAIN)
        raise NearfarError(f"{absent}: is missing: Cars-196 needs the labels of train and of test (withlabels)")
    names = _strings(_field(_load(root / META), "class_names", root / META))
    paths: list[str] = []
    labels: list[Array] = []
    for folder, file in (("cars_train", root / TRAIN), ("cars_test", test)):
        notes = _field(_load(file), "annotations", file)
        if "class" not in (notes.dtype.names or ()):
            raise NearfarError(f"{file}: has no field 'class': use the file with labels")
        paths += [f"{folder}/{name}" for name in _strings(notes["fname"])]
        labels.append(_ints(notes))
    return _Listing(names, paths, np.concatenate(labels))


def _load(path: Path) -> dict[str, Any]:
    try:
        loadmat = import_module("scipy.io").loadmat
    except ImportError as error:
        raise NearfarError(f"{path}: reading .mat files needs scipy: pip install scipy") from error
    try:
        data: dict[str, Any] = loadmat(path, squeeze_me=True)
    except Exception as error:  # scipy raises many kinds on a damaged file
        raise NearfarError(f"{path}: is not a readable .mat file ({error}): get it again") from error
    return data


def _field(data: dict[str, Any], name: str, path: Path) -> Array:
    if name not in data:
        raise NearfarError(f"{path}: has no variable {name!r}: is it the file of Cars-196?")
    return np.atleast_1d(data[name])


def _strings(values: Array) -> list[str]:
    return [str(value) for value in np.atleast_1d(values).tolist()]


def _ints(notes: Array) -> Array:
    return np.array([int(value) for value in notes["class"].tolist()], dtype=np.int64)


def _is_folders(root: Path) -> bool:
    parts = [root / "train", root / "test"]
    return all(part.is_dir() and all((part / name).is_dir() for name in SIGNATURE) for part in parts)


def _folders(root: Path, *, allow_partial: bool) -> Manifest:
    found = scan_folder(root)
    pictures = [path for path in found.pictures if path.startswith(("train/", "test/"))]
    manifest = manifest_from_paths(pictures, root=root, source=CARS.name, notes=found.notes).split_by_class_order()
    return check_copy(manifest, CARS, absent=[], table="train/ + test/", root=root, allow_partial=allow_partial)
