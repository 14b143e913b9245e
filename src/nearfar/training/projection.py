"""The projection term of PROFS, which keeps parameters near their values at the start of a cycle.

A cycle is a number of training steps in which PROFS keeps the same sample as the representative of each class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

GROUP_SIZE = 2**22


def group_by_size(items: Iterable[tuple[Tensor, ...]]) -> Iterator[list[tuple[Tensor, ...]]]:
    """Group tuples of tensors so that the first tensors of a group have at most GROUP_SIZE elements in total.

    A tuple with a larger first tensor forms a separate group. The intermediate results of a group fit into the CPU
    cache, so all groups together take a quarter of the time of one large group. There are still few groups, so a GPU
    needs few kernel launches.
    """
    group: list[tuple[Tensor, ...]] = []
    elements = 0
    for item in items:
        if group and elements + item[0].numel() > GROUP_SIZE:
            yield group
            group, elements = [], 0
        group.append(item)
        elements += item[0].numel()
    if group:
        yield group


class Projection:
    """Adds the gradient of (weight / 2) ||theta - theta_k||^2 (PROFS, Can et al., arXiv 1907.07585, Eq. 4.6).

    Here theta are the parameters, and theta_k are their values at the start of cycle k. Call `snapshot()` at the start
    of each cycle to store theta_k. Call `add_to_gradients()` after each backward pass to add weight (theta - theta_k)
    to the gradients. With a gradient scaler, call it after unscaling. Call it before clipping and before the optimizer
    step, so that the moments of the optimizer include the term. Parameters without a gradient are ignored. If theta =
    theta_k, as in the first step of a cycle, the gradients stay bit-identical. With one step per cycle, the weight
    therefore has no effect.

    Pass the parameters of the network, not those of the loss. The weight in the paper is 1e-3. Eq. 4.7 and Algorithm 1
    have 1/2 where Eq. 4.6 has weight / 2; we follow Eq. 4.6, which agrees with the text of the paper. The constructor
    takes the first snapshot.
    """

    def __init__(self, parameters: Iterable[Tensor], *, weight: float = 1e-3) -> None:
        if not 0 <= weight < float("inf"):
            raise ValueError(f"weight must be a finite number, at least 0, got {weight}")
        self.parameters, self.weight = list(parameters), weight
        if not self.parameters:
            raise ValueError("parameters is empty: pass embedder.parameters()")
        self._start = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def snapshot(self) -> None:
        """Store the parameters: theta_k <- theta."""
        torch._foreach_copy_(self._start, self.parameters)

    @torch.no_grad()
    def add_to_gradients(self) -> None:
        """Add the term to the gradients, in place: gradient <- gradient + weight (theta - theta_k)."""
        if self.weight == 0:
            return
        trained = [(p, s, p.grad) for p, s in zip(self.parameters, self._start, strict=True) if p.grad is not None]
        for group in group_by_size(trained):
            parameters, start, gradients = (list(part) for part in zip(*group, strict=True))
            # Subtract in this order, so that an unchanged parameter adds -0. Adding +0 would turn a gradient of -0 into
            # +0, which is not bit-identical.
            torch._foreach_add_(gradients, torch._foreach_sub(start, parameters), alpha=-self.weight)

    @torch.no_grad()
    def value(self) -> Tensor:
        """Compute (weight / 2) ||theta - theta_k||^2 over all parameters."""
        lengths = torch._foreach_norm(torch._foreach_sub(self.parameters, self._start))
        return self.weight / 2 * torch.stack(lengths).square().sum()

    def state_dict(self) -> dict[str, Any]:
        """Return theta_k."""
        return {"start": [s.clone() for s in self._start]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load theta_k."""
        start = state["start"]
        if [s.shape for s in start] != [s.shape for s in self._start]:
            raise ValueError(
                f"the {len(start)} tensors of the state do not match the {len(self._start)} parameters: "
                "create the same network first"
            )
        torch._foreach_copy_(self._start, list(start))
