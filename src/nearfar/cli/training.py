"""Commands that train and score networks: train, eval, advise, demo."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from nearfar.cli.options import DEVICE, MODEL, SKIP_BROKEN, TRUNCATE, split_arguments
from nearfar.config.keys import SHORT_KEYS, all_settings
from nearfar.config.tree import parse_setting
from nearfar.errors import NearfarError

# Options of `nearfar train` that are shorthand for a frequent setting: maps each option to the setting and its type.
FLAGS: dict[str, tuple[str, Any]] = {
    "epochs": ("epochs", int),
    "lr": (SHORT_KEYS["lr"], float),
    "batch_size": (SHORT_KEYS["batch_size"], int),
    "device": ("device", str),
    "seed": ("seed", int),
    "backbone": (SHORT_KEYS["backbone"], str),
    "size": (SHORT_KEYS["size"], int),
}


def setting_flags(command: Any) -> Any:
    """Return a command with the options in FLAGS added. Their help texts are those of the settings."""
    for name, (key, kind) in reversed(FLAGS.items()):
        flag, about = f"--{name.replace('_', '-')}", all_settings()[key].help
        command = click.option(flag, name, type=kind, help=f"{about} Shorthand for --set {key}=...")(command)
    return command


def merge_flags(settings: tuple[str, ...], flags: dict[str, Any]) -> tuple[str, ...]:
    """Return the settings given by --set together with those given by the options in FLAGS.

    Raises:
        NearfarError: If an option and --set give different values to one setting.
    """
    merged = list(settings)
    for name, value in flags.items():
        if value is None:
            continue
        key = FLAGS[name][0]
        for text in settings:
            path, other = parse_setting(text)
            if ".".join(path) == key and other != value:
                flag = f"--{name.replace('_', '-')} {value}"
                raise NearfarError(f"{flag} and --set {text} set {key} to different values: leave one of them out")
        merged.append(f"{key}={value}")
    return tuple(merged)


@click.command()
@click.argument("source", metavar="DATA", required=False)
@click.option(
    "--recipe", help="Recipe to train with; `nearfar recipes` lists all.  [default: proxy-anchor, or supcon for pairs]"
)
@setting_flags
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any setting, e.g. model.dim=64; repeatable."
)
@click.option("--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="YAML file with settings.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Run directory.  [default: runs/DATA-RECIPE]"
)
@click.option(
    "--resume", is_flag=True, help="Continue an interrupted run. The result is the same as without the interruption."
)
@click.option("--download", is_flag=True, help="Download the model of --backbone transformers:NAME if it is missing.")
@click.option("--allow-partial", is_flag=True, help="Skip samples whose image file is missing.")
@SKIP_BROKEN
@click.option(
    "--dry-run", is_flag=True, help="Only check the run and print its configuration, steps and estimated time."
)
@click.option(
    "--processes",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of training processes. Each of them processes a part of every batch.",
)
def train(processes: int, settings: tuple[str, ...], **options: Any) -> None:
    """Train an embedding on DATA.

    DATA is a folder with one subfolder per class, a tar or zip of such a folder, a CSV or JSONL file of paths or texts,
    an .npz file, a benchmark folder in its official layout, or `sketches`, the built-in drawings.

    The configuration starts from the defaults for the kind of data. The recipe, --config and --set override them, in
    this order. `nearfar settings` lists all settings. The run directory stores the complete configuration: `nearfar
    train --config RUN/config.yaml --out OTHER` repeats the run.
    """
    settings = merge_flags(settings, {name: options.pop(name) for name in FLAGS})
    if options.pop("download"):
        settings = (*settings, "model.download=true")
    if options.pop("skip_broken"):
        settings = (*settings, "data.on_error=skip")

    from nearfar.cli.train_command import launch, train_command

    if processes > 1 and not options["dry_run"]:
        sys.exit(launch(processes, settings=settings, **options))
    train_command(settings=settings, **options)


@click.command("eval")
@click.argument("arguments", metavar="[RUN] [DATA]", nargs=-1)
@MODEL
@click.option(
    "--split",
    default="test",
    show_default=True,
    type=click.Choice(["train", "val", "test", "all"]),
    help="Part of the data to score.",
)
@click.option(
    "--metrics", help="Comma-separated metrics, e.g. recall@1,map@r,ndcg@10,nmi.  [default: those of the run]"
)
@TRUNCATE
@SKIP_BROKEN
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@DEVICE
def evaluate(
    arguments: tuple[str, ...],
    model: str | None,
    split: str,
    metrics: str | None,
    truncate: int | None,
    skip_broken: bool,
    as_json: bool,
) -> None:
    """Score the model of RUN on the data of the run, or on other DATA.

    With --model, score a backbone or a saved model on DATA without training: `nearfar eval --model efficientnet-lite0
    photos` gives the scores to beat.
    """
    run, source = split_arguments(arguments, model)

    from nearfar.model_kinds import BackboneModel, open_model

    names = None if metrics is None else tuple(name.strip() for name in metrics.split(","))
    try:
        opened = open_model(model if run is None else run)
        if isinstance(opened, BackboneModel) and source is not None:
            opened = opened.for_data(opened.manifest(source))
        opened = opened.skip_broken() if skip_broken else opened
        say = partial(click.echo, err=True)  # so that --json prints only JSON
        scores = opened.evaluate(source, split=split, metrics=names, truncate=truncate, say=say)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(scores.to_json() if as_json else scores.table())


@click.command()
@click.argument("source", metavar="DATA")
@click.option("--minutes", default=10.0, show_default=True, type=float, help="Time limit in minutes.")
@click.option(
    "--recipes",
    help="Comma-separated recipes, each with optional settings after its name, e.g. "
    '"supcon, proxy-anchor loss.alpha=16".  [default: eight recipes]',
)
@click.option(
    "--whole",
    is_flag=True,
    help="For images and texts, train the whole network instead of one layer. Without a GPU, this takes hours: raise "
    "--minutes.",
)
@SKIP_BROKEN
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Output folder.  [default: runs/advise-DATA]"
)
@DEVICE
def advise(**options: Any) -> None:
    """Find a good recipe for DATA: compare short training runs by their scores on held-out training classes.

    The output is the recommended recipe, how certain the choice is, and the command that trains it. The test split is
    not used. Each result is saved as soon as it is available, so you can interrupt the command and run it again to
    continue.
    """
    from nearfar.advise.command import advise_command

    advise_command(**options)


@click.command()
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Number of training steps per recipe.  [default: 2700, or with --pretrained that of `nearfar train`]",
)
@click.option(
    "--pretrained",
    "images",
    metavar="FOLDER",
    help="Fine-tune a pretrained network on your own images in this folder, with the defaults of `nearfar train`.",
)
@click.option(
    "--out",
    default="runs/demo",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Output folder for the runs and the report.",
)
@DEVICE
def demo(steps: int | None, images: str | None, out: Path) -> None:
    """Train on the built-in drawings, then search among classes that training never saw."""
    from nearfar.demo import run

    run(steps=steps, source=images or "sketches", out=out)
