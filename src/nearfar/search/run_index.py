"""Build, extend and open an index of samples that are embedded by the network of a run or of another model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearfar.data.manifest import Manifest
from nearfar.data.python_dataset import Source
from nearfar.errors import NearfarError
from nearfar.files import expand_user
from nearfar.model import Model
from nearfar.search.encoder import Encoder
from nearfar.search.index import Index
from nearfar.search.part import Part
from nearfar.search.storage import INDEX_FILE
from nearfar.validation import Ints


def build_index(encoder: Encoder, data: Source, *, kind: str = "auto", progress: bool = True) -> Index:
    """Embed all samples of `data` and index them. The id of a sample is its row in `data`."""
    manifest = encoder.run.manifest(data)
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


def extend_index(index: Index, encoder: Encoder, source: str) -> tuple[int, int]:
    """Embed the samples of `source` that are not in the index yet, and add them with ids above all existing ids.

    Returns:
        The number of samples that were already in the index, and the total number of samples in `source`.
    """
    manifest = encoder.run.manifest(source)
    is_new = ~_find_known(index, manifest)
    known = len(manifest) - int(is_new.sum())
    if known == len(manifest):
        return known, known
    vectors, embedded = encoder.embed_manifest(manifest.subset(is_new) if known else manifest)
    rows = np.flatnonzero(is_new)[embedded]
    # Row i of the source gets the id first + i, even if earlier rows are not added. The ids of two sources therefore
    # never overlap.
    first = max([int(index.ids.max()) + 1 if len(index) else 0, *(part.first + part.rows for part in index.parts)])
    names = _sample_names(manifest, rows, first=first)
    index.add(vectors, ids=first + rows, labels=manifest.labels[rows], classes=manifest.classes, names=names)
    index.parts = (*index.parts, _part(encoder.run, manifest, source, first=first))
    return known, len(manifest)


def _find_known(index: Index, manifest: Manifest) -> NDArray[np.bool_]:
    """Return a mask [N] of the samples that are already in the index.

    Image files are recognized by their paths. Other data is recognized only as a whole, by its fingerprint.
    """
    root = _root(manifest)
    if not root:
        is_known = any(part.fingerprint == manifest.fingerprint for part in index.parts)
        return np.full(len(manifest), is_known)
    known: set[str] = set()
    for part in index.parts:
        if part.root == root:
            inside = np.flatnonzero((index.ids >= part.first) & (index.ids < part.first + part.rows))
            known.update(index.names[row] for row in inside.tolist())
    return np.array([path in known for path in manifest.paths or ()])


def _root(manifest: Manifest) -> str:
    return "" if manifest.kind != "files" or manifest.root is None else str(manifest.root.resolve())


def open_index(encoder: Encoder, *, folder: Path | None = None, say: Callable[[str], object] = print) -> Index:
    """Return the index in `folder`, by default RUN/index.

    If `folder` is None and RUN/index does not exist, pass a message to `say` and embed the data of the run. An index
    that was built with other weights raises an error, because its distances would be meaningless.
    """
    run = encoder.run
    path = folder or run.index_folder
    if folder is None and not (path / INDEX_FILE).is_file():
        say(f"{run.path} has no index: embedding its data now (`nearfar index` saves an index)")
        return build_index(encoder, run.manifest())
    return load_index(encoder, path, truncate=True)


def load_index(encoder: Encoder, folder: Path, *, truncate: bool = False) -> Index:
    """Load an index and check that it was built with the weights of the encoder.

    Args:
        encoder: The encoder.
        folder: The folder of the index.
        truncate: What to do if the index holds only the first dimensions of the embeddings. If True, truncate the
            encoder to these dimensions. If False, raise an error.
    """
    index = Index.load(folder)
    if truncate and index.dim < encoder.dim and index.model == encoder.model:
        encoder.truncate(index.dim)
    if index.dim != encoder.dim or (index.model and index.model != encoder.model):
        raise NearfarError(
            f"{folder} was not built with the weights of {encoder.run.path}, or has another number of dimensions: "
            "build it again"
        )
    return index


def _sample_names(manifest: Manifest, rows: Ints, *, first: int = 0) -> list[str]:
    """Return the paths of samples, the first words of their texts, or names like "row 17"."""
    if manifest.kind == "text":
        return [manifest.name(row) for row in rows.tolist()]
    paths = manifest.paths
    return [f"row {first + row}" if paths is None else paths[row] for row in rows.tolist()]


def _part(run: Model, manifest: Manifest, source: str, *, first: int) -> Part:
    """Return the description of a dataset whose ids start at `first`.

    If its source is a path, the path is made absolute, so that it works from any directory. For the run's own data, the
    source is "".
    """
    path = expand_user(source)
    absolute = str(path.resolve()) if source and path.exists() else source
    is_run_data = manifest.fingerprint == run.config.data.fingerprint
    source = "" if is_run_data else absolute
    return Part(source, first, len(manifest), manifest.fingerprint, _root(manifest))
