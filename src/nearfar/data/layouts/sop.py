"""Stanford Online Products in its official layout, with separate lists of the train and test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.official import SOP, check_copy, read_table
from nearfar.data.layouts.paths import find_missing
from nearfar.data.manifest import Manifest, number_labels
from nearfar.errors import NearfarError

LISTS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}


def is_sop(root: Path) -> bool:
    """Return whether the folder has `Ebay_train.txt` or `Ebay_test.txt`."""
    return any((root / name).is_file() for name in LISTS.values())


@register("sop", recognizes=is_sop, order=SPECIFIC)
def open_sop(root: Path, *, allow_partial: bool = False) -> Manifest:
    """Open Stanford Online Products: a folder with `Ebay_train.txt` and `Ebay_test.txt`.

    Both lists have a header line and the columns `image_id`, `class_id`, `super_class_id` and `path`.
    """
    paths: list[str] = []
    ids: list[str] = []
    split: list[str] = []
    for part, name in LISTS.items():
        if not (root / name).is_file():
            raise NearfarError(f"{root / name} is missing: a complete copy of {SOP.name} has both lists")
        rows = read_table(root / name, 4, skip=1)
        paths += [row[3] for row in rows]
        ids += [row[1] for row in rows]
        split += [part] * len(rows)
    labels, classes = number_labels(ids)
    manifest = Manifest(
        labels=labels, classes=classes, split=np.array(split), paths=tuple(paths), root=root, source=SOP.name
    )
    absent = find_missing(root, paths)
    return check_copy(
        manifest, SOP, absent=absent, table="Ebay_train.txt + Ebay_test.txt", root=root, allow_partial=allow_partial
    )
