"""`nearfar cache`: list and remove cached activations."""

from __future__ import annotations

from pathlib import Path

import click

from nearfar.errors import NearfarError
from nearfar.formatting import counted, disk_size

FOLDER = click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.group()
def cache() -> None:
    """List or remove cached activations: outputs of the frozen blocks of a network, stored in FOLDER.

    The setting cache.activations of a run names this folder. A view holds the activations of all images of a dataset
    with one draw of the random augmentation, or without augmentation.
    """


@cache.command("ls")
@FOLDER
def list_entries(folder: Path) -> None:
    """List the cached views with their size, last use, data and network, most recently used first."""
    import time

    from nearfar.data.row_store import list_stores

    stores = list_stores(folder)
    for store in stores:
        about = store.about
        if about:
            share = store.size / max(1, int(about["bytes"]))
            network = f"{about['backbone']} below {about['train_from']}, {about['dtype']}"
            what = f"{about['data']} {about['part']}, view {about['view']}, {network}"
            what += "" if share >= 1 else f", {share:.0%} complete"
        else:
            what = f"unknown: {store.folder / 'about.json'} is missing or damaged"
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(store.last_used))
        click.echo(f"{store.folder.name}  {disk_size(store.size):>8}  {used}  {what}")
    click.echo(f"{counted(len(stores), 'view')}, {disk_size(sum(store.size for store in stores))}")


@cache.command("rm")
@FOLDER
@click.argument("keys", nargs=-1)
@click.option("--all", "remove_all", is_flag=True, help="Remove all views.")
def remove_entries(folder: Path, keys: tuple[str, ...], remove_all: bool) -> None:
    """Remove the views whose names begin with one of KEYS.

    If a running process uses some of these views, they are kept, and the command ends with an error.
    """
    from nearfar.data.row_store import list_stores, remove_store

    if remove_all == bool(keys):
        raise click.UsageError("name the views to remove (`nearfar cache ls FOLDER` lists them), or use --all")
    stores = list_stores(folder)
    unknown = [key for key in keys if not any(store.folder.name.startswith(key) for store in stores)]
    if unknown:
        raise NearfarError(
            f"{folder}: no view has a name that begins with {unknown[0]!r} (`nearfar cache ls {folder}` lists the "
            "views)"
        )
    in_use = []
    for store in stores:
        if remove_all or store.folder.name.startswith(keys):
            if remove_store(store.folder):
                click.echo(f"removed {store.folder.name}, {disk_size(store.size)}")
            else:
                in_use.append(store.folder.name)
    if in_use:
        raise NearfarError(f"{folder}: kept {', '.join(in_use)}, which a running process uses: wait until it ends")
