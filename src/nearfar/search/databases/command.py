"""`nearfar export --to` and `nearfar search --from`: write and search a table of a vector database."""

from __future__ import annotations

from collections.abc import Callable

from nearfar.formatting import counted
from nearfar.search.databases.connection import connect
from nearfar.search.databases.database_index import DatabaseIndex
from nearfar.search.databases.upload import RECALL_QUERIES, measure_database, upload
from nearfar.search.encoder import Encoder
from nearfar.search.index import Index
from nearfar.search.query import Hit, SearchQuery, read_queries

Say = Callable[[str], object]


def export_to_database(index: Index, address: str, *, table: str, kind: str, replace_table: bool, say: Say) -> str:
    """Copy an index to a database table (see `upload`), and return a description of what was done."""
    with connect(address, table=table, create=True) as database:
        result = upload(index, database, table=table, kind=kind, replace_table=replace_table, say=say)
        lines = [
            f"{address}, table {table}: {counted(result.header.rows, 'row')} of {result.header.dim} dimensions, "
            f"{result.header.kind}",
            f"{result.stored:,} stored, {result.unchanged:,} already up to date, {result.removed:,} removed",
        ]
        if result.header.effort:
            sample = min(RECALL_QUERIES, len(index))
            recall = measure_database(index, database, result.header, sample=sample)
            lines.append(f"recall@10 against exact search: {recall:.1%} (measured on {sample:,} samples)")
    return "\n".join(lines)


def search_database(
    encoder: Encoder, queries: tuple[str, ...], address: str, *, table: str, k: int, labels: tuple[str, ...], say: Say
) -> list[tuple[SearchQuery, list[Hit], str]]:
    """Search a table, and return each query with the samples that were found and a title to print above them."""
    with connect(address, table=table) as database:
        index = DatabaseIndex(database, table=table, model=encoder.model, say=say)
        return [
            (query, _find_hits(index, query, k, labels), _title(index, query))
            for text in queries
            for query in read_queries(text, index, encoder)
        ]


def _find_hits(index: DatabaseIndex, query: SearchQuery, k: int, labels: tuple[str, ...]) -> list[Hit]:
    is_sample = query.id is not None
    # A huge k would make some databases allocate memory for k rows.
    count = min(k, index.header.rows) + is_sample
    matches = [match for match in index.search(query.vector, count, label=labels) if match.id != query.id][:k]
    return [Hit(rank, match.id, match.distance, match.label, match.name) for rank, match in enumerate(matches, start=1)]


def _title(index: DatabaseIndex, query: SearchQuery) -> str:
    if query.id is None:
        return query.text
    row = index.row_of(query.id)
    return ", ".join(part for part in (f"id {row.id}", row.label, row.name) if part)
