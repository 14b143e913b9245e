"""The projection term of PROFS: parameters are held near where they stood when the cycle began."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

GROUP = 2**22


def groups(rows: Iterable[tuple[Tensor, ...]]) -> Iterator[list[tuple[Tensor, ...]]]:
    """Rows in groups whose first tensors have at most GROUP elements in all, or groups of one row.

    The difference of a group is still in the cache when it is added: on a CPU a quarter of the time of all at once. And
    a GPU needs few calls.
    """
    group: list[tuple[Tensor, ...]] = []
    elements = 0
    for row in rows:
        if group and elements + row[0].numel() > GROUP:
            yield group
            group, elements = [], 0
        group.append(row)
        elements += row[0].numel()
    if group:
        yield group


class Projection:
    """(weight / 2) ||theta - theta_k||^2 as a gradient term (PROFS, Can et al., arXiv 1907.07585, Eq. 4.6).

    `snapshot()` at the start of each cycle keeps theta_k; `add_to_gradients()` after each backward pass (and after
    unscaling, before clipping and the optimizer, whose weight decay and moments see the sum) adds
    weight (theta - theta_k) to the gradients. Parameters without a gradient are left alone. Where theta = theta_k, as
    on the first step of a cycle, gradients keep every bit, so with one step a cycle any weight is weight 0.

    Pass the parameters of the network, not those of the loss. The paper's weight is 1e-3; Eq. 4.7 and Algorithm 1 print
    1/2 where Eq. 4.6 has weight / 2, which is what its text describes. The parameters' values when this is made are the
    first snapshot.
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
        """theta_k <- theta."""
        torch._foreach_copy_(self._start, self.parameters)

    @torch.no_grad()
    def add_to_gradients(self) -> None:
        """gradient <- gradient + weight (theta - theta_k), in place."""
        if self.weight == 0:
            return
        trained = [(p, s, p.grad) for p, s in zip(self.parameters, self._start, strict=True) if p.grad is not None]
        for group in groups(trained):
            parameters, start, gradients = (list(part) for part in zip(*group, strict=True))
            # this way round, what has not moved adds -0, which leaves a gradient of -0 as it is; +0 would not
            torch._foreach_add_(gradients, torch._foreach_sub(start, parameters), alpha=-self.weight)

    @torch.no_grad()
    def value(self) -> Tensor:
        """(weight / 2) ||theta - theta_k||^2, of all parameters."""
        lengths = torch._foreach_norm(torch._foreach_sub(self.parameters, self._start))
        return self.weight / 2 * torch.stack(lengths).square().sum()

    def state_dict(self) -> dict[str, Any]:
        """theta_k."""
        return {"start": [s.clone() for s in self._start]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the theta_k of a state."""
        start = state["start"]
        if [s.shape for s in start] != [s.shape for s in self._start]:
            raise ValueError(
                f"the state's {len(start)} tensors do not fit these {len(self._start)} parameters: "
                "make the same network first"
            )
        torch._foreach_copy_(self._start, list(start))
