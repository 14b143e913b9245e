"""The base class of all losses, and their registry."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearfar.registry import Registry
from nearfar.validation import Labels, as_label_tensor, as_labels


class Loss(nn.Module):
    """Base class of all losses.

    A loss is called as `loss(embeddings, labels)` and returns a scalar. Each option of the constructor is stored in an
    attribute of the same name, or of the name with the suffix `_option` where the attribute holds something else.

    A loss whose behavior changes over the epochs overrides `start_epoch`, and `warmup_epochs` if it needs some epochs
    before it works as intended.

    `moved_options` maps options of earlier versions to their new place, for the error message of `create`.
    """

    moved_options: ClassVar[Mapping[str, str]] = {}

    @property
    def options(self) -> dict[str, Any]:
        """Return the options that create an equal loss with `nearfar.losses.create`."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        missing = object()
        values = {name: getattr(self, f"{name}_option", getattr(self, name, missing)) for name in names}
        return {name: value for name, value in values.items() if value is not missing}

    @property
    def warmup_epochs(self) -> int:
        """Return the number of epochs after which the loss works as intended; 0 unless a subclass overrides it."""
        return 0

    def start_epoch(self, n: int) -> None:
        """Announce the start of epoch `n`, counted from 0. Trainers call this; most losses ignore it."""

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


LOSSES: Registry[type[Loss]] = Registry("loss", package="nearfar.losses")
register = LOSSES.register


def label_tensors(
    labels: Labels, ref_labels: Labels | None = None, device: torch.device | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the labels of anchors and references as tensors, with one numbering for both if they are names.

    >>> label_tensors(["dog", "cat"], ["cat", "owl"])
    (tensor([1, 0]), tensor([0, 2]))
    """
    if isinstance(labels, Tensor) and (ref_labels is None or isinstance(ref_labels, Tensor)):
        return labels, ref_labels
    if ref_labels is None:
        return as_label_tensor(labels).to(device), None
    kinds = [as_labels(part, name=name) for part, name in ((labels, "labels"), (ref_labels, "ref_labels"))]
    if all(part.dtype.kind in "US" for part in kinds):
        names = sorted({*kinds[0].tolist(), *kinds[1].tolist()})
        first, second = (as_label_tensor(part, class_names=names) for part in kinds)
    elif any(part.dtype.kind in "US" for part in kinds):
        raise ValueError("labels and ref_labels must both be class names or both class ids, got one of each")
    else:
        first, second = as_label_tensor(labels), as_label_tensor(ref_labels, name="ref_labels")
    return first.to(device), second.to(device)


def full_precision(x: Tensor) -> Tensor:
    """Return float64 unchanged and any other dtype as float32: losses are not computed in half precision."""
    return x if x.dtype == torch.float64 else x.float()
