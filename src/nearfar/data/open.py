"""Open data of any layout as a manifest, and save manifests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearfar.data.layouts import LAYOUTS, PYTHON, accepts, embedded_names, layout_names, open_layout, recognize
from nearfar.data.layouts.arrays import save_npz
from nearfar.data.layouts.shards import PATTERN
from nearfar.data.layouts.tables import save_csv
from nearfar.data.manifest import Manifest
from nearfar.data.taxonomy import add_taxonomy
from nearfar.errors import NearfarError
from nearfar.files import expand_user, path_exists
from nearfar.spelling import closest
from nearfar.validation import check_choice

NAME_CUTOFF = 0.7  # stricter than for options: file names are arbitrary, so similar names are often unrelated


def open_data(
    source: str | Path,
    *,
    split: str = "auto",
    allow_partial: bool = False,
    root: Path | None = None,
    labels: Path | None = None,
    text: str | None = None,
    label: str | None = None,
    image: str | None = None,
    separator: str | None = None,
    group: str | None = None,
    camera: str | None = None,
    levels: Sequence[str] = (),
    taxonomy: Path | None = None,
) -> Manifest:
    """Open a dataset as a manifest. The layout is recognized from the source.

    The source is one of:

    - `sketches`: the built-in dataset of drawings (use `./sketches` for a folder of this name);
    - a folder with CUB-200-2011, Cars-196, Stanford Online Products or In-Shop in the official layout, or a folder
      whose only subfolder is such a folder;
    - any other folder: one subfolder per class, or `train/` and `test/` with one subfolder per class;
    - `.tar`, `.tar.gz`, `.tgz`, `.zip`: an archive of class folders, which is read without extracting its files;
    - `.csv`, `.tsv`, `.jsonl`: a table with a column `path` or `text`, a column `label`, and optionally the columns
      `split` and `role` (query or gallery);
    - `.csv`, `.tsv` with the columns `a` and `b`, or `text_a` and `text_b`: a table of pairs (see
      `nearfar.data.layouts.pairs`);
    - `.parquet`: a table with the columns of a `.csv` file, or with a column of image files as bytes instead of `path`;
    - tar shards that hold `key.jpg` and `key.cls` or `key.json` for each sample: one shard, a folder of shards, or a
      pattern such as `data-{000..123}.tar`;
    - `.npz`: features or small images with their labels;
    - `.npy`: features or small images, with labels in a separate file;
    - `LAYOUT:PATH`: a path to open with the layout of this name, for example one that you registered.

    Args:
        source: Name or path of the dataset.
        split: "auto" uses the split that the data defines. If it defines none, the first half of the classes is for
            training and the other half for testing. "class-order" always splits the classes in this way.
        allow_partial: If True, an incomplete copy is accepted, and the notes of the manifest list what is missing.
            Otherwise an incomplete copy raises an error.
        root: Folder or archive (tar or zip) that the paths of a table are relative to.
        labels: File with the labels of an `.npy` file.
        text: Column of a table that holds the texts. The default is "text" if the table has no column "path".
        label: Column of a table that holds the labels, by default "label".
        levels: Columns of a table with the ancestors of the class, from the parent to the root: ("genus", "family").
        taxonomy: CSV file with the ancestors of each class, for data of any layout; see `nearfar.data.taxonomy`.
        image, separator, group, camera: See `nearfar.data.layouts.tables.open_csv` and
            `nearfar.data.layouts.parquet.open_parquet`.

    >>> open_data("sketches")
    Manifest(sketches: 34500 pixels, 345 classes)
    """
    check_choice("split", split, ("auto", "class-order"))
    name, path = _find_layout(source)
    named = {"image": image, "text": text, "label": label, "separator": separator, "group": group, "camera": camera}
    columns: dict[str, Any] = {key: column for key, column in named.items() if column is not None}
    if levels:
        columns["levels"] = tuple(levels)
    if columns and not accepts(name, *columns):
        raise NearfarError(f"{source}: data.{next(iter(columns))} does not apply to the layout {name!r}: remove it")
    manifest = open_layout(name, path, allow_partial=allow_partial, root=root, labels=labels, **columns)
    if taxonomy is not None:
        manifest = add_taxonomy(manifest, taxonomy)
    return manifest.split_by_class_order() if split == "class-order" else manifest


def _find_layout(source: str | Path) -> tuple[str, Path | None]:
    if isinstance(source, str) and source in embedded_names():
        return source, None
    path = expand_user(source)
    if not path_exists(path):
        if PATTERN.search(str(source)):
            return "shards", path
        if str(source).startswith(PYTHON):
            raise NearfarError(
                f"{source} is a placeholder for data that was passed as a Python object and cannot be opened by name: "
                "pass that object as data"
            )
        name, _, inner = str(source).partition(":")
        if inner and name in LAYOUTS.names():
            return name, expand_user(inner)
        raise NearfarError(f"{source}: no such file, folder or built-in dataset{_suggest_path(str(source), path)}")
    if not (path.is_file() or path.is_dir()):
        raise NearfarError(f"{source}: is a pipe or a device: save its content to a file first")
    layout = recognize(path)
    if layout is None:
        raise NearfarError(f"{source}: no data layout recognizes this file. Known: {', '.join(layout_names())}")
    return layout


def _suggest_path(source: str, path: Path) -> str:
    """Return a suggestion for a path that does not exist: a similar name in its folder, or a built-in dataset.

    Return "." if there is no suggestion. The result is appended to the error message.
    """
    try:
        siblings = {entry.name: str(path.with_name(entry.name)) for entry in path.parent.iterdir()}
    except OSError:
        siblings = {}
    # compare only names, because paths in the same folder are always similar
    name = closest(path.name, siblings, cutoff=NAME_CUTOFF)
    match = siblings[name] if name is not None else closest(source, embedded_names(), cutoff=NAME_CUTOFF)
    return "." if match is None else f"; did you mean {match!r}?"


def save_manifest(manifest: Manifest, path: str | Path) -> None:
    """Save a manifest as .csv (files, texts) or .npz (features, pixels). `open_data` opens the saved file.

    The annotations of a manifest, such as groups, are not saved: .csv raises an error, and .npz leaves them out.
    """
    path = Path(path)
    name = path.name.lower()
    if name.endswith(".csv"):
        save_csv(manifest, path)
    elif name.endswith(".npz"):
        save_npz(manifest, path)
    else:
        raise NearfarError(
            f"{path}: the file name must end in .csv (for files and texts) or .npz (for features and pixels)"
        )
