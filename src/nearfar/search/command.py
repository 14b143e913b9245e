"""The commands `nearfar index`, `nearfar search` and `nearfar export`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
import numpy as np

from nearfar.errors import NearfarError
from nearfar.files import check_not_read
from nearfar.formatting import clean_text, counted
from nearfar.model_kinds import MODEL_FILE, BackboneModel, open_model, write_index_model
from nearfar.search import storage
from nearfar.search.databases.command import export_to_database, search_database
from nearfar.search.databases.connection import DEFAULT_TABLE
from nearfar.search.encoder import Encoder
from nearfar.search.export_model import export_onnx, export_safetensors
from nearfar.search.export_vectors import export_vectors
from nearfar.search.index import Index
from nearfar.search.messages import say
from nearfar.search.page import write_page
from nearfar.search.query import Hit, SearchQuery, check_query, find_hits, read_queries
from nearfar.search.run_index import build_index, extend_index, load_index, open_index

RECALL_QUERIES = 1000


def index_command(
    run: Path | None,
    source: str,
    *,
    model: str | None = None,
    out: Path | None,
    kind: str,
    add: bool,
    truncate: int | None = None,
    skip_broken: bool = False,
) -> None:
    """Run `nearfar index`: build or extend an index, and print its size.

    The model is that of the run directory `run` or, if `run` is None, the model named by `model`.
    """
    if run is not None:
        encoder = _open_encoder(run, skip_broken, truncate=truncate)
        folder = out or encoder.run.index_folder
    else:
        chosen = open_model(str(model))
        chosen = chosen.for_data(chosen.manifest(source)) if isinstance(chosen, BackboneModel) else chosen
        encoder = Encoder(chosen.skip_broken() if skip_broken else chosen, truncate=truncate)
        path = Path(source)
        folder = out or path.with_name(f"{path.name}.index")
    if add and kind != "auto":
        raise NearfarError(f"--add keeps the kind of the existing index: remove --kind {kind}")
    # The lock covers loading and saving, so that two processes cannot overwrite each other's additions.
    with storage.lock(folder, say=say):
        index = load_index(encoder, folder, truncate=True) if add else None
        try:
            if index is None:
                index = build_index(encoder, source, kind=kind)
            else:
                known, count = extend_index(index, encoder, source)
                if known:
                    print(f"skipped {known:,} of {counted(count, 'sample')}: already in the index")
        except ValueError as error:
            raise NearfarError(f"{folder}: {error}") from None
        storage.write(index, folder)
        if run is None and not (add and (folder / MODEL_FILE).is_file()):
            write_index_model(folder, encoder.run, encoder.run.manifest(source), source)
    vectors, dimensions = counted(len(index), "vector"), counted(index.dim, "dimension")
    # Count only classes that have samples: `index.classes` can contain names of classes without any.
    classes = 0 if index.labels is None else len(np.unique(index.labels))
    print(f"{folder}: {vectors} of {dimensions}, {counted(classes, 'class', 'classes')}, {index.kind}")
    if index.approximate is not None:
        sample = min(RECALL_QUERIES, len(index))
        print(f"recall@10 against exact search: {index.measure(sample):.1%} (measured on {sample:,} samples)")


def search_command(
    run: Path,
    queries: tuple[str, ...],
    *,
    k: int,
    labels: tuple[str, ...],
    folder: Path | None,
    html: Path | None,
    as_json: bool,
    skip_broken: bool = False,
    database: str | None = None,
    table: str | None = None,
) -> None:
    """Run `nearfar search` and print the results. Messages go to standard error, so that --json prints only JSON."""
    _check_database_options(database, table=table)
    if database is not None and (folder is not None or html is not None):
        raise NearfarError(f"--from searches a database: remove {'--html' if folder is None else '--index'}")
    encoder = _open_encoder(run, skip_broken)
    for text in queries:
        check_query(text, encoder)  # report errors now, because opening the index can take long
    if database is not None:
        name = table or DEFAULT_TABLE
        rows = search_database(encoder, queries, database, table=name, k=k, labels=labels, say=say)
        _print_hits([(query, hits) for query, hits, _ in rows], [title for _, _, title in rows], as_json=as_json)
        return
    index = open_index(encoder, folder=folder, say=say)
    results = [
        (query, find_hits(index, query, k, label=labels, calibration=encoder.calibration))
        for text in queries
        for query in read_queries(text, index, encoder)
    ]
    _print_hits(results, [_title(query, index) for query, _ in results], as_json=as_json)
    if html is not None:
        read = [query.file for query, _ in results if query.file is not None]
        check_not_read(html, [*read, *map(Path, queries)], remedy="choose another --html")
        say(f"page: {write_page(html, results, encoder.run, index, say)}")


def export_command(
    run: Path,
    *,
    style: str,
    out: Path | None,
    truncate: int | None = None,
    skip_broken: bool = False,
    database: str | None = None,
    table: str | None = None,
    kind: str | None = None,
    replace: bool = False,
) -> None:
    """Run `nearfar export`."""
    _check_database_options(database, table=table, kind=kind, replace=replace)
    if database is not None:
        if out is not None or style not in ("onnx", "vectors"):
            raise NearfarError("--to writes the vectors to a database: remove --out and --format")
        index = open_index(_open_encoder(run, skip_broken, truncate=truncate), say=say)
        name = table or DEFAULT_TABLE
        print(export_to_database(index, database, table=name, kind=kind or "auto", replace_table=replace, say=say))
        return
    # A model is exported on the CPU, where its embeddings are compared with those of the exported file.
    encoder = _open_encoder(run, skip_broken, device="auto" if style == "vectors" else "cpu", truncate=truncate)
    folder = out or run / "export" / style
    if style == "onnx":
        path, difference = export_onnx(encoder, folder)
        print(f"{path}: checked with onnxruntime; the largest difference from torch is {difference:.1e}")
    elif style == "safetensors":
        print(export_safetensors(encoder, folder))
    else:
        paths = export_vectors(open_index(encoder, say=say), folder)
        print("\n".join(map(str, paths)))
        if any(path.name == "samples.csv" for path in paths):
            print("pyarrow is not installed, so the table is a CSV file without vectors (pip install pyarrow)")


def _open_encoder(run: Path, skip_broken: bool, *, device: str = "auto", truncate: int | None = None) -> Encoder:
    opened = open_model(run)
    return Encoder(opened.skip_broken() if skip_broken else opened, device=device, truncate=truncate)


def _check_database_options(database: str | None, **options: str | bool | None) -> None:
    given = [name for name, value in options.items() if value]
    if database is None and given:
        raise NearfarError(f"--{given[0]} applies only to a database: name the database with --to or --from")


def _print_hits(results: list[tuple[SearchQuery, list[Hit]]], titles: list[str], *, as_json: bool) -> None:
    if as_json:
        tree = [{"query": query.text, "results": [asdict(hit) for hit in hits]} for query, hits in results]
        click.echo(json.dumps(tree, indent=2))
    else:
        texts = [_format_hits(title, hits) for title, (_, hits) in zip(titles, results, strict=True)]
        click.echo("\n\n".join(texts))


def _title(query: SearchQuery, index: Index) -> str:
    if query.id is None:
        return query.text
    row = int(index.rows_of([query.id])[0])
    return ", ".join(part for part in (f"id {query.id}", index.label_of(row), index.names[row]) if part)


def _format_hits(title: str, hits: list[Hit]) -> str:
    labels = [clean_text(hit.label or "") for hit in hits]
    width = max(map(len, [*labels, "label"]))
    same = "   same" if any(hit.same is not None for hit in hits) else ""
    lines = [f"query: {clean_text(title)}", f"rank  distance{same}  {'label':{width}s}  {'id':>8s}  name"]
    for hit, label in zip(hits, labels, strict=True):
        chance = "" if hit.same is None else f"  {hit.same:5.0%}"
        lines.append(
            f"{hit.rank:4d}  {hit.distance:8.4f}{chance}  {label:{width}s}  {hit.id:8d}  {clean_text(hit.name)}"
        )
    return "\n".join(lines if hits else [lines[0], "nothing found"])
