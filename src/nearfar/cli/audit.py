"""The command that finds wrong labels: audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nearfar.cli.options import DEVICE, SKIP_BROKEN


@click.command()
@click.argument("target", metavar="RUN|INDEX|DATA")
@click.option("--model", metavar="MODEL", help="Run, backbone or saved model that embeds DATA.")
@click.option(
    "--split",
    default="all",
    show_default=True,
    type=click.Choice(["train", "val", "test", "all"]),
    help="Part of the data to check.",
)
@click.option("--size", type=click.IntRange(min=32), help="Input size of EfficientNet-Lite0 in pixels.  [default: 224]")
@click.option(
    "--shown", default=100, show_default=True, type=click.IntRange(min=1), help="Maximum number of samples on the page."
)
@click.option(
    "--noise",
    default=0.0,
    type=click.FloatRange(0, 0.9),
    help="To test the audit, first make this fraction of the labels wrong, then report how many it finds.",
)
@click.option(
    "--apply",
    "decisions",
    type=click.Path(exists=True, path_type=Path),
    help="Apply the decisions in this file, which the page saves.",
)
@SKIP_BROKEN
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output folder; with --apply, the file of the corrected manifest."
)
@click.option("--force", is_flag=True, help="Let --apply overwrite DATA or the decisions.")
@DEVICE
def audit(**options: Any) -> None:
    """Find samples whose label is probably wrong, and write a table and a page with the evidence.

    For DATA, nothing is trained: feature vectors and pixel arrays are used as they are, and a pretrained
    EfficientNet-Lite0 embeds image files. For a RUN, its network embeds its data. On the page you can keep, relabel or
    remove samples and save decisions.csv. `--apply decisions.csv --out corrected.csv` then writes the corrected
    manifest, and corrected.changes.csv with the old and the new label of every change.
    """
    from nearfar.audit.command import audit_command

    audit_command(**options)
