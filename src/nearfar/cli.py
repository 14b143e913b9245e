"""The command `nearfar`. torch is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import click

import nearfar


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(nearfar.__version__, prog_name="nearfar")
def main() -> None:
    """Deep metric learning: the same kind of thing near, a different kind far, and search from it."""


@main.command()
@click.option("--seconds", default=20.0, show_default=True, help="Training time for all losses together.")
def demo(seconds: float) -> None:
    """Learn embeddings of made-up things and find kinds never seen in training."""
    from nearfar.demo import run

    if seconds <= 0:
        raise click.BadParameter(f"must be above 0, got {seconds}", param_hint="--seconds")
    run(seconds=seconds)


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


if __name__ == "__main__":
    main()
