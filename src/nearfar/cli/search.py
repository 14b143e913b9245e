"""Commands that use a trained model: index, search, export, serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from nearfar.cli.options import DEVICE, MODEL, SKIP_BROKEN, TRUNCATE, split_arguments

RUN = click.argument("run", metavar="RUN|INDEX", type=click.Path(exists=True, file_okay=False, path_type=Path))

ADDRESS = "DATABASE:PLACE"
TABLE = click.option("--table", help="Table or collection in the database.  [default: nearfar]")


@click.command()
@click.argument("arguments", metavar="[RUN] DATA", nargs=-1)
@MODEL
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the index.  [default: RUN/index, or DATA.index with --model]",
)
@click.option(
    "--kind",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "exact", "hnsw", "ivf-pq", "int8", "binary"]),
    help="Type of the index; auto uses exact up to 200,000 vectors, hnsw up to 2,000,000, and ivf-pq above. int8 "
    "and binary scan compressed vectors.",
)
@TRUNCATE
@SKIP_BROKEN
@click.option("--add", is_flag=True, help="Add DATA to the existing index, except samples that it already has.")
@DEVICE
def index(arguments: tuple[str, ...], model: str | None, **options: Any) -> None:
    """Embed all samples of DATA with the model of RUN or the one given by --model, and save a search index.

    --model needs no run: `nearfar index --model efficientnet-lite0 photos` writes photos.index, which `nearfar search`,
    `serve`, `audit` and `eval` accept in place of a run.
    """
    run, source = split_arguments(arguments, model, source="DATA")

    from nearfar.search.command import index_command

    index_command(run, source, model=model, **options)


@click.command()
@RUN
@click.argument("queries", metavar="QUERY...", nargs=-1, required=True)
@click.option("-k", default=10, show_default=True, type=click.IntRange(min=1), help="Number of neighbors.")
@click.option("--label", "labels", multiple=True, metavar="NAME", help="Search only this class; repeatable.")
@click.option("--index", "folder", type=click.Path(path_type=Path), help="Folder of an index.  [default: RUN/index]")
@click.option(
    "--from",
    "database",
    metavar=ADDRESS,
    help="Search in a table that `nearfar export --to` wrote, instead of an index.",
)
@TABLE
@SKIP_BROKEN
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write an HTML page with images.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@DEVICE
def search(run: Path, **options: Any) -> None:
    """Find the samples nearest to each QUERY: an image file, a .npy file of vectors, or the id of a sample.

    If the model takes texts, a QUERY can also be a text in quotes. The command searches RUN/index, or the data of the
    run if there is no index. INDEX is a folder that `nearfar index --model` wrote.
    """
    from nearfar.search.command import search_command

    search_command(run, **options)


@click.command()
@RUN
@click.option(
    "--format",
    "style",
    default="onnx",
    show_default=True,
    type=click.Choice(["onnx", "safetensors", "vectors"]),
    help="Format of the model, or `vectors` to export the index for a vector database.",
)
@click.option(
    "--to",
    "database",
    metavar=ADDRESS,
    help="Write the vectors of the index to a database: postgresql://HOST/NAME, qdrant:FOLDER, "
    "qdrant:http://HOST:6333, lancedb:FOLDER or sqlite:FILE. Passwords are read from the environment.",
)
@TABLE
@click.option(
    "--kind",
    type=click.Choice(["auto", "exact", "hnsw", "ivf-flat"]),
    help="Type of search in the table: exact, or an approximate index that the database supports.  [default: auto]",
)
@click.option("--replace", is_flag=True, help="Drop the table first if it exists.")
@TRUNCATE
@SKIP_BROKEN
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Output folder.  [default: RUN/export/FORMAT]"
)
@DEVICE
def export(run: Path, **options: Any) -> None:
    """Export the model of RUN with a model card, or the vectors of its index to files or to a database.

    If you export to the same table again, only rows that have changed are sent, and an interrupted upload continues.
    """
    from nearfar.search.command import export_command

    export_command(run, **options)


@click.command()
@RUN
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. If other machines can connect to it, all requests need the token.",
)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option(
    "--token",
    envvar="NEARFAR_TOKEN",
    help="Token that requests must send. NEARFAR_TOKEN in the environment is safer, because it is not printed.  "
    "[default: none if only this machine can connect, else a random one]",
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Number of server processes.")
@click.option(
    "--split",
    default="all",
    show_default=True,
    type=click.Choice(["train", "val", "test", "all"]),
    help="Part of the data to show.",
)
@SKIP_BROKEN
@DEVICE
@click.pass_context
def serve(context: click.Context, /, **options: Any) -> None:
    """Start a web server for a RUN or an INDEX: pages for search, classes, map, scores and label audit, and an API.

    Embeddings, map and audit are computed once and cached in RUN/serve. Your decisions on labels are saved in
    RUN/decisions.csv. When `nearfar index` changes RUN/index, the server reloads it without an interruption.
    """
    from nearfar.serve.command import serve_command

    is_secret = context.get_parameter_source("token") is ParameterSource.ENVIRONMENT
    serve_command(**options, show_token=not is_secret)
