"""Copy an index to a database table. Uploads can be resumed, and they skip rows that are already stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from nearfar.errors import NearfarError
from nearfar.search.approximate import TARGET_RECALL
from nearfar.search.databases.database import Database, Rows, TableHeader
from nearfar.search.exact import Neighbors, Vectors
from nearfar.search.export_vectors import storable_text
from nearfar.search.index import TUNING_QUERIES, Index
from nearfar.search.recall import measure_recall
from nearfar.validation import Ints, check_count

BATCH = 1000
RECALL_QUERIES = 200


@dataclass(frozen=True)
class UploadResult:
    """The numbers of rows that an upload stored, found unchanged and removed, and the final header of the table."""

    stored: int
    unchanged: int
    removed: int
    header: TableHeader


def upload(
    index: Index,
    database: Database,
    *,
    table: str,
    kind: str = "auto",
    replace_table: bool = False,
    batch: int = BATCH,
    progress: bool = True,
    say: Callable[[str], object] = lambda _: None,
) -> UploadResult:
    """Copy an index to a database table, so that the table has the same rows as the index.

    Each row has a hash of its contents. A row is not sent if the table has it with the same hash. Rows of the table
    that are not in the index are removed. An upload that was killed therefore continues where it stopped, and repeating
    a finished upload changes nothing. Until an upload has finished, the header of the table says that it is not
    complete.

    Args:
        index: The index. Its ids are the ids of the rows.
        database: The database.
        table: The name of the table, for messages.
        kind: "exact", or an approximate kind that the database supports; "auto" chooses by the number of rows.
        replace_table: Whether to drop an existing table first, even if another model computed its vectors.
        batch: Number of rows that are stored at once.
        progress: Whether to show a progress bar. It is shown only in a terminal.
        say: Function that is called with a message after every 10% of the rows, if no progress bar can be shown.

    Raises:
        NearfarError: If the table holds vectors of another model or was not written by nearfar, or if the database does
            not support `kind`.
    """
    check_count("batch", batch)
    if kind == "auto":
        kind = "exact" if len(index) <= database.exact_up_to else database.kinds[-1]
    if kind not in database.kinds:
        raise NearfarError(f"--kind {kind}: this database supports only {' and '.join(database.kinds)} search")
    header = TableHeader(dim=index.dim, model=index.model, rows=len(index), kind=kind)
    if replace_table:
        database.drop_table()
    existing = database.read_header()
    if existing is None:
        database.create_table(header)
    elif (existing.dim, existing.model) != (header.dim, header.model):
        raise NearfarError(
            f"table {table} does not fit the index: its vectors have another number of dimensions ({existing.dim}) or "
            "come from other weights: choose another --table, or replace it with --replace"
        )
    else:
        database.write_header(header)
    digests = _hash_rows(index)
    is_new, stale = _compare(index.ids, digests, database)
    rows = np.flatnonzero(is_new)
    for part in _parts(stale, batch):
        database.delete(part)
    reported, unchanged = 0, len(index) - len(rows)
    hidden = None if progress else True
    with tqdm(total=len(index), initial=unchanged, desc="upload", unit="row", leave=False, disable=hidden) as bar:
        for part in _parts(rows, batch):
            database.upsert(_select(index, digests, part))
            bar.update(len(part))
            reported += len(part)
            if bar.disable and progress and reported * 10 // len(rows) > (reported - len(part)) * 10 // len(rows):
                say(f"{unchanged + reported:,} of {len(index):,} rows")
    header = replace(header, complete=True, effort=_tune(index, database, header))
    database.write_header(header)
    return UploadResult(len(rows), unchanged, len(stale), header)


def measure_database(index: Index, database: Database, header: TableHeader, *, sample: int = RECALL_QUERIES) -> float:
    """Return recall@10 of a table against exact search in the index, with rows of the index as queries."""

    def search(queries: Vectors, k: int) -> Neighbors:
        distances = np.full((len(queries), k), np.inf, dtype=np.float32)
        ids = np.full((len(queries), k), -1, dtype=np.int64)
        for i, query in enumerate(queries):
            matches = database.search(query, k, header=header)
            distances[i, : len(matches)] = [match.distance for match in matches]
            ids[i, : len(matches)] = index.rows_of([match.id for match in matches]) if matches else []
        return distances, ids

    return measure_recall(np.asarray(index.vectors), search, sample=sample)


def _tune(index: Index, database: Database, header: TableHeader) -> int:
    """Prepare the table for searching, and return the search effort.

    The effort is doubled until recall@10 is at least 95% or the effort is at its maximum.
    """
    efforts = database.build(header)
    if not efforts:
        return 0
    effort = efforts.start
    while effort < efforts.stop - 1:
        if measure_database(index, database, replace(header, effort=effort), sample=TUNING_QUERIES) >= TARGET_RECALL:
            break
        effort = min(2 * effort, efforts.stop - 1)
    return effort


def _compare(ids: Ints, digests: Ints, database: Database) -> tuple[NDArray[np.bool_], Ints]:
    """Compare the index with the table.

    Returns:
        A mask of the rows of the index that are not in the table or differ there, and the ids to remove from the table.
    """
    order = np.argsort(ids)
    is_new = np.ones(len(ids), dtype=np.bool_)
    stale = [np.zeros(0, np.int64)]
    for stored_ids, stored_digests in database.digests():
        position = np.searchsorted(ids, stored_ids, sorter=order)
        row = order[np.minimum(position, len(ids) - 1)] if len(ids) else np.zeros(len(stored_ids), np.int64)
        is_known = ids[row] == stored_ids if len(ids) else np.zeros(len(stored_ids), np.bool_)
        stale.append(stored_ids[~is_known])
        known = row[is_known]
        is_new[known] = digests[known] != stored_digests[is_known]
    return is_new, np.concatenate(stale)


def _select(index: Index, digests: Ints, rows: Ints) -> Rows:
    labels = [index.label_of(row) for row in rows.tolist()]
    return Rows(
        ids=index.ids[rows],
        labels=[None if label is None else storable_text(label) for label in labels],
        names=[storable_text(index.names[row]) for row in rows.tolist()],
        vectors=np.ascontiguousarray(index.vectors[rows]),
        digests=digests[rows],
    )


def _hash_rows(index: Index) -> Ints:
    """Return a 64-bit hash of the label, name and vector of every row."""
    digests = np.zeros(len(index), dtype=np.int64)
    for row in range(len(index)):
        digest = hashlib.blake2b(np.asarray(index.vectors[row]).tobytes(), digest_size=8)
        digest.update(f"{index.label_of(row)!r} {index.names[row]!r}".encode("ascii", "backslashreplace"))
        digests[row] = int.from_bytes(digest.digest(), "little", signed=True)
    return digests


def _parts(values: Ints, size: int) -> Iterator[Ints]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
