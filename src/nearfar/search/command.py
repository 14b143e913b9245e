"""The commands `nearfar index`, `nearfar search` and `nearfar export`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from nearfar.errors import NearfarError
from nearfar.files import check_not_read
from nearfar.formatting import clean_text
from nearfar.model_kinds import MODEL_FILE, BackboneModel, open_model, write_index_model
from nearfar.search import storage
from nearfar.search.encoder import Encoder
from nearfar.search.export_model import export_onnx, export_safetensors
from nearfar.search.export_vectors import export_vectors
from nearfar.search.index import Index
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
    skip_broken: bool = False,
) -> None:
    """Run `nearfar index`, with the model of a run or with any other."""
    if run is not None:
        encoder = _open_encoder(run, skip_broken)
        folder = out or encoder.run.index_folder
    else:
        chosen = open_model(str(model))
        chosen = chosen.for_data(chosen.manifest(source)) if isinstance(chosen, BackboneModel) else chosen
        encoder = Encoder(chosen.skip_broken() if skip_broken else chosen)
        path = Path(source)
        folder = out or path.with_name(f"{path.name}.index")
    if add and kind != "auto":
        raise NearfarError(f"--add keeps the kind of the existing index: remove --kind {kind}")
    # The lock covers loading and saving, so that additions of two processes follow each other.
    with storage.lock(folder, say=_say):
        index = load_index(encoder, folder) if add else None
        try:
            if index is None:
                index = build_index(encoder, source, kind=kind)
            else:
                known, count = extend_index(index, encoder, source)
                if known:
                    print(f"{known:,} of {count:,} samples are already in the index and were skipped")
        except ValueError as error:
            raise NearfarError(f"{folder}: {error}") from None
        storage.write(index, folder)
        if run is None and not (add and (folder / MODEL_FILE).is_file()):
            write_index_model(folder, encoder.run, encoder.run.manifest(source), source)
    print(f"{folder}: {len(index):,} vectors of {index.dim} dimensions, {len(index.classes):,} classes, {index.kind}")
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
) -> None:
    """Run `nearfar search`. Messages go to standard error, so that --json prints only JSON."""
    encoder = _open_encoder(run, skip_broken)
    for text in queries:
        check_query(text, encoder)  # before the data of a run without an index is embedded
    index = open_index(encoder, folder=folder, say=_say)
    results = [
        (query, find_hits(index, query, k, label=labels))
        for text in queries
        for query in read_queries(text, index, encoder)
    ]
    if as_json:
        tree = [{"query": query.text, "results": [asdict(hit) for hit in hits]} for query, hits in results]
        click.echo(json.dumps(tree, indent=2))
    else:
        click.echo("\n\n".join(_format_hits(query, hits, index) for query, hits in results))
    if html is not None:
        read = [query.file for query, _ in results if query.file is not None]
        check_not_read(html, [*read, *map(Path, queries)], remedy="choose another --html")
        _say(f"page: {write_page(html, results, encoder.run, index, _say)}")


def export_command(run: Path, *, style: str, out: Path | None, skip_broken: bool = False) -> None:
    """Run `nearfar export`."""
    # A model is exported on the CPU, where its embeddings are compared with those of the exported file.
    encoder = _open_encoder(run, skip_broken, device="auto" if style == "vectors" else "cpu")
    folder = out or run / "export" / style
    if style == "onnx":
        path, difference = export_onnx(encoder, folder)
        print(f"{path}: checked with onnxruntime; the largest difference from torch is {difference:.1e}")
    elif style == "safetensors":
        print(export_safetensors(encoder, folder))
    else:
        paths = export_vectors(open_index(encoder, say=_say), folder)
        print("\n".join(map(str, paths)))
        if any(path.name == "samples.csv" for path in paths):
            print("pyarrow is not installed, so the table is a CSV file without vectors (pip install pyarrow)")


def _open_encoder(run: Path, skip_broken: bool, *, device: str = "auto") -> Encoder:
    opened = open_model(run)
    return Encoder(opened.skip_broken() if skip_broken else opened, device=device)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _format_hits(query: SearchQuery, hits: list[Hit], index: Index) -> str:
    title = query.text
    if query.id is not None:
        row = int(index.rows_of([query.id])[0])
        title = ", ".join(part for part in (f"id {query.id}", index.label_of(row), index.names[row]) if part)
    labels = [clean_text(hit.label or "") for hit in hits]
    width = max(map(len, [*labels, "label"]))
    lines = [f"query: {clean_text(title)}", f"rank  distance  {'label':{width}s}  {'id':>8s}  name"]
    for hit, label in zip(hits, labels, strict=True):
        lines.append(f"{hit.rank:4d}  {hit.distance:8.4f}  {label:{width}s}  {hit.id:8d}  {clean_text(hit.name)}")
    return "\n".join(lines if hits else [lines[0], "nothing found"])
