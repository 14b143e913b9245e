"""Open data of any layout as a manifest, and save manifests."""

from __future__ import annotations

from pathlib import Path

from nearfar.data.layouts import LAYOUTS, embedded_names, layout_names, open_layout, recognize
from nearfar.data.layouts.arrays import save_npz
from nearfar.data.layouts.tables import save_csv
from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError
from nearfar.spelling import suggest
from nearfar.validation import check_choice


def open_data(
    source: str | Path,
    *,
    split: str = "auto",
    allow_partial: bool = False,
    root: Path | None = None,
    labels: Path | None = None,
) -> Manifest:
    """Open a dataset as a manifest. The layout is recognized from the source.

    The source is one of:

    - `sketches`: the built-in drawings (write `./sketches` for a folder of this name);
    - a folder: CUB-200-2011, Cars-196, Stanford Online Products or In-Shop in their official layout (also one folder
      deeper, as their archives unpack), otherwise class folders, or `train/` and `test/` with class folders;
    - `.tar`, `.tar.gz`, `.tgz`: class folders, read without unpacking to a folder;
    - `.csv`, `.tsv`, `.parquet`: the columns path, label and optionally split and role;
    - `.npz`: features or small images with their labels; `.npy`: the same with a labels file;
    - `LAYOUT:PATH`: a path that is opened with the layout of this name, such as one that you registered.

    Args:
        source: Name or path of the dataset.
        split: "auto" uses the split that the data has. If it has none, the first half of the classes is for training.
            "class-order" always splits by classes.
        allow_partial: Accept an incomplete copy. The notes of the manifest say what is missing.
        root: Folder or tar archive that the paths of a table are relative to.
        labels: File with the labels of an `.npy` file.

    >>> open_data("sketches")
    Manifest(sketches: 34500 pixels, 345 classes)
    """
    check_choice("split", split, ("auto", "class-order"))
    name, path = _find_layout(source)
    manifest = open_layout(name, path, allow_partial=allow_partial, root=root, labels=labels)
    return manifest.split_by_class_order() if split == "class-order" else manifest


def _find_layout(source: str | Path) -> tuple[str, Path | None]:
    if isinstance(source, str) and source in embedded_names():
        return source, None
    path = Path(source).expanduser()
    if not path.exists():
        name, _, inner = str(source).partition(":")
        if inner and name in LAYOUTS.names():
            return name, Path(inner).expanduser()
        similar = suggest(str(source), [*embedded_names(), *_siblings(path)])
        raise NearfarError(f"{source}: no such file, folder or built-in dataset{similar}")
    layout = recognize(path)
    if layout is None:
        raise NearfarError(f"{source}: no data layout recognizes this file. Known: {', '.join(layout_names())}")
    return layout


def _siblings(path: Path) -> list[str]:
    try:
        return [str(path.with_name(entry.name)) for entry in path.parent.iterdir()]
    except OSError:
        return []


def save_manifest(manifest: Manifest, path: str | Path) -> None:
    """Save a manifest as .csv (files) or .npz (features, pixels). `open_data` reads an equal one back."""
    path = Path(path)
    name = path.name.lower()
    if name.endswith(".csv"):
        save_csv(manifest, path)
    elif name.endswith(".npz"):
        save_npz(manifest, path)
    else:
        raise NearfarError(f"{path}: a manifest is saved as .csv (files) or .npz (features, pixels)")
