"""Indexes of data embedded by a run: build, extend and open them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError
from nearfar.runs import Run
from nearfar.search.encoder import Encoder
from nearfar.search.index import Index
from nearfar.search.part import Part
from nearfar.search.storage import INDEX_FILE
from nearfar.validation import Ints

FOLDER = "index"


def build_index(encoder: Encoder, data: Manifest | str, *, kind: str = "auto", progress: bool = True) -> Index:
    """Embed all samples of `data` and index them; the ids are the rows of the data."""
    manifest = data if isinstance(data, Manifest) else encoder.run.manifest(data)
    vectors, rows = encoder.embed_manifest(manifest, progress=progress)
    index = Index.from_vectors(
        vectors,
        ids=rows,
        labels=manifest.labels[rows],
        classes=manifest.classes,
        names=_sample_names(manifest, rows),
        kind=kind,
    )
    index.parts = (_part(encoder.run, manifest, data if isinstance(data, str) else manifest.source, first=0),)
    index.model = encoder.model
    return index


def extend_index(index: Index, encoder: Encoder, source: str) -> None:
    """Embed all samples of `source` and add them; their ids continue from the largest id of the index."""
    manifest = encoder.run.manifest(source)
    vectors, rows = encoder.embed_manifest(manifest)
    first = int(index.ids.max()) + 1 if len(index) else 0
    names = _sample_names(manifest, rows, first=first)
    index.add(vectors, ids=first + rows, labels=manifest.labels[rows], classes=manifest.classes, names=names)
    index.parts = (*index.parts, _part(encoder.run, manifest, source, first=first))


def open_index(encoder: Encoder, *, folder: Path | None = None, say: Callable[[str], object] = print) -> Index:
    """Load the index in `folder`, by default RUN/index.

    Without `folder` and without an index in RUN, embed the data of the run and report that through `say`. An index that
    was built with other weights is an error, because its distances would be meaningless.
    """
    run = encoder.run
    path = folder or run.path / FOLDER
    if folder is None and not (path / INDEX_FILE).is_file():
        say(f"{run.path} has no index: embedding its data now (`nearfar index` saves an index)")
        return build_index(encoder, run.manifest())
    return load_index(encoder, path)


def load_index(encoder: Encoder, folder: Path) -> Index:
    """Load an index and check that it was built with the weights of the encoder."""
    index = Index.load(folder)
    if index.dim != encoder.dim or (index.model and index.model != encoder.model):
        raise NearfarError(f"{folder}: was built with other weights than {encoder.run.path}: build it again")
    return index


def _sample_names(manifest: Manifest, rows: Ints, *, first: int = 0) -> list[str]:
    """Return paths, or names like "row 17" where there are no paths."""
    paths = manifest.paths
    return [f"row {first + row}" if paths is None else paths[row] for row in rows.tolist()]


def _part(run: Run, manifest: Manifest, source: str, *, first: int) -> Part:
    """Describe the origin of ids starting at `first`; paths are absolute, so that they work from any directory."""
    path = Path(source).expanduser()
    absolute = str(path.resolve()) if source and path.exists() else source
    is_run_data = manifest.fingerprint == run.config.data.fingerprint
    return Part("" if is_run_data else absolute, first, len(manifest), manifest.fingerprint)
