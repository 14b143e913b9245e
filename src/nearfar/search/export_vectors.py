"""The vectors of an index for a vector database: arrays, a table, and the bulk formats of Qdrant and pgvector."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.files import atomic
from nearfar.search.index import Index

ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def export_vectors(index: Index, folder: Path) -> list[Path]:
    """Write the files, and give their paths; every row of each is a sample, in the order of the index.

    vectors.npy      [N, dim] float32 unit rows
    samples.parquet  id, label, name, vector; without pyarrow samples.csv, which has no vector
    qdrant.jsonl     a point a line
    pgvector.tsv     id, label, name, vector in PostgreSQL's COPY text format
    README.md        how to load them
    """
    folder.mkdir(parents=True, exist_ok=True)
    vectors = folder / "vectors.npy"
    with atomic(vectors) as draft, open(draft, "wb") as file:
        np.save(file, index.vectors, allow_pickle=False)
    written = [vectors, _table(index, folder)]
    for name, lines in (("qdrant.jsonl", qdrant_lines(index)), ("pgvector.tsv", pgvector_lines(index))):
        with atomic(folder / name) as draft, open(draft, "w", encoding="utf-8", newline="") as text:
            text.writelines(lines)
        written.append(folder / name)
    with atomic(folder / "README.md") as draft:
        draft.write_text(_readme(index, written[1].name), encoding="utf-8")
    return [*written, folder / "README.md"]


def qdrant_lines(index: Index) -> Iterator[str]:
    """Points as JSON: id, vector, payload of label and name."""
    for number, label, name, vector in _rows(index):
        payload = json.dumps({"label": label, "name": name})
        yield f'{{"id": {number}, "vector": [{vector}], "payload": {payload}}}\n'


def pgvector_lines(index: Index) -> Iterator[str]:
    r"""Lines of COPY: tabs between id, label, name and vector, \N for no label."""
    for number, label, name, vector in _rows(index):
        word = r"\N" if label is None else label.translate(ESCAPES)
        yield f"{number}\t{word}\t{name.translate(ESCAPES)}\t[{vector}]\n"


def _rows(index: Index) -> Iterator[tuple[int, str | None, str, str]]:
    # nine digits are enough for every float32 to come back as it was
    numbers = ",".join(["%.9g"] * index.dim)
    for row, (number, name) in enumerate(zip(index.ids.tolist(), index.names, strict=True)):
        label = index.label_of(row)
        yield number, None if label is None else _text(label), _text(name), numbers % tuple(index.vectors[row].tolist())


def _text(words: str) -> str:
    """As UTF-8 can hold it: names of files may hold bytes that are no text, and PostgreSQL knows no NUL."""
    return words.replace("\0", "?").encode("utf-8", "replace").decode()


def _table(index: Index, folder: Path) -> Path:
    labels = [index.label_of(row) for row in range(len(index))]
    columns = [None if label is None else _text(label) for label in labels], [_text(name) for name in index.names]
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        path = folder / "samples.csv"
        with atomic(path) as draft, open(draft, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["id", "label", "name"])
            writer.writerows(zip(index.ids.tolist(), *columns, strict=True))
        return path
    path = folder / "samples.parquet"
    flat = arrow.array(np.ascontiguousarray(index.vectors).reshape(-1))
    table = arrow.table(
        {
            "id": arrow.array(index.ids),
            "label": arrow.array(columns[0], arrow.string()),
            "name": arrow.array(columns[1], arrow.string()),
            "vector": arrow.FixedSizeListArray.from_arrays(flat, index.dim),
        }
    )
    with atomic(path) as draft:
        parquet.write_table(table, draft)
    return path


def _readme(index: Index, table: str) -> str:
    columns = "id, label, name, vector" if table.endswith("parquet") else "id, label, name"
    some = index.ids[0] if len(index) else 0
    return f"""# {len(index):,} vectors of {index.dim} dimensions

Unit rows: the cosine is their product, the distance 1 minus it. The rows of all files are in the same order.

- `vectors.npy`: float32 [{len(index)}, {index.dim}]
- `{table}`: {columns}
- `qdrant.jsonl`: Qdrant's points, one a line
- `pgvector.tsv`: PostgreSQL's COPY text format for pgvector

## Qdrant

```python
import itertools
import json

from qdrant_client import QdrantClient, models

client = QdrantClient(":memory:")  # or url="http://localhost:6333"
client.create_collection(
    "samples", vectors_config=models.VectorParams(size={index.dim}, distance=models.Distance.COSINE)
)
with open("qdrant.jsonl", encoding="utf-8") as lines:
    while batch := [models.PointStruct(**json.loads(line)) for line in itertools.islice(lines, 500)]:
        client.upsert("samples", batch)
```

## pgvector

```sql
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE samples (id bigint PRIMARY KEY, label text, name text NOT NULL, embedding vector({index.dim}) NOT NULL);
\\copy samples FROM 'pgvector.tsv'
CREATE INDEX ON samples USING hnsw (embedding vector_cosine_ops);
SELECT id, name, embedding <=> (SELECT embedding FROM samples WHERE id = {some}) AS distance
FROM samples ORDER BY distance LIMIT 10;
```
"""
