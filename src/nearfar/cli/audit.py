"""The command that finds wrong labels: audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nearfar.cli.options import DEVICE, SKIP_BROKEN


@click.command()
@click.argument("target", metavar="RUN|INDEX|DATA")
@click.option("--model", metavar="MODEL", help="Model that embeds the data: a run, a saved model or a backbone.")
@click.option(
    "--split",
    default="all",
    show_default=True,
    type=click.Choice(["train", "val", "test", "all"]),
    help="Part of the data to check.",
)
@click.option(
    "--size",
    type=click.IntRange(min=32),
    help="Input size of the backbone in pixels.  [default: 224 for EfficientNet-Lite0]",
)
@click.option(
    "--shown",
    default=100,
    show_default=True,
    type=click.IntRange(min=1),
    help="Maximum number of samples on the review page.",
)
@click.option(
    "--noise",
    default=0.0,
    type=click.FloatRange(0, 0.9),
    help="Test the audit: first make this fraction of the labels wrong, then report how many of them the audit finds.",
)
@click.option(
    "--apply",
    "decisions",
    type=click.Path(exists=True, path_type=Path),
    help="Apply the decisions in this file: decisions.csv from the review page, or audit.csv, duplicates.csv or "
    "outliers.csv with the column `decision` filled in.",
)
@SKIP_BROKEN
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output folder; with --apply, the corrected manifest to write."
)
@click.option("--force", is_flag=True, help="Let --apply overwrite DATA or the file of decisions.")
@DEVICE
def audit(**options: Any) -> None:
    """Find samples whose label is probably wrong, and write the evidence to a table and an HTML page for review.

    For DATA, nothing is trained. A pretrained EfficientNet-Lite0 embeds image files, and all-MiniLM-L6-v2 embeds texts.
    Feature vectors and pixel arrays are used unchanged. For a RUN or an INDEX, its model embeds its data. --model
    replaces these models.

    On the review page, you can keep, relabel or remove samples and save decisions.csv. `--apply decisions.csv --out
    corrected.csv` then writes the corrected manifest, and corrected.changes.csv with the old and the new label of every
    change.
    """
    from nearfar.audit.command import audit_command

    audit_command(**options)
