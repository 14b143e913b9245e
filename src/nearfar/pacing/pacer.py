"""The base class of all pacers and their registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nearfar.pacing.objective import maw, sdaw
from nearfar.registry import Registry
from nearfar.validation import check_count

C = TypeVar("C", bound="type[Pacer]")
PACERS: Registry[Any] = Registry("pacer", package="nearfar.pacing")


class Pacer:
    """Weights of all training samples, which the training loop passes to the loss batch by batch.

    At the end of each epoch for which `should_update` is true, the loop calls `update` with the embeddings of the whole
    training set in eval mode, and logs the returned numbers.

    Args:
        samples: Number of training samples, N.
        classes: Number of training classes.
        warm_up: Number of epochs before the first update.
        every: Number of epochs from one update to the next.

    Attributes:
        weights: The weights [N], all 1 at the start.
        rounds: Number of updates so far.
    """

    name = ""

    def __init__(self, *, samples: int, classes: int, warm_up: int = 1, every: int = 1) -> None:
        self.samples, self.classes = check_count("samples", samples), check_count("classes", classes)
        self.warm_up, self.every = check_count("warm_up", warm_up), check_count("every", every)
        self.rounds = 0
        self.weights = torch.ones(samples)

    def batch_weights(self, embeddings: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Return the weights [B] of a batch: samples `indices` [B], with their detached embeddings [B, d]."""
        return self.weights[indices.to(self.weights.device)].to(embeddings.device)

    def should_update(self, epoch: int) -> bool:
        """Return whether to call `update` at the end of this epoch. The first epoch is 0."""
        done = epoch + 1
        return done >= self.warm_up and (done - self.warm_up) % self.every == 0

    def update(self, embeddings: Tensor, labels: Tensor, *, loss: nn.Module | None = None) -> dict[str, float]:
        """Compute new weights from the embeddings [N, d] and labels [N] of the training set, and return what to log."""
        raise NotImplementedError

    def summary(self, labels: Tensor) -> dict[str, float]:
        """Return MAW and SDAW (Eq. 14 of BSPML) and "kept", the fraction of samples with weight at least 0.5."""
        w, ids = self.weights.numpy(), labels.cpu().numpy()
        return {"maw": maw(w, ids), "sdaw": sdaw(w, ids), "kept": float((w >= 0.5).mean())}

    def check_samples(self, embeddings: Tensor, labels: Tensor) -> None:
        """Check that embeddings and labels are those of the whole training set."""
        if len(embeddings) != self.samples or len(labels) != self.samples:
            raise ValueError(
                f"embeddings and labels must be those of all {self.samples} training samples, in their order, got "
                f"{len(embeddings)} and {len(labels)}"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state: numbers, strings, lists and tensors."""
        return {"name": self.name, "rounds": self.rounds, "weights": self.weights.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same pacer on the same number of samples."""
        if state["name"] != self.name:
            raise ValueError(f"state is from the pacer {state['name']!r}, but this is {self.name!r}")
        if len(state["weights"]) != self.samples:
            raise ValueError(f"state has {len(state['weights'])} samples, but this pacer has {self.samples}")
        self.rounds, self.weights = int(state["rounds"]), state["weights"].clone().float()


def register(name: str) -> Callable[[C], C]:
    """Return a class decorator that registers a pacer under `name`, which is also its `name` in checkpoints."""

    def add(pacer: C) -> C:
        pacer.name = name
        return PACERS.register(name)(pacer)

    return add
