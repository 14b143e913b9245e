"""Options that several commands have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import click

DEVICE_VARIABLE = "NEARFAR_DEVICE"  # as in nearfar.training.distributed.process_group, which takes long to import


@contextmanager
def _device_variable(name: str) -> Iterator[None]:
    """Set the environment variable that determines device=auto, also for processes that the command starts."""
    old = os.environ.get(DEVICE_VARIABLE)
    os.environ[DEVICE_VARIABLE] = name
    try:
        yield
    finally:
        if old is None:
            del os.environ[DEVICE_VARIABLE]
        else:
            os.environ[DEVICE_VARIABLE] = old


def _use_device(context: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None:
        context.with_resource(_device_variable(name))


DEVICE = click.option(
    "--device",
    callback=_use_device,
    expose_value=False,
    help="Device of the network: cpu, cuda or cuda:1.  [default: a CUDA GPU if there is one]",
)

SKIP_BROKEN = click.option(
    "--skip-broken", is_flag=True, help="Leave out images that cannot be read. Without it, they are an error."
)
