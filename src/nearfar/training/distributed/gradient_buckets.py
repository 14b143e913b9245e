"""Sum gradients over the processes while the backward pass is still running.

The parameters are grouped into buckets, from the last layer to the first, which is the order in which the backward pass
computes their gradients. As soon as all gradients of a bucket exist, their sum over the processes starts in the
background. The backward pass hides the communication of all buckets but the last.

PyTorch's DistributedDataParallel does the same. It is not used here, because it rearranges its buckets after the first
step. The rounding of a sum over three or more processes depends on the position of a number in its bucket, so a resumed
run would not end with bit-identical weights. Here the buckets never change. They also support parameters that are
frozen for some epochs, several backward passes per step, and networks whose lower part is replaced by cached
activations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nearfar.training.distributed import process_group
from nearfar.training.projection import group_by_size


class GradientBuckets:
    """Sums or averages the gradients of parameters over all processes, in place.

        with buckets.reduce():
            loss.backward()

    Every process must pass the same parameters in the same order. In each step, the same parameters must get gradients
    on every process.

    Args:
        parameters: The parameters. Those that do not require gradients when this object is created are ignored.
        mean: If True, average the gradients; otherwise, sum them.
    """

    def __init__(self, parameters: Iterable[Tensor], *, mean: bool = False) -> None:
        self.mean = mean
        trained = [p for p in parameters if p.requires_grad]
        self._buckets = [[p for (p,) in group] for group in group_by_size((p,) for p in reversed(trained))]
        self._missing: list[set[int]] = []  # for each bucket, the parameters that are still waiting for their gradient
        self._pending: list[tuple[list[Tensor], Tensor, Any]] = []
        self._is_active = False
        if process_group.world_size() > 1:
            for number, bucket in enumerate(self._buckets):
                for p in bucket:
                    p.register_post_accumulate_grad_hook(lambda p, number=number: self._note(p, number))  # type: ignore[no-untyped-call]

    @contextmanager
    def reduce(self) -> Iterator[None]:
        """Sum or average the gradients over the processes while the backward pass inside the `with` block runs.

        After the block, `p.grad` of each parameter p holds the result. If a step has several backward passes, put only
        the last one inside the block: `p.grad` has then accumulated the gradients of all passes, and is reduced once.
        """
        if process_group.world_size() == 1:
            yield
            return
        self._missing = [{id(p) for p in bucket if p.requires_grad} for bucket in self._buckets]
        self._pending, self._is_active = [], True
        try:
            yield
        finally:
            self._is_active = False
        # Start the remaining buckets. The first of them has a parameter that got no gradient in this backward pass, and
        # the others were waiting for it.
        while len(self._pending) < len(self._buckets):
            self._start()
        for gradients, flat, handle in self._pending:
            if handle is None:  # no parameter of the bucket has a gradient
                continue
            handle.wait()
            if self.mean:
                flat /= process_group.world_size()
            parts = torch.split(flat, [gradient.numel() for gradient in gradients])
            summed = [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]
            torch._foreach_copy_(gradients, summed)
        self._pending = []

    def _note(self, parameter: Tensor, number: int) -> None:
        """Note that the gradient of a parameter is complete. Start to sum all buckets that are now ready, in order."""
        if self._is_active:
            self._missing[number].discard(id(parameter))
            # the order must be the same on all processes, so a bucket waits for those before it
            while len(self._pending) < len(self._buckets) and not self._missing[len(self._pending)]:
                self._start()

    def _start(self) -> None:
        """Start to sum the gradients of the next bucket over the processes."""
        gradients = [p.grad for p in self._buckets[len(self._pending)] if p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) if gradients else torch.empty(0)
        self._pending.append((gradients, flat, dist.all_reduce(flat, async_op=True) if gradients else None))
