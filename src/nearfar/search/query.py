"""Queries of `nearfar search`: the id of a sample, a .npy file of vectors, an image file, or a text."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from nearfar.calibration import Calibration
from nearfar.data.layouts.paths import read_regular
from nearfar.errors import NearfarError
from nearfar.files import expand_user, path_exists
from nearfar.search.encoder import Encoder
from nearfar.search.exact import Vectors
from nearfar.search.index import Index
from nearfar.search.inputs import as_float32, check_finite

MAX_ID_DIGITS, MAX_ID = 20, 2**63 - 1


class VectorLookup(Protocol):
    """The part of an index or of a database table that `read_queries` needs."""

    @property
    def dim(self) -> int:
        """The number of dimensions of the vectors."""
        ...

    def vector_of(self, id: int) -> Vectors:
        """Return the unit vector [dim] of a sample. An unknown id raises a ValueError."""
        ...


@dataclass(frozen=True)
class SearchQuery:
    """A query: its text, its vector [dim], its id (if it is a sample of the index) and its file (if it is an image)."""

    text: str
    vector: Vectors
    id: int | None = None
    file: Path | None = None


@dataclass(frozen=True)
class Hit:
    """A sample that a search found.

    Attributes:
        rank: The position in the results, from 1.
        id: The id of the sample.
        distance: 1 - cosine.
        label: The class name, or None if the index has no labels.
        name: The path or name of the sample.
        same: The probability that the sample has the same class as the query. None if the model is not calibrated, or
            if the search is limited to some classes.
    """

    rank: int
    id: int
    distance: float
    label: str | None
    name: str
    same: float | None = None


def check_query(text: str, encoder: Encoder) -> None:
    """Raise a NearfarError if a query is neither an id nor a readable file. If the model takes texts, accept anything.

    This check does not need an index.
    """
    if encoder.network.backbone.has_text_input or _is_id(text):
        return
    path = expand_user(text)
    if path.is_dir():
        raise NearfarError(f"{text}: is a folder: a query is one image, a .npy file of vectors or the id of a sample")
    if not path_exists(path):
        raise NearfarError(f"{text}: no such file: a query is an image, a .npy file of vectors or the id of a sample")
    if path.suffix.lower() == ".npy":
        _read_vectors(path)
    else:
        encoder.images.decode(read_regular(path), str(path))


def read_queries(text: str, index: VectorLookup, encoder: Encoder) -> list[SearchQuery]:
    """Parse the text of a query and return one query, or one for each row of a .npy file.

    An integer is the id of a sample. If the run was trained on texts, everything else is a text to search with. The
    rows of a .npy file are embeddings or, if the run was trained on vectors, inputs of the network. If embeddings and
    inputs have the same number of dimensions, the rows are taken as inputs.
    """
    if _is_id(text):
        number = min(int(text[:MAX_ID_DIGITS]), MAX_ID)
        try:
            return [SearchQuery(text, index.vector_of(number), id=number)]
        except ValueError as error:
            raise NearfarError(str(error)) from None
    if encoder.network.backbone.has_text_input:
        if not text.strip():
            raise NearfarError("the query is empty: search with a text or the id of a sample")
        return [SearchQuery(text, encoder.embed_texts([text])[0])]
    path = expand_user(text)
    if path.suffix.lower() != ".npy":
        return [SearchQuery(text, encoder.embed_file(path)[0], file=path)]
    vectors = _read_vectors(path)
    network = encoder.network
    if not network.backbone.has_image_input and vectors.shape[1] == network.channels:
        vectors = encoder.embed_vectors(vectors)
    elif vectors.shape[1] != index.dim:
        expected = f"{index.dim}" if network.backbone.has_image_input else f"{index.dim} or {network.channels}"
        raise NearfarError(f"{text} has vectors of {vectors.shape[1]} numbers, but the index needs {expected}")
    if len(vectors) == 1:
        return [SearchQuery(text, vectors[0])]
    return [SearchQuery(f"{text} row {row}", vector) for row, vector in enumerate(vectors)]


def find_hits(
    index: Index,
    query: SearchQuery,
    k: int,
    *,
    label: tuple[str, ...] = (),
    calibration: Calibration | None = None,
) -> list[Hit]:
    """Return the k nearest samples. If `label` names classes, only their samples are searched.

    If the query is a sample of the index, that sample is not among the results. If `calibration` is given and `label`
    is empty, each result has the probability that its class is the same as that of the query.
    """
    is_sample = query.id is not None
    k = min(k, len(index))  # results are arrays of length k, so a huge k would exhaust the memory
    try:
        distances, ids = index.search(query.vector[None], k + is_sample, label=label or None)
    except ValueError as error:
        raise NearfarError(str(error)) from None
    is_hit = (ids[0] >= 0) & (ids[0] != (query.id if is_sample else -1))
    hit_ids, hit_distances = ids[0][is_hit][:k], distances[0][is_hit][:k]
    same: list[float | None] = [None] * len(hit_ids)
    if calibration is not None and not label:
        same = calibration.probability(hit_distances).tolist()
    return [
        Hit(rank, int(number), float(distance), index.label_of(row), index.names[row], probability)
        for rank, (number, distance, row, probability) in enumerate(
            zip(hit_ids, hit_distances, index.rows_of(hit_ids).tolist(), same, strict=True), start=1
        )
    ]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _read_vectors(path: Path) -> Vectors:
    try:
        array = np.load(io.BytesIO(read_regular(path)), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise NearfarError(f"{path} cannot be read as a NumPy array ({error}): save it with np.save") from None
    try:
        vectors = as_float32("the array", array[None] if array.ndim == 1 else array)
        check_finite("the array", vectors)
    except ValueError as error:
        raise NearfarError(f"{path} must be an array of finite numbers of shape [d] or [Q, d]: {error}") from None
    if not len(vectors):
        raise NearfarError(f"{path} must be an array of finite numbers of shape [d] or [Q, d], but is empty")
    return vectors
