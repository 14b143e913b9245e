"""The command `nearfar`. Its subcommands import torch only when they run, so that --help is fast."""

from __future__ import annotations

import click

import nearfar
from nearfar.cli import audit, bench, cache, decide, listing, search, training
from nearfar.cli.edge import OneLineErrors


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(nearfar.__version__, prog_name="nearfar")
@click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Import and run this Python module first, for example to register your own backbones, losses or layouts. "
    "Repeatable.",
)
def main(modules: tuple[str, ...]) -> None:
    """Deep metric learning: train embeddings in which similar things are near, and search with them."""
    if modules:
        from nearfar.models.own_network import trust

        for module in modules:
            try:
                trust(module)
            except ValueError as error:
                raise click.ClickException(f"--import {module}: {error}") from None


for command in (
    *(training.train, training.evaluate, training.advise, training.demo),
    *(search.index, search.search, search.export, search.serve),
    *(decide.calibrate, decide.classify),
    *(audit.audit, bench.bench, cache.cache),
    *(listing.data, listing.losses, listing.recipes, listing.settings),
):
    main.add_command(command)
