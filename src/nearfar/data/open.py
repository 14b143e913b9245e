"""`open_data`: one entry for every kind of data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nearfar.data.features import open_npy, open_npz, save_npz
from nearfar.data.layouts.archive import SUFFIXES as ARCHIVES
from nearfar.data.layouts.archive import open_archive
from nearfar.data.layouts.cars import is_cars, open_cars
from nearfar.data.layouts.cub import is_cub, open_cub
from nearfar.data.layouts.folder import open_folder
from nearfar.data.layouts.in_shop import is_in_shop, open_in_shop
from nearfar.data.layouts.official import CARS, CUB, Counts
from nearfar.data.layouts.sop import is_sop, open_sop
from nearfar.data.manifest import Manifest
from nearfar.data.sketches import load_sketches
from nearfar.data.table import open_csv, open_parquet, save_csv
from nearfar.errors import NearfarError
from nearfar.validation import check_choice, nearest

EMBEDDED = {"sketches": load_sketches}
OFFICIAL: tuple[tuple[Callable[[Path], bool], Callable[..., Manifest]], ...] = (
    (is_cub, open_cub),
    (is_cars, open_cars),
    (is_sop, open_sop),
    (is_in_shop, open_in_shop),
)
LOOKS_LIKE = {
    ("001.Black_footed_Albatross", "200.Common_Yellowthroat"): CUB,
    ("AM General Hummer SUV 2000", "smart fortwo Convertible 2012"): CARS,
}


def open_data(
    spec: str | Path,
    *,
    split: str = "auto",
    allow_partial: bool = False,
    root: Path | None = None,
    labels: Path | None = None,
) -> Manifest:
    """A manifest from a name, a file or a folder, recognized by what it is.

    - `sketches`: the embedded drawings (a folder of that name goes first if the path has a slash: `./sketches`);
    - a folder: CUB-200-2011, Cars-196, Stanford Online Products or In-Shop in their official layout (also one folder
      deeper, as their archives unpack), otherwise class folders, otherwise train/ and test/ with class folders;
    - `.tar`, `.tar.gz`, `.tgz`: class folders, read in place;
    - `.csv`, `.tsv`, `.parquet`: columns path, label[, split, role], paths relative to `root`;
    - `.npz`: features or small pictures with their labels; `.npy`: the same with a `labels` file.

    `split`: "auto" takes the data's own and otherwise the first half of the classes for training; "class-order" always
    the latter. `allow_partial` goes on with an incomplete copy and says so in the notes.

    >>> open_data("sketches")
    Manifest(sketches: 34500 pixels, 345 classes)
    """
    check_choice("split", split, ("auto", "class-order"))
    manifest = _open(spec, allow_partial=allow_partial, root=root, labels=labels)
    return manifest.split_by_class_order() if split == "class-order" else manifest


def _open(spec: str | Path, *, allow_partial: bool, root: Path | None, labels: Path | None) -> Manifest:
    if isinstance(spec, str) and spec in EMBEDDED:
        return EMBEDDED[spec]()
    path = Path(spec).expanduser()
    if path.is_dir():
        return _open_directory(path, allow_partial=allow_partial)
    if not path.exists():
        near = nearest(str(spec), [*EMBEDDED, *_siblings(path)])
        raise NearfarError(f"{spec}: there is no such file, folder or embedded data set{near}")
    name = path.name.lower()
    if name.endswith(ARCHIVES):
        return _recognized(open_archive(path, allow_partial=allow_partial))
    if name.endswith((".csv", ".tsv")):
        return open_csv(path, root=root, allow_partial=allow_partial)
    if name.endswith((".parquet", ".pq")):
        return open_parquet(path, root=root, allow_partial=allow_partial)
    if name.endswith(".npz"):
        return open_npz(path)
    if name.endswith(".npy"):
        return open_npy(path, labels=labels)
    kinds = "a folder, .tar, .tar.gz, .csv, .tsv, .parquet, .npz or .npy"
    raise NearfarError(f"{spec}: is no kind of data that nearfar knows: {kinds}")


def _open_directory(path: Path, *, allow_partial: bool) -> Manifest:
    inner = [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    # the official archives unpack into a folder of their own
    for candidate in [path, *(inner if len(inner) == 1 else [])]:
        for recognize, opener in OFFICIAL:
            if recognize(candidate):
                return opener(candidate, allow_partial=allow_partial)
    return _recognized(open_folder(path))


def _recognized(manifest: Manifest) -> Manifest:
    """With a note where plain class folders are those of a benchmark but not all pictures are there."""
    counts: Counts | None = LOOKS_LIKE.get((manifest.classes[0], manifest.classes[-1]))
    if counts is None or len(manifest) == counts.images:
        return manifest
    note = f"looks like {counts.name}, with {len(manifest):,} of its {counts.images:,} pictures"
    return replace(manifest, notes=(*manifest.notes, note))


def _siblings(path: Path) -> list[str]:
    try:
        return [str(path.with_name(entry.name)) for entry in path.parent.iterdir()]
    except OSError:
        return []


def save_manifest(manifest: Manifest, path: str | Path) -> None:
    """Writes a manifest to .csv (files) or .npz (features, pixels); `open_data` reads it back equal."""
    path = Path(path)
    name = path.name.lower()
    if name.endswith(".csv"):
        save_csv(manifest, path)
    elif name.endswith(".npz"):
        save_npz(manifest, path)
    else:
        raise NearfarError(f"{path}: a manifest is saved as .csv (files) or .npz (features, pixels)")
