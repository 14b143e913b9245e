"""The base class of all losses, and their registry."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearfar.distributed import gather_embeddings
from nearfar.host_reads import checked_values
from nearfar.registry import Registry
from nearfar.validation import Labels, as_label_tensor, as_labels, as_signed_ids


class Loss(nn.Module):
    """Base class of all losses.

    A loss is called as `loss(embeddings, labels)` and returns a scalar. A subclass stores each argument of its
    constructor in an attribute of the same name. If that name is needed for something else, such as a parameter, the
    attribute has the suffix `_option`.

    A loss whose behavior depends on the epoch overrides `start_epoch`. If it works as intended only after a number of
    epochs, it also overrides `warmup_epochs`.

    `moved_options` maps the names of options in earlier versions to their current places, for example
    "uncertainty.gamma" for the key "gamma" of the option `uncertainty`. If an old name is passed to `create`, the error
    message shows the current place.

    If `validate` is True, the values of all input tensors are checked, for example for NaN. By default, only tensors on
    the CPU are checked, because reading values from a GPU makes the host wait for it. Under torch.compile, values are
    never checked.
    """

    moved_options: ClassVar[Mapping[str, str]] = {}
    validate: bool = False

    def __call__(self, *args: Any, across_processes: bool = False, **options: Any) -> Any:
        """Compute the loss; see `forward`.

        Args:
            args: The embeddings and labels of this process, as in `forward`.
            across_processes: If True, compute the loss over the samples of all processes; see `nearfar.distributed`.
                The only other argument that can be passed then is `weights`.
            options: The other arguments of `forward`.
        """
        if across_processes:
            args, options = _gather_inputs(*args, **options)
        with checked_values() if self.validate else nullcontext():
            return super().__call__(*args, **options)

    @property
    def options(self) -> dict[str, Any]:
        """Return the options with which `nearfar.losses.create` creates the same loss."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        missing = object()
        values = {name: getattr(self, f"{name}_option", getattr(self, name, missing)) for name in names}
        return {name: value for name, value in values.items() if value is not missing}

    @property
    def warmup_epochs(self) -> int:
        """Return the number of epochs before the loss works as intended. The default is 0."""
        return 0

    def start_epoch(self, n: int) -> None:
        """Prepare for epoch `n`, counted from 0. The trainer calls this before each epoch; most losses ignore it."""

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


def _gather_inputs(
    embeddings: Tensor, labels: Tensor, *, weights: Tensor | None = None, **others: Any
) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} cannot be combined with across_processes=True: remove one of them")
    if weights is None:
        return gather_embeddings(embeddings, labels), {}
    embeddings, labels, weights = gather_embeddings(embeddings, labels, weights=weights)
    return (embeddings, labels), {"weights": weights}


LOSSES: Registry[type[Loss]] = Registry("loss", package="nearfar.losses")
register = LOSSES.register


def label_tensors(
    labels: Labels, ref_labels: Labels | None = None, device: torch.device | None = None
) -> tuple[Tensor, Tensor | None]:
    """Convert the labels of the anchors, and of the samples they are compared with (`ref_labels`), to tensors.

    Class names are replaced by their index in the sorted list of all names, so equal names get equal numbers in both
    tensors.

    >>> label_tensors(["dog", "cat"], ["cat", "owl"])
    (tensor([1, 0]), tensor([0, 2]))
    """
    if isinstance(labels, Tensor) and (ref_labels is None or isinstance(ref_labels, Tensor)):
        return as_signed_ids(labels), None if ref_labels is None else as_signed_ids(ref_labels)
    if ref_labels is None:
        return as_label_tensor(labels).to(device), None
    kinds = [as_labels(part, name=name) for part, name in ((labels, "labels"), (ref_labels, "ref_labels"))]
    if all(part.dtype.kind in "US" for part in kinds):
        names = sorted({*kinds[0].tolist(), *kinds[1].tolist()})
        first, second = (as_label_tensor(part, class_names=names) for part in kinds)
    elif any(part.dtype.kind in "US" for part in kinds):
        raise ValueError("labels and ref_labels must both be class names or both class ids, got one of each kind")
    else:
        first, second = as_label_tensor(labels), as_label_tensor(ref_labels, name="ref_labels")
    return first.to(device), second.to(device)


def full_precision(x: Tensor) -> Tensor:
    """Return x unchanged if it is float64, else as float32, so that no loss is computed in half precision."""
    return x if x.dtype == torch.float64 else x.float()
