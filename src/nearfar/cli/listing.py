"""Commands that describe a dataset or list what is available: data, losses, recipes, settings."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("source", metavar="DATA")
@click.option("--scan", "scanned", is_flag=True, help="Also read every image to find broken and duplicate files.")
@click.option(
    "--workers", default=2, show_default=True, type=click.IntRange(min=1), help="Number of threads that read images."
)
@click.option("--allow-partial", is_flag=True, help="Skip samples whose image file is missing.")
@click.option("--root", type=click.Path(path_type=Path), help="Folder that image paths in a CSV are relative to.")
def data(source: str, scanned: bool, workers: int, allow_partial: bool, root: Path | None) -> None:
    """Show the classes, counts and splits of a dataset.

    DATA is a folder with one subfolder per class, a tar or zip of such a folder, a CSV or JSONL file of paths or texts,
    an .npz file, a benchmark folder in its official layout, or `sketches`, the built-in drawings.
    """
    from tqdm import tqdm

    from nearfar.data import open_data, scan_images

    manifest = open_data(source, allow_partial=allow_partial, root=root)
    click.echo(manifest.summary())
    if scanned and manifest.kind == "files":
        with tqdm(total=len(manifest), unit="file", leave=False, disable=None) as bar:
            click.echo(scan_images(manifest, workers=workers, progress=lambda *_: bar.update()))


@click.command()
@click.argument("name", required=False)
def losses(name: str | None) -> None:
    """List all losses, or show one loss with its formula and options."""
    import inspect

    from nearfar.losses import loss_class, names

    if name is None:
        for known in names():
            click.echo(f"{known:20s} {(inspect.getdoc(loss_class(known)) or '').splitlines()[0]}")
        return
    try:
        loss = loss_class(name)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name}{inspect.signature(loss, eval_str=True)}\n\n{inspect.getdoc(loss)}")


@click.command()
@click.argument("name", required=False)
@click.option("--schema", is_flag=True, help="Print the JSON schema of recipe files, for editors.")
def recipes(name: str | None, schema: bool) -> None:
    """List all recipes, grouped by purpose, or show one recipe and where each of its numbers comes from."""
    import json

    from nearfar.config import recipes as known
    from nearfar.config.reference import recipe_schema

    if schema:
        click.echo(json.dumps(recipe_schema(), indent=2))
        return
    try:
        click.echo(known.overview() if name is None else known.annotate(name).rstrip())
    except ValueError as error:
        raise click.ClickException(str(error)) from None


@click.command()
@click.argument("key", required=False)
@click.option("--schema", is_flag=True, help="Print the JSON schema of configuration files, for editors.")
@click.option("--markdown", is_flag=True, help="Print the page docs/settings.md.")
def settings(key: str | None, schema: bool, markdown: bool) -> None:
    """List all settings of a run, one section such as `optimizer`, or one setting such as `optimizer.lr`."""
    import json

    from nearfar.config.reference import config_schema, describe_settings, settings_page

    if schema:
        click.echo(json.dumps(config_schema(), indent=2))
    elif markdown:
        click.echo(settings_page(), nl=False)
    else:
        click.echo(describe_settings(key))
