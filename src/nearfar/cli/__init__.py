"""The command `nearfar`. Its commands import torch when they run, so that --help answers at once."""

from __future__ import annotations

from typing import Any

import click

import nearfar
from nearfar.cli import audit, bench, listing, search, training
from nearfar.errors import NearfarError

INTERRUPTED = 130  # as in shells: 128 + SIGINT


class OneLineErrors(click.Group):
    """A group whose commands report a NearfarError in one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NearfarError as error:
            raise click.ClickException(str(error)) from None
        except KeyboardInterrupt:
            click.echo("Interrupted. Continue a training run with `nearfar train --resume --out RUN`.", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(nearfar.__version__, prog_name="nearfar")
def main() -> None:
    """Deep metric learning: train embeddings in which similar things are near, and search with them."""


for command in (
    *(training.train, training.evaluate, training.advise, training.demo),
    *(search.index, search.search, search.export, search.serve),
    *(audit.audit, bench.bench),
    *(listing.data, listing.losses, listing.recipes, listing.settings),
):
    main.add_command(command)
