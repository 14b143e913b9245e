"""A folder with one subfolder per class, or with `train/` and `test/` that have one subfolder per class."""

from __future__ import annotations

from pathlib import Path

from nearfar.data.layouts import GENERIC, register
from nearfar.data.layouts.official import note_partial_copy
from nearfar.data.layouts.paths import manifest_from_paths, scan_folder
from nearfar.data.manifest import Manifest


@register("folder", recognizes=Path.is_dir, order=GENERIC)
def open_folder(root: Path) -> Manifest:
    """Open a folder that has one subfolder per class.

    The class of an image is the name of the first folder below the root, or below train/, val/ or test/. Images in
    deeper folders belong to the same class. An outer folder that contains all class folders, such as `images/`, does
    not count as a class. Hidden files and folders are ignored.
    """
    scan = scan_folder(root)
    manifest = manifest_from_paths(scan.images, root=root, source=root.name or str(root), notes=scan.notes)
    return note_partial_copy(manifest)
