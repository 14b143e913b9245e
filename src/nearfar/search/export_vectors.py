"""Export the vectors of an index for a vector database: arrays, a table, and files for Qdrant and pgvector."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.csv_files import write_csv
from nearfar.files import atomic
from nearfar.search.index import Index

ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def export_vectors(index: Index, folder: Path) -> list[Path]:
    """Write the following files and return their paths. Data files have one row per sample, in the order of the index.

    vectors.npy      float32 unit vectors [N, dim]
    samples.parquet  columns `id`, `label`, `name`, `vector`; without pyarrow: samples.csv, which has no `vector`
    qdrant.jsonl     one Qdrant point per line
    pgvector.tsv     columns `id`, `label`, `name`, `vector` in PostgreSQL's COPY text format
    README.md        how to load the files
    """
    folder.mkdir(parents=True, exist_ok=True)
    vectors = folder / "vectors.npy"
    with atomic(vectors) as draft, open(draft, "wb") as file:
        np.save(file, index.vectors, allow_pickle=False)
    written = [vectors, _write_table(index, folder)]
    for name, lines in (("qdrant.jsonl", qdrant_lines(index)), ("pgvector.tsv", pgvector_lines(index))):
        with atomic(folder / name) as draft, open(draft, "w", encoding="utf-8", newline="") as text:
            text.writelines(lines)
        written.append(folder / name)
    with atomic(folder / "README.md") as draft:
        draft.write_text(_readme(index, written[1].name), encoding="utf-8")
    return [*written, folder / "README.md"]


def qdrant_lines(index: Index) -> Iterator[str]:
    """Yield one Qdrant point per sample as a line of JSON: id, vector, and a payload with label and name."""
    for number, label, name, vector in _rows(index):
        payload = json.dumps({"label": label, "name": name})
        yield f'{{"id": {number}, "vector": [{vector}], "payload": {payload}}}\n'


def pgvector_lines(index: Index) -> Iterator[str]:
    r"""Yield one line per sample for COPY: id, label (\N if there is none), name and vector, separated by tabs."""
    for number, label, name, vector in _rows(index):
        label_text = r"\N" if label is None else label.translate(ESCAPES)
        yield f"{number}\t{label_text}\t{name.translate(ESCAPES)}\t[{vector}]\n"


def _rows(index: Index) -> Iterator[tuple[int, str | None, str, str]]:
    # Nine significant digits are enough to recover every float32 exactly.
    template = ",".join(["%.9g"] * index.dim)
    for row, (number, name) in enumerate(zip(index.ids.tolist(), index.names, strict=True)):
        label = index.label_of(row)
        values = template % tuple(index.vectors[row].tolist())
        yield number, None if label is None else storable_text(label), storable_text(name), values


def storable_text(text: str) -> str:
    """Return a text with "?" in place of each character that cannot be exported.

    UTF-8 cannot encode the surrogates that stand for undecodable bytes of a file name. PostgreSQL cannot store NUL.
    """
    return text.replace("\0", "?").encode("utf-8", "replace").decode()


def _write_table(index: Index, folder: Path) -> Path:
    labels = [index.label_of(row) for row in range(len(index))]
    columns = (
        [None if label is None else storable_text(label) for label in labels],
        [storable_text(name) for name in index.names],
    )
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        cells = zip(index.ids.tolist(), labels, index.names, strict=True)
        return write_csv(folder / "samples.csv", [("id", "label", "name"), *cells])
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
    example_id = index.ids[0] if len(index) else 0
    return f"""# {len(index):,} vectors of {index.dim} dimensions

The vectors have unit length: the dot product of two vectors is their cosine, and their distance is 1 minus the cosine.
All files list the samples in the same order.

- `vectors.npy`: float32 [{len(index)}, {index.dim}]
- `{table}`: {columns}
- `qdrant.jsonl`: one Qdrant point per line
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
SELECT id, name, embedding <=> (SELECT embedding FROM samples WHERE id = {example_id}) AS distance
FROM samples ORDER BY distance LIMIT 10;
```
"""
