"""The command that finds wrong labels: audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("target", metavar="RUN|DATA")
@click.option("--model", type=click.Path(path_type=Path), help="Run directory whose network embeds DATA.")
@click.option(
    "--split",
    default="all",
    show_default=True,
    type=click.Choice(["train", "val", "test", "all"]),
    help="Part of the data to check.",
)
@click.option("--size", type=click.IntRange(min=32), help="Side of the images for EfficientNet-Lite0.  [default: 224]")
@click.option(
    "--shown", default=100, show_default=True, type=click.IntRange(min=1), help="Largest number of samples on the page."
)
@click.option(
    "--noise",
    default=0.0,
    type=click.FloatRange(0, 0.9),
    help="First make this fraction of the labels wrong, then report how many are found.",
)
@click.option(
    "--apply", "decisions", type=click.Path(exists=True, path_type=Path), help="decisions.csv, as saved from the page."
)
@click.option("--out", type=click.Path(path_type=Path), help="Output folder; with --apply the corrected manifest.")
def audit(**options: Any) -> None:
    """Find samples whose label is probably wrong, and write a table and a page with the evidence.

    On DATA, nothing is trained: feature vectors are used as they are, and EfficientNet-Lite0 embeds images. On a RUN,
    its own network embeds them. On the page you can keep, relabel or remove samples and save decisions.csv. `--apply
    decisions.csv --out corrected.csv` writes a manifest with the new labels beside the old ones.
    """
    from nearfar.audit.command import audit_command

    audit_command(**options)
