"""Messages of the commands. They go to standard error, so that standard output holds only results."""

from __future__ import annotations

import click


def say(line: str) -> None:
    """Print a line to standard error."""
    click.echo(line, err=True)
