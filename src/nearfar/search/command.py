"""`nearfar index`, `nearfar search` and `nearfar export`: from words on a command line to what they print."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from nearfar.errors import NearfarError
from nearfar.search.encoder import Encoder
from nearfar.search.export_model import export_onnx, export_safetensors
from nearfar.search.export_vectors import export_vectors
from nearfar.search.index import Index, part_of, sample_names
from nearfar.search.opening import FOLDER, check_model, open_index
from nearfar.search.page import write_page
from nearfar.search.query import Hit, Query, find, read_queries


def index_command(run: Path, source: str, *, out: Path | None, kind: str, add: bool) -> None:
    """Everything that `nearfar index` does."""
    encoder = Encoder(run)
    where = out or run / FOLDER
    if add:
        if kind != "auto":
            raise NearfarError(f"--add goes on with the kind that the index has: leave --kind {kind} out")
        index = _extended(encoder, source, where)
    else:
        try:
            index = Index.build(encoder.run, source, kind=kind)
        except ValueError as error:
            raise NearfarError(str(error)) from None
    index.save(where)
    print(f"{len(index):,} vectors of {index.dim} dimensions, {len(index.classes):,} classes, {index.kind}: {where}")
    if index.approximate is not None:
        sample = min(1000, len(index))
        print(f"recall@10 against exact search {index.measure(sample):.1%} (of {sample:,} samples)")


def _extended(encoder: Encoder, source: str, where: Path) -> Index:
    index = Index.load(where)
    check_model(index, encoder, where)
    manifest = encoder.run.manifest(source)
    vectors, rows = encoder.samples(manifest)
    first = int(index.ids.max()) + 1 if len(index) else 0
    names = sample_names(manifest, rows, first=first)
    try:
        index.add(vectors, ids=first + rows, labels=manifest.labels[rows], classes=manifest.classes, names=names)
    except ValueError as error:
        raise NearfarError(f"{where}: {error}") from None
    index.parts = (*index.parts, part_of(encoder.run, manifest, source, first=first))
    return index


def search_command(
    run: Path,
    queries: tuple[str, ...],
    *,
    k: int,
    labels: tuple[str, ...],
    folder: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Everything that `nearfar search` does; with --json only JSON goes to standard output."""

    def say(line: str) -> None:
        click.echo(line, err=True)

    encoder = Encoder(run)
    index = open_index(encoder, folder=folder, say=say)
    asked = [query for words in queries for query in read_queries(words, index, encoder)]
    results = [(query, find(index, query, k, label=labels)) for query in asked]
    if as_json:
        tree = [{"query": query.words, "results": [asdict(hit) for hit in hits]} for query, hits in results]
        click.echo(json.dumps(tree, indent=2))
    else:
        click.echo("\n\n".join(_table(query, hits, index) for query, hits in results))
    if html is not None:
        say(f"page: {write_page(html, results, encoder.run, index, say)}")


def export_command(run: Path, *, style: str, out: Path | None) -> None:
    """Everything that `nearfar export` does."""
    encoder = Encoder(run)
    where = out or run / "export" / style
    if style == "onnx":
        path, difference = export_onnx(encoder, where)
        print(f"{path}: checked in onnxruntime, largest difference to torch {difference:.1e}")
    elif style == "safetensors":
        print(export_safetensors(encoder, where))
    else:
        paths = export_vectors(open_index(encoder, say=lambda line: click.echo(line, err=True)), where)
        print("\n".join(map(str, paths)))
        if any(path.name == "samples.csv" for path in paths):
            print("pyarrow is not installed: the table is a CSV without vectors (pip install pyarrow)")


def _table(query: Query, hits: list[Hit], index: Index) -> str:
    title = query.words
    if query.id is not None:
        row = int(index.rows_of([query.id])[0])
        title = ", ".join(part for part in (f"id {query.id}", index.label_of(row), index.names[row]) if part)
    wide = max([len(hit.label or "") for hit in hits] + [5])
    lines = [f"query: {title}", f"rank  distance  {'label':{wide}s}  {'id':>8s}  name"]
    lines += [f"{h.rank:4d}  {h.distance:8.4f}  {h.label or '':{wide}s}  {h.id:8d}  {h.name}" for h in hits]
    return "\n".join(lines if hits else [lines[0], "nothing found"])
