"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nearfar.environment import environment_variable

# copied from nearfar.training.distributed.process_group, because importing that module is slow
DEVICE_VARIABLE = "NEARFAR_DEVICE"


def _use_device(context: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None:
        context.with_resource(environment_variable(DEVICE_VARIABLE, name))


DEVICE = click.option(
    "--device",
    callback=_use_device,
    expose_value=False,
    help="Device of the network: cpu, cuda or cuda:1.  [default: a CUDA GPU if there is one]",
)

SKIP_BROKEN = click.option(
    "--skip-broken", is_flag=True, help="Leave out images that cannot be read. By default, they cause an error."
)

TRUNCATE = click.option(
    "--truncate",
    type=click.IntRange(min=1),
    help="Keep only this many leading dimensions of the embeddings, for a model trained with loss.matryoshka.",
)

MODEL = click.option(
    "--model",
    metavar="MODEL",
    help="Instead of RUN: a backbone such as efficientnet-lite0, transformers:DIRECTORY, MODULE:FUNCTION, or the "
    "directory of a saved model.",
)


def split_arguments(arguments: tuple[str, ...], model: str | None, *, source: str = "") -> tuple[Path | None, Any]:
    """Split the arguments of a command that accepts --model in place of RUN, and return the run and DATA.

    Args:
        arguments: RUN and DATA. If --model is given, only DATA.
        model: The value of --model.
        source: "DATA" if DATA is always required. If empty, DATA is optional unless --model is given.

    Raises:
        click.UsageError: If there are too many or too few arguments, or if RUN does not exist.
    """
    run, *rest = ("", *arguments) if model is not None else (arguments or ("",))
    if len(rest) > 1 or (not rest and (source or model is not None)) or not (run or model):
        expected = "DATA" if model is not None else "RUN and DATA" if source else "RUN [DATA]"
        raise click.UsageError(f"expected {expected}, got {' '.join(arguments) or 'nothing'}")
    data = rest[0] if rest else None
    if model is not None:
        return None, data
    if not Path(run).is_dir():
        raise click.UsageError(f"{run!r} is not a run directory: pass one, or name a model with --model")
    return Path(run), data
