"""CUB-200-2011 in its official layout: classes 1 to 100 are for training, 101 to 200 for testing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.official import CUB, check_copy, read_table
from nearfar.data.layouts.paths import find_missing
from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError

FILES = ("images.txt", "image_class_labels.txt", "classes.txt")


def is_cub(root: Path) -> bool:
    """Return whether the folder has `image_class_labels.txt`, or both `images.txt` and `images/`.

    The other files may be missing: `open_cub` then raises an error that names the first missing table.
    """
    return (root / "image_class_labels.txt").is_file() or (
        (root / "images.txt").is_file() and (root / "images").is_dir()
    )


@register("cub", recognizes=is_cub, order=SPECIFIC)
def open_cub(root: Path, *, allow_partial: bool = False) -> Manifest:
    """Open CUB-200-2011: a folder with three tables and `images/`.

    The tables are `images.txt` (image id, path), `image_class_labels.txt` (image id, class number) and `classes.txt`
    (class number, name).
    """
    for name in FILES:
        if not (root / name).is_file():
            raise NearfarError(f"{root / name} is missing: a complete copy of CUB-200-2011 has it next to images/")
    classes = {int(number): name for number, name in read_table(root / "classes.txt", 2)}
    class_of_image = dict(read_table(root / "image_class_labels.txt", 2))
    numbers = sorted(classes)
    position = {number: i for i, number in enumerate(numbers)}
    paths, labels = [], []
    for image, path in read_table(root / "images.txt", 2):
        if image not in class_of_image:
            raise NearfarError(
                f"{root / 'image_class_labels.txt'} has no class for image {image} ({path}): download the dataset again"
            )
        number = int(class_of_image[image])
        if number not in position:
            raise NearfarError(
                f"{root / 'classes.txt'} has no class {number}, the class of image {image} ({path}): download the "
                "dataset again"
            )
        paths.append(f"images/{path}")
        labels.append(position[number])
    manifest = Manifest(
        labels=np.array(labels, dtype=np.int64),
        classes=tuple(classes[number] for number in numbers),
        split=np.array(["train" if numbers[label] <= CUB.train_classes else "test" for label in labels]),
        paths=tuple(paths),
        root=root,
        source="CUB-200-2011",
    )
    absent = find_missing(root, paths)
    return check_copy(manifest, CUB, absent=absent, table="images.txt", root=root, allow_partial=allow_partial)
