"""The embedder, which is trained, searched with and exported: a backbone, a pooling and a head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearfar.models.backbones import create
from nearfar.models.backbones.base import Backbone
from nearfar.models.heads import create_head
from nearfar.models.pooling import Grid, create_pooling
from nearfar.validation import check_count, check_positive


class Embedder(nn.Module):
    """Map images [B, channels, H, W] or vectors [B, channels] to embeddings [B, dim], which are not normalized.

    `create_embedder` creates one. Images are passed as (image / 255 - mean) / std, in RGB order if there are three
    channels.

    Attributes:
        dim: Number of dimensions of the embeddings.
        channels: Number of input channels.
        input_size: Side of the input images in pixels.
        mean, std: One value for each channel.
        config: The arguments of `create_embedder` that create the same embedder.
    """

    def __init__(
        self, backbone: Backbone, pooling: nn.Module, head: nn.Module, *, dim: int, config: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.backbone, self.pooling, self.head = backbone, pooling, head
        self.dim, self.config = dim, dict(config or {})
        self.channels, self.input_size = backbone.channels, backbone.input_size
        self.mean, self.std = backbone.mean, backbone.std
        self.has_frozen_batchnorm = False

    def forward(self, x: Tensor) -> Tensor:
        """Compute the embeddings [B, dim]."""
        y: Tensor = self.head(self.pool(x))
        return y

    def pool(self, x: Tensor) -> Tensor:
        """Compute the pooled features [B, features], the input of the head."""
        self._check_input(x)
        y: Tensor = self.pooling(self.backbone(x))
        return y

    def _check_input(self, x: Tensor) -> None:
        is_image = self.backbone.has_image_input
        shape = f"[B, {self.channels}, H, W]" if is_image else f"[B, {self.channels}]"
        if x.ndim != (4 if is_image else 2) or x.shape[1] != self.channels:
            raise ValueError(f"the input must have shape {shape}, got {list(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"the input must be floating point, (image / 255 - mean) / std, got {x.dtype}")

    def freeze_batchnorm(self, *, affine: bool = False) -> None:
        """Keep all batch norms in eval mode, also after `train()`, so that their statistics do not change.

        Args:
            affine: Freeze scale and shift too. By default they are trained, as in the released code of Proxy-Anchor
                and MLRC.
        """
        self.has_frozen_batchnorm = True
        for norm in self._batchnorms():
            if affine and norm.affine:
                norm.weight.requires_grad_(False)
                norm.bias.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Embedder:
        """Set the training mode. Frozen batch norms stay in eval mode."""
        super().train(mode)
        if self.has_frozen_batchnorm:
            for norm in self._batchnorms():
                norm.eval()
        return self

    def _batchnorms(self) -> list[_BatchNorm]:
        return [module for module in self.modules() if isinstance(module, _BatchNorm)]

    def trunk_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the backbone, which are frozen in warm-up epochs."""
        return list(self.backbone.parameters())

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the pooling and the head, which no pretrained weights provide."""
        return [*self.pooling.parameters(), *self.head.parameters()]

    def parameter_groups(
        self, lr: float, head_lr_multiplier: float = 1.0, weight_decay: float = 0.0, *, decay_vectors: bool = True
    ) -> list[dict[str, Any]]:
        """Return the parameter groups "trunk" and "head" for an optimizer, without frozen parameters and empty groups.

        Args:
            lr: Learning rate of the backbone.
            head_lr_multiplier: The learning rate of the head is this multiple of `lr`. PROFS uses 10.
            weight_decay: Weight decay of all groups.
            decay_vectors: If False, biases, norms and the p of GeM are in the groups "trunk vectors" and
                "head vectors", which have no weight decay.
        """
        check_positive("lr", lr)
        parts = (
            ("trunk", self.trunk_parameters(), lr),
            ("head", self.head_parameters(), lr * check_positive("head_lr_multiplier", head_lr_multiplier)),
        )
        groups: list[dict[str, Any]] = []
        for name, parameters, rate in parts:
            trainable = [p for p in parameters if p.requires_grad]
            vectors = [] if decay_vectors else [p for p in trainable if p.ndim <= 1]
            others = [p for p in trainable if decay_vectors or p.ndim > 1]
            groups.append({"name": name, "params": others, "lr": rate, "weight_decay": weight_decay})
            groups.append({"name": f"{name} vectors", "params": vectors, "lr": rate, "weight_decay": 0.0})
        return [group for group in groups if group["params"]]


def create_embedder(
    backbone: str = "small",
    *,
    dim: int | None = None,
    pooling: str | None = None,
    gem_p: float = 3.0,
    head: str = "linear",
    hidden: int | None = None,
    layer_norm: bool = False,
    init: str | None = None,
    channels: int | None = None,
    input_size: int | None = None,
    pretrained: bool | str | Path = False,
    freeze_bn: bool = False,
) -> Embedder:
    """Create an embedder from the names of its parts. It keeps the arguments as `config`.

    Args:
        backbone, channels, pretrained: As for `nearfar.models.create`.
        dim: Number of dimensions of the embedding: 128 by default, the number of features with head="identity".
        pooling: average, max, average+max, gem, gem-trainable or grid (keeps positions). The default is grid for the
            small networks and average for the others. None for backbones that output vectors.
        gem_p: The p of GeM, and its initial value if it is trained.
        head: linear, mlp or identity.
        hidden: Width of the hidden layer of head="mlp".
        layer_norm: Normalize the pooled features before the head.
        init: Initialization of the linear layer of the head: kaiming (the default), random, or pca (the default for
            features), which `init_head_from_pca(embedder, training_features)` completes.
        input_size: Side of the input images, if it is not the default of the backbone.
        freeze_bn: Keep batch norms in eval mode, see `Embedder.freeze_batchnorm`.
    """
    config = {name: value for name, value in locals().items() if name != "config"}
    config["pretrained"] = pretrained if isinstance(pretrained, bool) else str(pretrained)
    trunk = create(backbone, channels=channels, pretrained=pretrained)
    if input_size is not None:
        trunk.input_size = check_count("input_size", input_size)
    if not trunk.has_map_output and pooling is not None:
        raise ValueError(f"backbone {backbone!r} outputs vectors, which are not pooled: remove pooling={pooling!r}")
    pool = create_pooling(pooling or trunk.pooling, gem_p=gem_p) if trunk.has_map_output else nn.Identity()
    features = trunk.features * (pool.cells if isinstance(pool, Grid) else 1)
    size = check_count("dim", dim) if dim is not None else (features if head == "identity" else 128)
    head_init = init or ("kaiming" if trunk.has_image_input else "pca")
    top = create_head(head, features, size, hidden=hidden, layer_norm=layer_norm, init=head_init)
    embedder = Embedder(trunk, pool, top, dim=size, config=config)
    if freeze_bn:
        embedder.freeze_batchnorm()
    return embedder
