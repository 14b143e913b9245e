"""In-Shop Clothes Retrieval (DeepFashion) in its official layout: train, query and gallery images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.official import IN_SHOP, check_copy, read_table
from nearfar.data.layouts.paths import find_missing
from nearfar.data.manifest import Manifest, number_labels
from nearfar.errors import NearfarError

TABLES = ("Eval/list_eval_partition.txt", "list_eval_partition.txt")
FOLDERS = ("Img", ".", "img_highres")
STATUS = ("train", "query", "gallery")


def is_in_shop(root: Path) -> bool:
    """Return whether the folder contains `list_eval_partition.txt`, directly or in `Eval/`."""
    return any((root / table).is_file() for table in TABLES)


@register("in-shop", recognizes=is_in_shop, order=SPECIFIC)
def open_in_shop(root: Path, *, allow_partial: bool = False) -> Manifest:
    """Open In-Shop: a folder with `Eval/list_eval_partition.txt` and `Img/`.

    The first line of the list is the number of images, and the second line is a header. The columns are `image_name`,
    `item_id` and `evaluation_status`. Query and gallery images have `split == "test"` and differ in `role`.
    """
    table = next(table for table in TABLES if (root / table).is_file())
    rows = read_table(root / table, 3, skip=2)
    unknown = next((row for row in rows if row[2] not in STATUS), None)
    if unknown:
        raise NearfarError(
            f"{root / table}: {unknown[0]} has status {unknown[2]!r}, expected one of {', '.join(STATUS)}"
        )
    labels, classes = number_labels([row[1] for row in rows])
    # The folder of the images differs between releases, so use the folder that contains the first image.
    folder = next((f for f in FOLDERS if rows and (root / f / rows[0][0]).is_file()), FOLDERS[0])
    paths = [row[0] if folder == "." else f"{folder}/{row[0]}" for row in rows]
    role = np.array([row[2] for row in rows])
    manifest = Manifest(
        labels=labels,
        classes=classes,
        split=np.where(role == "train", "train", "test"),
        role=role,
        paths=tuple(paths),
        root=root,
        source=IN_SHOP.name,
    )
    absent = find_missing(root, paths)
    return check_copy(manifest, IN_SHOP, absent=absent, table=table, root=root, allow_partial=allow_partial)
