"""The command `nearfar classify`: find the class of each query, or "unknown" if the index does not have it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
import numpy as np

from nearfar.csv_files import write_csv
from nearfar.data.layouts.paths import scan_folder
from nearfar.errors import NearfarError
from nearfar.files import check_not_read, expand_user
from nearfar.formatting import clean_text
from nearfar.model_kinds import open_model
from nearfar.search.classification import SHOWN, Classification, classify
from nearfar.search.encoder import Encoder
from nearfar.search.index import Index
from nearfar.search.messages import say
from nearfar.search.query import SearchQuery, check_query, read_queries
from nearfar.search.run_index import open_index

UNKNOWN = "unknown"


def classification_command(
    run: Path,
    queries: tuple[str, ...],
    *,
    folder: Path | None,
    csv: Path | None,
    as_json: bool,
) -> None:
    """Run `nearfar classify`. Messages go to standard error, so that --json prints only JSON."""
    encoder = Encoder(open_model(run))
    texts = [text for query in queries for text in _expand(query)]
    for text in texts:
        check_query(text, encoder)  # report errors now, because opening the index can take long
    index = open_index(encoder, folder=folder, say=say)
    if encoder.calibration is None:
        truncate = "" if encoder.network.truncated is None else f" --truncate {encoder.dim}"
        raise NearfarError(
            f"{run} is not calibrated for {encoder.dim} dimensions, so no threshold is known: run `nearfar calibrate "
            f"{run}{truncate}` first"
        )
    read = _read(texts, index, encoder)
    ids = np.array([-1 if query.id is None else query.id for query in read], np.int64)
    vectors = np.stack([query.vector for query in read])
    results = classify(index, vectors, encoder.calibration, ids=ids)
    named = list(zip([query.text for query in read], results, strict=True))
    if as_json:
        click.echo(json.dumps([{"query": name, **asdict(result)} for name, result in named], indent=2))
    else:
        click.echo(_format(named))
    if csv is not None:
        check_not_read(csv, [expand_user(text) for text in texts], remedy="choose another --csv")
        say(f"table: {write_csv(csv, _rows(named))}")


def _expand(query: str) -> list[str]:
    """Return the images in a folder, or the query itself if it is not a folder."""
    path = expand_user(query)
    if not path.is_dir():
        return [query]
    images = [str(path / name) for name in scan_folder(path).images]
    if not images:
        raise NearfarError(f"{query}: there are no images in this folder")
    return images


def _read(texts: list[str], index: Index, encoder: Encoder) -> list[SearchQuery]:
    return [query for text in texts for query in read_queries(text, index, encoder)]


def _format(named: list[tuple[str, Classification]]) -> str:
    names = [clean_text(name) for name, _ in named]
    labels = [UNKNOWN if result.label is None else clean_text(result.label) for _, result in named]
    width, label_width = max(map(len, [*names, "query"])), max(map(len, [*labels, "class"]))
    lines = [f"{'query':{width}s}  {'class':{label_width}s}  probability  nearest classes"]
    for name, label, (_, result) in zip(names, labels, named, strict=True):
        nearest = ", ".join(f"{clean_text(item.label)} {item.score:.2f}" for item in result.candidates)
        chance = "" if result.label is None else f"{result.probability:.0%}"
        lines.append(f"{name:{width}s}  {label:{label_width}s}  {chance:>11s}  {nearest}")
    return "\n".join(lines)


def _rows(named: list[tuple[str, Classification]]) -> Iterator[tuple[object, ...]]:
    numbered = [f"{name}_{i}" for i in range(1, SHOWN + 1) for name in ("class", "score")]
    yield ("query", "class", "probability", *numbered)
    for name, result in named:
        cells = [cell for item in result.candidates for cell in (item.label, f"{item.score:.4f}")]
        cells += [""] * (2 * SHOWN - len(cells))
        yield (name, UNKNOWN if result.label is None else result.label, f"{result.probability:.4f}", *cells)
