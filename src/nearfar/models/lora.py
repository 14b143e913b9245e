"""LoRA: train low-rank updates of the weight matrices of a backbone (Hu et al., ICLR 2022, arXiv 2106.09685).

A weight matrix W [m, n] becomes W + (alpha / r) B A with B [m, r] and A [r, n] (section 4.1). Only A and B are trained.
A is random and B is 0, so the network does not change at the start. The updated layers are the linear layers, the
projections of attention, and 1x1 convolutions, which are linear layers at each position.

We do not use the library peft, because it depends on transformers and accelerate, and wraps the layers. Our code uses
`torch.nn.utils.parametrize`. It is short, does not replace layers, and works for any layer with a weight matrix. The
merged weights have the names of the plain network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nearfar.validation import check_count, check_positive


class LowRankUpdate(nn.Module):
    """Add (alpha / rank) B A to a weight matrix [m, n], or to a 1x1 kernel [m, n, 1, 1].

    Args:
        weight: The weight. It determines the shape, dtype and device of A and B.
        rank: Number of columns of B and rows of A.
        alpha: Scale of the update.
    """

    def __init__(self, weight: Tensor, *, rank: int, alpha: float) -> None:
        super().__init__()
        self.scale = alpha / rank
        self.A = nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        self.B = nn.Parameter(weight.new_zeros(weight.shape[0], rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))  # as in the released code; in the paper, A is Gaussian

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.scale * (self.B @ self.A)).view(weight.shape)


def add_lora(backbone: nn.Module, rank: int, alpha: float | None = None, *, frozen: Iterable[nn.Module] = ()) -> None:
    """Freeze a backbone and add trainable low-rank updates to its weight matrices, in place.

    The updates start at 0. `merge_lora` returns the weights of the plain network with the updates added.

    Args:
        backbone: The backbone.
        rank: The rank r of the updates.
        alpha: The updates are multiplied by alpha / r. By default, alpha is r.
        frozen: Modules of the backbone that get no updates, such as `Embedder.frozen_modules()`.

    Raises:
        ValueError: If the trained part of the backbone has no layer of a supported kind.
    """
    check_count("lora", rank)
    scale = rank if alpha is None else check_positive("lora_alpha", alpha)
    skipped = {id(module) for part in frozen for module in part.modules()}
    layers = [(layer, name) for layer, name in _matrices(backbone) if id(layer) not in skipped]
    if not layers:
        raise ValueError(
            f"lora={rank} needs linear, attention or 1x1 convolution layers in the trained part of the backbone, and "
            "there are none: set lora to null"
        )
    backbone.requires_grad_(False)
    for layer, name in layers:
        parametrize.register_parametrization(
            layer, name, LowRankUpdate(getattr(layer, name), rank=rank, alpha=float(scale))
        )


def lora_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters A and B of all low-rank updates in a module."""
    return [p for part in module.modules() if isinstance(part, LowRankUpdate) for p in part.parameters()]


@torch.no_grad()
def merge_lora(module: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a module with all low-rank updates added to the weights, under the plain names.

    >>> layer = nn.Linear(3, 2)
    >>> _ = parametrize.register_parametrization(layer, "weight", LowRankUpdate(layer.weight, rank=1, alpha=1.0))
    >>> sorted(merge_lora(layer))
    ['bias', 'weight']
    """
    merged = {name: value for name, value in module.state_dict().items() if "parametrizations." not in name}
    for path, part in module.named_modules():
        if parametrize.is_parametrized(part):
            prefix = f"{path}." if path else ""
            names = part.parametrizations
            merged |= {f"{prefix}{name}": getattr(part, name).detach() for name in names}
    return merged


def _matrices(backbone: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the layers with a weight matrix and the name of their weight."""
    for module in backbone.modules():
        if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            yield module, "in_proj_weight"
        elif isinstance(module, nn.Linear) or (
            isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1
        ):
            yield module, "weight"
