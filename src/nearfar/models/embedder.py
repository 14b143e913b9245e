"""Embedder = backbone + pooling + head: what is trained, searched with and exported."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearfar.models.backbones.base import Backbone
from nearfar.validation import check_positive


class Embedder(nn.Module):
    """Pictures [B, channels, H, W] (or vectors [B, channels]) to raw embeddings [B, dim]; losses and search normalize.

    Made by `nearfar.models.create_embedder`. `dim`, `channels`, `input_size`, `mean`, `std` say what goes in and comes
    out: the input is (picture / 255 - mean) / std, RGB where it has three channels. `config` makes the same one again.
    """

    def __init__(
        self, backbone: Backbone, pooling: nn.Module, head: nn.Module, *, dim: int, config: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.backbone, self.pooling, self.head = backbone, pooling, head
        self.dim, self.config = dim, dict(config or {})
        self.channels, self.input_size = backbone.channels, backbone.input_size
        self.mean, self.std = backbone.mean, backbone.std
        self.bn_frozen = False

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.pool(x))
        return y

    def pool(self, x: Tensor) -> Tensor:
        """What the head gets, [B, features]."""
        self._check(x)
        y: Tensor = self.pooling(self.backbone(x))
        return y

    def _check(self, x: Tensor) -> None:
        pictures = self.backbone.has_image_input
        wanted = f"[B, {self.channels}, H, W]" if pictures else f"[B, {self.channels}]"
        if x.ndim != (4 if pictures else 2) or x.shape[1] != self.channels:
            raise ValueError(f"the input must have shape {wanted}, got {list(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"the input must be floating point, (picture / 255 - mean) / std, got {x.dtype}")

    def freeze_batchnorm(self, *, affine: bool = False) -> None:
        """Keep every batch norm in eval mode, also during `train()`: its statistics no longer move.

        Scale and shift go on learning, as in Proxy-Anchor's and MLRC's released code, unless `affine` freezes them too.
        """
        self.bn_frozen = True
        for norm in self._batchnorms():
            if affine and norm.affine:
                norm.weight.requires_grad_(False)
                norm.bias.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Embedder:
        super().train(mode)
        if self.bn_frozen:
            for norm in self._batchnorms():
                norm.eval()
        return self

    def _batchnorms(self) -> list[_BatchNorm]:
        return [part for part in self.modules() if isinstance(part, _BatchNorm)]

    def trunk_parameters(self) -> list[nn.Parameter]:
        """The backbone's: what warm-up epochs leave alone."""
        return list(self.backbone.parameters())

    def head_parameters(self) -> list[nn.Parameter]:
        """The head's and the pooling's: what no pretrained weights bring."""
        return [*self.pooling.parameters(), *self.head.parameters()]

    def parameter_groups(
        self, lr: float, head_lr_multiplier: float = 1.0, weight_decay: float = 0.0, *, decay_vectors: bool = True
    ) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer, named "trunk" and "head", the head at `head_lr_multiplier` times `lr`.

        10 is PROFS's. Frozen parameters and empty groups are left out. With `decay_vectors=False` biases, norms and
        GeM's p are in groups of their own, "trunk vectors" and "head vectors", without weight decay.
        """
        check_positive("lr", lr)
        parts = (
            ("trunk", self.trunk_parameters(), lr),
            ("head", self.head_parameters(), lr * check_positive("head_lr_multiplier", head_lr_multiplier)),
        )
        groups: list[dict[str, Any]] = []
        for name, parameters, rate in parts:
            live = [p for p in parameters if p.requires_grad]
            flat = [] if decay_vectors else [p for p in live if p.ndim <= 1]
            rest = [p for p in live if decay_vectors or p.ndim > 1]
            groups.append({"name": name, "params": rest, "lr": rate, "weight_decay": weight_decay})
            groups.append({"name": f"{name} vectors", "params": flat, "lr": rate, "weight_decay": 0.0})
        return [group for group in groups if group["params"]]
