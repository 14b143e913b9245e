"""Options that several commands have."""

from __future__ import annotations

import click

SKIP_BROKEN = click.option(
    "--skip-broken", is_flag=True, help="Leave out images that cannot be read. Without it, they are an error."
)
