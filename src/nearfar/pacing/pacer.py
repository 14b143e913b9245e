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
    """Base class of pacers. A pacer holds a weight for every training sample.

    For each batch, the training loop calls `batch_weights` and passes the result to the loss. At the end of each epoch
    for which `should_update` returns True, the loop embeds the whole training set in eval mode, calls `update` with the
    embeddings, and logs the numbers that it returns.

    Args:
        samples: Number of training samples, N.
        classes: Number of training classes.
        warm_up: Number of epochs after which the first update takes place.
        every: Number of epochs between updates.

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
        """Return the weights [B] of a batch.

        Args:
            embeddings: Detached embeddings of the batch [B, d].
            labels: Labels of the batch [B].
            indices: Indices of the samples in the training set [B].
        """
        return self.weights[indices.to(self.weights.device)].to(embeddings.device, non_blocking=True)

    def should_update(self, epoch: int) -> bool:
        """Return whether to call `update` at the end of this epoch. Epochs are counted from 0."""
        done = epoch + 1
        return done >= self.warm_up and (done - self.warm_up) % self.every == 0

    def update(self, embeddings: Tensor, labels: Tensor, *, loss: nn.Module | None = None) -> dict[str, float]:
        """Compute new weights from the embeddings of the training set.

        Args:
            embeddings: Embeddings of all training samples [N, d].
            labels: Labels of all training samples [N].
            loss: The training loss, for pacers that need it.

        Returns:
            A dict that maps names to numbers for the log.
        """
        raise NotImplementedError

    def summary(self, labels: Tensor) -> dict[str, float]:
        """Return statistics of the weights to log.

        They are the mean ("maw") and the standard deviation ("sdaw") over classes of the mean weight of a class
        (arXiv 2211.11751, Eq. 14), and the fraction of samples with weight at least 0.5 ("kept").
        """
        w, ids = self.weights.numpy(), labels.cpu().numpy()
        return {"maw": maw(w, ids), "sdaw": sdaw(w, ids), "kept": float((w >= 0.5).mean())}

    def check_samples(self, embeddings: Tensor, labels: Tensor) -> None:
        """Check that there is one embedding and one label for every training sample."""
        if len(embeddings) != self.samples or len(labels) != self.samples:
            raise ValueError(
                f"embeddings and labels must cover all {self.samples} training samples, got "
                f"{len(embeddings)} and {len(labels)}"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the pacer. It consists of numbers, strings, lists and tensors only."""
        return {"name": self.name, "rounds": self.rounds, "weights": self.weights.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. It must come from a pacer of the same name with the same number of samples."""
        if state["name"] != self.name:
            raise ValueError(
                f"the state is from the pacer {state['name']!r}, but this pacer is {self.name!r}: use the pacer of the "
                "saved run"
            )
        if len(state["weights"]) != self.samples:
            raise ValueError(
                f"the state has {len(state['weights'])} samples, but this pacer has {self.samples}: use the training "
                "data of the saved run"
            )
        self.rounds, self.weights = int(state["rounds"]), state["weights"].clone().float()


def register(name: str) -> Callable[[C], C]:
    """Return a class decorator that registers a pacer under `name`. Checkpoints store this name."""

    def add(pacer: C) -> C:
        pacer.name = name
        return PACERS.register(name)(pacer)

    return add
