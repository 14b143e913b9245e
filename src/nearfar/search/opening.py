"""The index of a run: the one in its folder, or one of the run's own data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.search.encoder import Encoder
from nearfar.search.index import Index
from nearfar.search.storage import MAIN

FOLDER = "index"


def open_index(encoder: Encoder, *, folder: Path | None = None, say: Callable[[str], object] = print) -> Index:
    """RUN/index (or another folder), else an index of the run's own data, which is said.

    An index of other weights is an error: its distances would mean nothing.
    """
    run = encoder.run
    where = folder or run.path / FOLDER
    if folder is None and not (where / MAIN).is_file():
        say(f"{run.path}: has no index yet, embedding its own data (nearfar index keeps one)")
        return Index.build(run, run.manifest())
    index = Index.load(where)
    check_model(index, encoder, where)
    return index


def check_model(index: Index, encoder: Encoder, where: Path) -> None:
    """The index was made by these weights, as far as is known."""
    if index.dim != encoder.dim or (index.model and index.model != encoder.model):
        raise NearfarError(f"{where}: was made by other weights than {encoder.run.path}: build it again")
