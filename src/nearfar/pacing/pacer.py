"""Pacer: how much each sample counts. What all of them share."""

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
    """Weights of all `samples` rows of the training set, which the loop passes to the loss, batch by batch.

    `weights` [N] are 1 at the start. `batch_weights` gives those of a batch. At the end of an epoch that
    `should_update`, the loop calls `update` with the embeddings of the whole training set in eval mode, and
    logs what it returns. `state_dict` holds numbers, strings, lists and tensors.
    """

    name = ""

    def __init__(self, *, samples: int, classes: int, warm_up: int = 1, every: int = 1) -> None:
        self.samples, self.classes = check_count("samples", samples), check_count("classes", classes)
        self.warm_up, self.every = check_count("warm_up", warm_up), check_count("every", every)
        self.rounds = 0
        self.weights = torch.ones(samples)

    def batch_weights(self, embeddings: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """The weights [B] of a batch: rows `indices` [B] of the training set, with detached embeddings [B, d]."""
        return self.weights[indices.to(self.weights.device)].to(embeddings.device)

    def should_update(self, epoch: int) -> bool:
        """Whether to call `update` at the end of this epoch, the first is 0: after `warm_up`, then every `every`."""
        done = epoch + 1
        return done >= self.warm_up and (done - self.warm_up) % self.every == 0

    def update(self, embeddings: Tensor, labels: Tensor, *, loss: nn.Module | None = None) -> dict[str, float]:
        """New weights from the embeddings [N, d] and labels [N] of the whole training set; what to log."""
        raise NotImplementedError

    def summary(self, labels: Tensor) -> dict[str, float]:
        """MAW and SDAW (BSPML's Eq. 14), and the share of samples with a weight of at least one half."""
        w, ids = self.weights.numpy(), labels.cpu().numpy()
        return {"maw": maw(w, ids), "sdaw": sdaw(w, ids), "kept": float((w >= 0.5).mean())}

    def check_rows(self, embeddings: Tensor, labels: Tensor) -> None:
        """The whole training set, row by row."""
        if len(embeddings) != self.samples or len(labels) != self.samples:
            raise ValueError(
                f"embeddings and labels must be of all {self.samples} training samples, in their order, got "
                f"{len(embeddings)} and {len(labels)} rows"
            )

    def state_dict(self) -> dict[str, Any]:
        """Enough to go on exactly."""
        return {"name": self.name, "rounds": self.rounds, "weights": self.weights.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same kind of pacer on as many samples."""
        if state["name"] != self.name:
            raise ValueError(f"state is of the pacer {state['name']!r}, this one is {self.name!r}")
        if len(state["weights"]) != self.samples:
            raise ValueError(f"state is of {len(state['weights'])} samples, this pacer has {self.samples}")
        self.rounds, self.weights = int(state["rounds"]), state["weights"].clone().float()


def register(name: str) -> Callable[[C], C]:
    """Return a class decorator that registers a pacer under `name`, which is also its `name` in checkpoints."""

    def add(pacer: C) -> C:
        pacer.name = name
        return PACERS.register(name)(pacer)

    return add
