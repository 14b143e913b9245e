"""The batch on which a loss failed, kept in the run, and its loss computed again.

    python -m nearfar.training.failed_batch RUN

The file holds what the loss was given (embeddings, labels, weights), its state and the generator it draws from, and for
a look further back the inputs with the network's weights before the step. Of a loss that counts its own calls
(Proxy-ISA, DRO with sampling) it is the state after the call.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from nearfar.errors import NearfarError
from nearfar.runs import Run
from nearfar.training.checkpoint import load_state, save_state
from nearfar.training.prepare import make_loss

FILE_NAME = "failed-batch.safetensors"


def check_finite(value: Tensor) -> None:
    """A ValueError where the loss is no finite number."""
    number = float(value.detach())
    if not math.isfinite(number):
        raise ValueError(f"the loss is {number}")


def save_failed_batch(out: Path, batch: dict[str, Any]) -> str:
    """Write the batch; says where it is, or why it is nowhere."""
    try:
        save_state(out / FILE_NAME, batch)
    except NearfarError as error:
        return f"the batch could not be kept ({error})"
    return f"the batch is in {out / FILE_NAME}"


def load_failed_batch(out: Path) -> dict[str, Any]:
    """What `keep` wrote."""
    batch: dict[str, Any] = load_state(out / FILE_NAME)
    return batch


def recompute_loss(out: Path) -> Tensor:
    """The loss of the kept batch; raises the ValueError that it raised in training."""
    batch = load_failed_batch(out)
    rows: Tensor = batch["rows"]
    loss = make_loss(Run(out).config, batch["classes"], rows.shape[1])
    loss.load_state_dict(batch["loss"])
    torch.set_rng_state(batch["draws"])
    value: Tensor = loss(rows, batch["labels"], weights=batch["weights"], representatives=batch["representatives"])
    return value.detach()


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(run: Path) -> None:
    """Compute the loss of the batch on which a RUN failed again."""
    batch = load_failed_batch(run)
    lengths = torch.linalg.vector_norm(batch["rows"].double(), dim=1)
    click.echo(f"step {batch['step']}: {len(lengths)} rows, lengths from {lengths.min():.3g} to {lengths.max():.3g}")
    try:
        click.echo(f"the loss is {float(recompute_loss(run))}")
    except ValueError as error:
        click.echo(str(error))


if __name__ == "__main__":
    main()
