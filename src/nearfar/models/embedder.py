"""The embedder: the model that is trained and used for search, made of a backbone, a pooling and a head."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearfar.models.backbones.base import Backbone
from nearfar.models.center import Center
from nearfar.models.lora import lora_parameters
from nearfar.models.train_from import HEAD, TrainFrom, find_first_trained
from nearfar.validation import check_count, check_positive


class Embedder(nn.Module):
    """Model that maps B images [B, channels, H, W], vectors [B, channels] or texts [B, L] to embeddings [B, dim].

    Use `create_embedder` to create one. The embeddings are not normalized. Input images must be given as
    (image / 255 - mean) / std, in RGB order if there are three channels, and texts as tokens, padded with -1. After
    `freeze_below`, the embedder is the composition of a frozen part, `lower`, and a trained part, `upper`.

    Attributes:
        dim: Number of dimensions of the embeddings.
        center: Centers the embeddings in evaluation mode. None does not.
        mirror: Whether the embedding of an image in evaluation mode is the mean of those of the image and its mirror
            image.
        channels: Number of input channels.
        input_size: Side of the input images in pixels, or the maximum number of tokens of a text.
        channels_last: Whether input images should have the channels-last layout.
        mean, std: Mean and standard deviation of each input channel. They are not used if the network has an attribute
            `transform`.
        config: Arguments with which `create_embedder` creates the same architecture.
        truncated: Number of dimensions that are kept, see `truncate`. None keeps all.
        first_trained: Name of the first trained block, or "head". None if nothing is frozen.
    """

    def __init__(
        self,
        backbone: Backbone,
        pooling: nn.Module,
        head: nn.Module,
        *,
        dim: int,
        center: bool = False,
        mirror: bool = False,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.pooling, self.head = backbone, pooling, head
        if mirror and not backbone.has_image_input:
            raise ValueError("mirror=True needs a network for images")
        self.center = Center(dim) if center else None
        self.mirror = mirror
        self.dim, self.config = dim, dict(config or {})
        self.channels, self.input_size = backbone.channels, backbone.input_size
        self.mean, self.std = backbone.mean, backbone.std
        self.transform: Callable[..., Tensor] | None = getattr(backbone, "transform", None)
        # whether the input is images that the caller normalizes with mean and std
        self.takes_pixels = backbone.has_image_input and self.transform is None
        self.channels_last = True
        self.has_frozen_batchnorm = False
        self.truncated: int | None = None
        self.first_trained: str | None = None
        # number of frozen layers if the backbone is frozen in part; 0 if nothing or the whole backbone is frozen
        self._frozen_layers = 0

    def forward(self, x: Tensor) -> Tensor:
        """Compute the embeddings [B, dim]."""
        y = self.embed_features(self.pool(x))
        if self.mirror and not self.training:
            y = (y + self.embed_features(self.pool(x.flip(-1)))) / 2
        return y

    def embed_features(self, features: Tensor) -> Tensor:
        """Compute the embeddings [B, dim] from pooled features."""
        y: Tensor = self.head(features)
        if self.center is not None:
            y = self.center(y)
        return y if self.truncated is None else y[:, : self.truncated]

    def truncate(self, size: int) -> Embedder:
        """Return an embedder with the same weights that keeps only the first `size` dimensions of the embeddings.

        This loses little if the embedder was trained with a Matryoshka loss, and much otherwise.

        Raises:
            ValueError: If the embeddings have fewer dimensions.
        """
        if check_count("truncate", size) > self.dim:
            raise ValueError(f"truncate must be at most {self.dim}, the dimension of the embeddings, got {size}")
        shorter = copy.copy(self)
        shorter.truncated = shorter.dim = size
        shorter.config = {**self.config, "truncate": size}
        return shorter

    def pool(self, x: Tensor) -> Tensor:
        """Compute the pooled features [B, features], which are the input of the head."""
        if self.is_split and not self.backbone.has_text_input:
            return self.pool_activations(self.lower(x))
        self._check_input(x)
        y: Tensor = self.pooling(self.backbone(x))
        return y

    @property
    def is_split(self) -> bool:
        """Whether a lower part is frozen."""
        return self.first_trained is not None

    def lower(self, x: Tensor) -> Tensor:
        """Compute the activations [B, ...] of the frozen part, without an autograd graph."""
        self._check_split()
        if self.backbone.has_text_input:
            raise ValueError("a text network cannot be computed in two parts: call the embedder itself")
        self._check_input(x)
        for module in self.frozen_modules():
            x = module(x)
        return x

    def upper(self, activations: Tensor) -> Tensor:
        """Compute the embeddings [B, dim] from the activations of the frozen part."""
        return self.embed_features(self.pool_activations(activations))

    def pool_activations(self, activations: Tensor) -> Tensor:
        """Compute the pooled features [B, features] from the activations of the frozen part."""
        self._check_split()
        y = activations
        if self._frozen_layers:
            for _, layer in self.backbone.named_layers()[self._frozen_layers :]:
                y = layer(y)
        if self._frozen_layers or not self._is_pooling_frozen():
            y = self.pooling(y)
        return y

    def frozen_modules(self) -> list[nn.Module]:
        """Return the frozen modules in order.

        If the whole backbone is frozen and the pooling has no parameters, the pooling is the last frozen module.
        """
        if not self.is_split:
            return []
        if self._frozen_layers:
            return [layer for _, layer in self.backbone.named_layers()[: self._frozen_layers]]
        return [self.backbone, self.pooling] if self._is_pooling_frozen() else [self.backbone]

    def frozen_state(self) -> dict[str, Tensor]:
        """Return the parameters and buffers of the frozen part by their names in the embedder."""
        frozen = {id(x) for module in self.frozen_modules() for x in module.state_dict(keep_vars=True).values()}
        return {name: x.detach() for name, x in self.state_dict(keep_vars=True).items() if id(x) in frozen}

    def _is_pooling_frozen(self) -> bool:
        return next(self.pooling.parameters(), None) is None

    def _check_split(self) -> None:
        if not self.is_split:
            raise ValueError("the embedder has no frozen part: create it with train_from, or call freeze_below")

    def _check_input(self, x: Tensor) -> None:
        if self.backbone.has_text_input:
            if x.ndim != 2 or x.is_floating_point():
                raise ValueError(f"the input must be int64 tokens of shape [B, L], got {x.dtype}, {list(x.shape)}")
            return
        is_image = self.backbone.has_image_input
        shape = f"[B, {self.channels}, H, W]" if is_image else f"[B, {self.channels}]"
        if x.ndim != (4 if is_image else 2) or x.shape[1] != self.channels:
            raise ValueError(f"the input must have shape {shape}, got {list(x.shape)}")
        if not x.is_floating_point():
            form = ", as (image / 255 - mean) / std" if is_image else ""
            raise ValueError(f"the input must be floating point{form}, got {x.dtype}")

    def freeze_batchnorm(self, *, affine: bool = False) -> None:
        """Keep all batch norms in eval mode, even after `train()`, so that their statistics do not change.

        Args:
            affine: If True, scale and shift are frozen as well. By default, they are trained, as in the released code
                of Proxy-Anchor and of "A Metric Learning Reality Check" (Musgrave et al., ECCV 2020).
        """
        self.has_frozen_batchnorm = True
        for norm in self._batchnorms():
            if affine and norm.affine:
                norm.weight.requires_grad_(False)
                norm.bias.requires_grad_(False)
        self.train(self.training)

    def freeze_below(self, train_from: TrainFrom) -> None:
        """Freeze everything below a block. The frozen part gets no gradients and stays in eval mode after `train()`.

        Args:
            train_from: The first trained block (see `find_first_trained`). "head" freezes the whole backbone.

        Raises:
            ValueError: If there is no such block, or if nothing would be frozen.
        """
        layers = [name for name, _ in self.backbone.named_layers()]
        names = list(dict.fromkeys(layers))
        first = find_first_trained(names, train_from)
        self._frozen_layers = layers.index(names[first]) if first < len(names) else 0
        self.first_trained = [*names, HEAD][first]
        for module in self.frozen_modules():
            module.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Embedder:
        """Set the training mode. Frozen batch norms and the part frozen by `freeze_below` stay in eval mode."""
        super().train(mode)
        for module in self.frozen_modules():
            module.eval()
        if self.has_frozen_batchnorm:
            for norm in self._batchnorms():
                norm.eval()
        return self

    def _batchnorms(self) -> list[_BatchNorm]:
        return [module for module in self.modules() if isinstance(module, _BatchNorm)]

    def trunk_parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters of the backbone. The trainer can freeze them for some epochs.

        These are the parameters above the frozen part or, after `add_lora`, the low-rank updates.
        """
        frozen = {id(p) for module in self.frozen_modules() for p in module.parameters()}
        return lora_parameters(self.backbone) or [p for p in self.backbone.parameters() if id(p) not in frozen]

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the pooling and the head, which pretrained weights do not include."""
        return [*self.pooling.parameters(), *self.head.parameters()]

    def _trunk_parts(self, lr: float, layer_decay: float) -> list[tuple[str, list[nn.Parameter], float]]:
        """Return the name, trained parameters and learning rate of each parameter group of the backbone.

        If `layer_decay` is 1, the whole backbone is one group. Otherwise each block is a group.
        """
        if layer_decay == 1:
            return [("trunk", self.trunk_parameters(), lr)]
        if not 0 < layer_decay < 1:
            raise ValueError(f"layer_decay must be above 0 and at most 1, got {layer_decay}")
        layers = self.backbone.named_layers()
        if not layers:
            raise ValueError(
                f"layer_decay={layer_decay} needs a backbone that is a sequence of blocks, but this backbone is not: "
                "use layer_decay=1"
            )
        names = list(dict.fromkeys(name for name, _ in layers))
        trained = {id(p) for p in self.trunk_parameters()}
        parts = []
        for i, block in enumerate(names):
            parameters = [p for name, layer in layers if name == block for p in layer.parameters()]
            rate = lr * layer_decay ** (len(names) - 1 - i)
            parts.append((f"trunk {block}", [p for p in parameters if id(p) in trained], rate))
        return parts

    def parameter_groups(
        self,
        lr: float,
        head_lr_multiplier: float = 1.0,
        weight_decay: float = 0.0,
        *,
        decay_vectors: bool = True,
        layer_decay: float = 1.0,
    ) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer: "trunk" and "head". Frozen parameters and empty groups are omitted.

        Args:
            lr: Learning rate of the backbone.
            head_lr_multiplier: The learning rate of the head is this multiple of `lr`. PROFS uses 10.
            weight_decay: Weight decay of "trunk" and "head".
            decay_vectors: If True, weight decay also applies to parameters with at most one dimension (biases,
                parameters of norms, and the exponent of GeM). Otherwise they are in the separate groups "trunk vectors"
                and "head vectors" without weight decay.
            layer_decay: Learning rate of each block, as a multiple of that of the next block toward the output. The
                last block has `lr`. With a value below 1, each block has its own groups, such as "trunk blocks.8".

        Raises:
            ValueError: If a value is out of range, or if `layer_decay` is not 1 and the backbone has no blocks.
        """
        check_positive("lr", lr)
        parts = (
            *self._trunk_parts(lr, layer_decay),
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
