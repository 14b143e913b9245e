"""A folder of class folders, or of train/ and test/ with class folders."""

from __future__ import annotations

from pathlib import Path

from nearfar.data.layouts.paths import manifest_from_paths, scan_folder
from nearfar.data.manifest import Manifest


def open_folder(root: Path) -> Manifest:
    """Class = the first folder below the root (or below train/, val/, test/); deeper folders belong to it.

    Single folders around everything (`images/`) are passed over. Hidden files and folders are not looked at.
    """
    found = scan_folder(root)
    return manifest_from_paths(found.pictures, root=root, source=root.name or str(root), notes=found.notes)
