"""Save the batch on which a loss failed, and recompute its loss for debugging.

    python -m nearfar.training.failed_batch RUN

The file contains the input of the loss (embeddings, labels, weights), the state of the loss and the state of the random
generator. It also contains the input of the network and the network's weights before the step. Some losses update their
state in each call (Proxy-ISA, DRO with sampling); the file contains their state after the call that failed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from nearfar.data import Batch
from nearfar.errors import NearfarError
from nearfar.losses import RelationLoss
from nearfar.runs import Run
from nearfar.training.checkpoint import load_state, save_state
from nearfar.training.components import make_loss

FILE_NAME = "failed-batch.safetensors"


class LossError(ValueError):
    """Raised if a loss fails or is not finite.

    `inputs` has the step, the batch, the input of the loss and the random state.
    """

    def __init__(
        self, message: str, step: int, batch: Batch, embeddings: Tensor, weights: Tensor | None, random_state: Tensor
    ) -> None:
        super().__init__(message)
        self.inputs: dict[str, Any] = {
            "step": step,
            "x": batch.x,
            "indices": batch.indices,
            "embeddings": embeddings,
            "labels": batch.labels,
            "weights": weights,
            "random_state": random_state,
        }


def save_failed_batch(out: Path, batch: dict[str, Any]) -> str:
    """Save the batch in a run directory. Return a message that says where it is or why it could not be saved."""
    try:
        save_state(out / FILE_NAME, batch)
    except NearfarError as error:
        return f"the batch could not be saved: {error}"
    return f"the batch is saved in {out / FILE_NAME}"


def load_failed_batch(out: Path) -> dict[str, Any]:
    """Load the batch that `save_failed_batch` saved."""
    batch: dict[str, Any] = load_state(out / FILE_NAME)
    return batch


def recompute_loss(out: Path) -> Tensor:
    """Recompute the loss of the saved batch. If the loss raised a ValueError in training, this raises it again."""
    batch = load_failed_batch(out)
    embeddings: Tensor = batch["embeddings"]
    state, relation = batch["loss"], batch.get("relation")
    levels = next((value.numpy() for key, value in state.items() if key.split(".")[-1] == "levels"), None)
    loss = make_loss(Run(out).config, batch["classes"], embeddings.shape[1], levels)
    if relation is not None:
        is_graded = bool(((relation > 0) & (relation < 1)).any())
        loss = RelationLoss(loss, graded=is_graded)  # type: ignore[arg-type]
    loss.load_state_dict(state)
    torch.set_rng_state(batch["random_state"])
    if relation is not None:
        compared: Tensor = loss(embeddings, relation)
        return compared.detach()
    representatives = batch["representatives"]
    value: Tensor = loss(embeddings, batch["labels"], weights=batch["weights"], representatives=representatives)
    return value.detach()


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(run: Path) -> None:
    """Recompute the loss of the batch on which RUN failed."""
    batch = load_failed_batch(run)
    norms = torch.linalg.vector_norm(batch["embeddings"].double(), dim=1)
    click.echo(f"step {batch['step']}: {len(norms)} embeddings, norms from {norms.min():.3g} to {norms.max():.3g}")
    try:
        click.echo(f"the loss is {float(recompute_loss(run))}")
    except ValueError as error:
        click.echo(str(error))


if __name__ == "__main__":
    main()
