"""The command `nearfar`. torch is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import nearfar
from nearfar.errors import NearfarError


class Plain(click.Group):
    """A group whose commands tell what is wrong in one line: errors about data and files are for people."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NearfarError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=Plain, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(nearfar.__version__, prog_name="nearfar")
def main() -> None:
    """Deep metric learning: the same kind of thing near, a different kind far, and search from it."""


@main.command()
@click.option("--steps", default=400, show_default=True, type=click.IntRange(min=1), help="Batches for each loss.")
@click.option("--out", default="runs/demo", show_default=True, type=click.Path(file_okay=False, path_type=Path))
def demo(steps: int, out: Path) -> None:
    """Train on the embedded drawings, and recognise kinds of things never seen in training."""
    from nearfar.demo import run

    run(steps=steps, out=out)


@main.command()
@click.argument("name", required=False)
def losses(name: str | None) -> None:
    """List the losses, or show one with its formula and options."""
    import inspect

    from nearfar.losses import loss_class, names

    if name is None:
        for each in names():
            click.echo(f"{each:20s} {(inspect.getdoc(loss_class(each)) or '').splitlines()[0]}")
        return
    try:
        shown = loss_class(name)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name}{inspect.signature(shown)}\n\n{inspect.getdoc(shown)}")


@main.command()
@click.argument("name", required=False)
def recipes(name: str | None) -> None:
    """List the recipes, or show one with the source of each of its numbers."""
    from nearfar import recipes as known

    if name is None:
        for each in known.names():
            click.echo(f"{each:20s} {known.load(each)['paper']}")
        return
    try:
        click.echo(known.text(name), nl=False)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


@main.command()
@click.argument("source", metavar="DATA")
@click.option("--scan", "scanned", is_flag=True, help="Also read every picture: broken and doubled files.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(min=1), help="Threads that read pictures.")
@click.option("--allow-partial", is_flag=True, help="Go on with an official data set that lacks files.")
@click.option("--root", type=click.Path(path_type=Path), help="Folder of the pictures that a table names.")
def data(source: str, scanned: bool, workers: int, allow_partial: bool, root: Path | None) -> None:
    """Show what a data set holds: classes, counts, splits; with --scan also broken and doubled files.

    DATA is a folder of class folders, a tar of one, a CSV, an .npz of vectors, a benchmark in its official layout, or
    `sketches`, the embedded drawings.
    """
    from tqdm import tqdm

    from nearfar.data import open_data, scan

    manifest = open_data(source, allow_partial=allow_partial, root=root)
    click.echo(manifest.summary())
    if scanned and manifest.kind == "files":
        with tqdm(total=len(manifest), unit="file", leave=False, disable=None) as bar:
            click.echo(scan(manifest, workers=workers, progress=lambda *_: bar.update()))


if __name__ == "__main__":
    main()
