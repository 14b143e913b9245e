"""Keep the output of the frozen layers of a text network, so that it is computed only once for each text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

LIMIT = 2 * 1024**3  # bytes, enough for 127,000 texts of 11 tokens with 384 float32 features


class FrozenStates:
    """The output of the last frozen layer for each text, found by the tokens of the text.

    Frozen layers have no dropout and their weights do not change, so the output for a text is the same in every step.
    Copies of the network, such as a moving average of its weights, share the states, because `copy.deepcopy` returns
    the same object.

    Args:
        limit: Maximum size in bytes. When it is reached, the states of further texts are computed in every step.
    """

    def __init__(self, *, limit: int = LIMIT) -> None:
        self.limit, self.size = limit, 0
        self._states: dict[bytes, Tensor] = {}

    def __deepcopy__(self, memo: object) -> FrozenStates:
        return self

    def __len__(self) -> int:
        return len(self._states)

    def clear(self) -> None:
        """Forget all states, because the weights of the frozen layers were changed."""
        self._states, self.size = {}, 0

    def find(self, x: Tensor, padding: int, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the states [B, L, features] of texts, with 0 for padding.

        Args:
            x: Tokens [B, L], with padding on the right.
            padding: The value of `x` that marks padding.
            compute: Function that computes the states [M, L, features] of the texts [M, L] that are missing.
        """
        lengths = (x != padding).sum(1).tolist()
        keys = [row[:length].numpy().tobytes() for row, length in zip(x, lengths, strict=True)]
        found = {key: self._states[key] for key in keys if key in self._states}
        missing = {key: i for i, key in enumerate(keys) if key not in found}
        if missing:
            rows = list(missing.values())
            for i, states in zip(rows, compute(x[rows]), strict=True):
                found[keys[i]] = self._keep(keys[i], states[: lengths[i]])
        return pad_sequence([found[key] for key in keys], batch_first=True)

    def _keep(self, key: bytes, states: Tensor) -> Tensor:
        size = states.numel() * states.element_size()
        if self.size + size > self.limit:
            return states
        self.size += size
        self._states[key] = kept = states.clone()  # a slice would keep the states of the whole batch
        return kept


class _ForwardStoppedError(Exception):
    """Stops a forward pass after the last frozen layer."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


@torch.no_grad()
def compute_until(layer: nn.Module, forward: Callable[[], object]) -> Any:
    """Call `forward` until the output of `layer` is computed, and return this output."""

    def stop(_module: nn.Module, _inputs: object, output: Any) -> None:
        raise _ForwardStoppedError(output)

    handle = layer.register_forward_hook(stop)
    try:
        forward()
    except _ForwardStoppedError as reached:
        return reached.output
    finally:
        handle.remove()
    raise RuntimeError(f"the network does not call its layer {type(layer).__name__}")


@contextmanager
def replaced_outputs(layers: Sequence[nn.Module], states: Tensor) -> Iterator[None]:
    """During a `with` block, let each of the layers return `states` instead of computing its output."""
    for layer in layers:
        layer.forward = lambda *_args, **_kwargs: states
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # uncovers the method of the class
