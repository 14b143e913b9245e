"""Stop a run if a loss is not finite, without making the host wait for a GPU in every step.

On the CPU, each loss is checked at once. On a GPU, the loss is copied to the host in the background and checked as soon
as the copy has arrived, usually a step or two later. Until then, the GPU itself protects the weights: from the first
loss that is not finite, fused optimizers skip their updates. The network that is saved with the failed batch is
therefore the network before that step. RMSprop has no fused form, so its updates are not skipped.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from nearfar.host_reads import checked_values
from nearfar.training.failed_batch import LossError
from nearfar.validation import check_embeddings


class _Pending(NamedTuple):
    """A loss on its way to the host: its copy, the event that marks its arrival, and the batch."""

    value: Tensor
    arrival: torch.Event
    batch: LossError


class Watchdog:
    """Checks that the losses of a run are finite.

    Args:
        device: The device of the loss.
        optimizer: The optimizer, whose updates are skipped after a failure.
    """

    def __init__(self, device: torch.device, optimizer: torch.optim.Optimizer) -> None:
        self.device, self.optimizer = device, optimizer
        self.pending: deque[_Pending] = deque()
        self.failed = torch.zeros((), dtype=torch.float32, device=device)  # becomes 1 at the first bad loss
        self.can_skip = bool(optimizer.defaults.get("fused"))

    def watch(self, loss: Tensor, embeddings: Tensor, batch: LossError) -> None:
        """Check a loss: on the CPU at once, on a GPU as soon as its copy has arrived on the host.

        Args:
            loss: The loss, detached.
            embeddings: The embeddings of the batch, detached. On a GPU, they are checked here, because the loss does
                not check them there.
            batch: The error to raise if the loss is not finite, with the batch to save.
        """
        if self.device.type == "cpu":
            _check(float(loss), batch)
            return
        # 0 times NaN or infinity is NaN, so embeddings that are not finite are found even if the loss is finite
        value = loss + 0.0 * embeddings.sum()
        self.failed = torch.maximum(self.failed, (~torch.isfinite(value)).to(self.failed.dtype))
        arrival = torch.Event(self.device)
        copy = value.to("cpu", non_blocking=True)
        arrival.record()
        self.pending.append(_Pending(copy, arrival, batch))
        self.poll()

    def skip_failed_updates(self, *, is_scaled: bool) -> None:
        """Tell a fused optimizer to skip its update if any loss so far was not finite.

        With a gradient scaler (`is_scaled`), do nothing: the scaler skips updates whose gradients are not finite.
        """
        if self.device.type != "cpu" and self.can_skip and not is_scaled:
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]
            self.optimizer.found_inf = self.failed  # type: ignore[attr-defined]

    def poll(self) -> None:
        """Check the losses that have arrived on the host. Raise LossError if one is not finite."""
        while self.pending and self.pending[0].arrival.query():
            value, _, batch = self.pending.popleft()
            _check(float(value), batch)

    def wait(self) -> None:
        """Wait for the GPU, and check all losses. Call this before results are saved."""
        if self.pending:
            self.failed.item()  # waits until the GPU has computed all losses
            self.poll()


def _check(value: float, batch: LossError) -> None:
    """Raise the error `batch` unless the value is finite. If an embedding is not finite, the message says which one."""
    if math.isfinite(value):
        return
    message = f"the loss is {value}"
    try:
        with checked_values():
            check_embeddings("embeddings", batch.inputs["embeddings"])
    except ValueError as error:
        message = str(error)
    batch.args = (message,)
    raise batch
