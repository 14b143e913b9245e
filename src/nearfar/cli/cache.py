"""`nearfar cache`: list and remove cached activations."""

from __future__ import annotations

from pathlib import Path

import click

from nearfar.errors import NearfarError

FOLDER = click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.group()
def cache() -> None:
    """List or remove the activations in FOLDER, the value of the setting cache.activations."""


@cache.command("ls")
@FOLDER
def list_entries(folder: Path) -> None:
    """List the cached views, the most recently used first: size, what they belong to, and last use."""
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
        click.echo(f"{store.folder.name}  {store.size / 1e9:8.3f} GB  {used}  {what}")
    click.echo(f"{len(stores)} views, {sum(store.size for store in stores) / 1e9:.3f} GB")


@cache.command("rm")
@FOLDER
@click.argument("keys", nargs=-1)
@click.option("--all", "remove_all", is_flag=True, help="Remove all views.")
def remove_entries(folder: Path, keys: tuple[str, ...], remove_all: bool) -> None:
    """Remove the views whose names begin with KEYS. Views that a process uses are kept, and the command fails."""
    from nearfar.data.row_store import list_stores, remove_store

    if remove_all == bool(keys):
        raise click.UsageError("name the views to remove (`nearfar cache ls FOLDER` lists them), or use --all")
    stores = list_stores(folder)
    unknown = [key for key in keys if not any(store.folder.name.startswith(key) for store in stores)]
    if unknown:
        raise NearfarError(f"{folder}: has no view {unknown[0]!r} (`nearfar cache ls {folder}` lists them)")
    in_use = []
    for store in stores:
        if remove_all or store.folder.name.startswith(keys):
            if remove_store(store.folder):
                click.echo(f"removed {store.folder.name}, {store.size / 1e9:.3f} GB")
            else:
                in_use.append(store.folder.name)
    if in_use:
        raise NearfarError(f"{folder}: kept {', '.join(in_use)}, which a running process uses: wait until it ends")
