"""Vision models from the transformers library, such as ViT, DINOv2, SigLIP and the image encoder of CLIP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.models.backbones.base import IMAGENET_MEAN, IMAGENET_STD, Backbone
from nearfar.models.backbones.model_directory import read_json
from nearfar.models.token_pooling import TOKEN_POOLINGS, create_token_pooling
from nearfar.validation import check_choice

# Model types whose forward pass is the composition of their layers.
SEQUENTIAL = ("vit", "dinov2", "dinov2_with_registers", "clip_vision_model", "siglip_vision_model")
POOLER, HEAD = "pooler", "head"  # SigLIP calls its pooler "head"


class VisionTransformer(Backbone):
    """Vision model from the transformers library.

    By default, the output [B, features] is the `pooler_output` of the model. If the model has no pooler, or the
    checkpoint has no weights for it, the output is the first token: a randomly initialized pooler would degrade the
    features. With the pooling "cls", "mean" or "attention", the output is the tokens after the last layer norm (see
    `nearfar.models.token_pooling`). "mean" and "attention" use only the patches.

    Args:
        model: The model. If it has a `vision_model`, as CLIP has, only this part is used.
        settings: Content of its preprocessor_config.json.
        has_pooler: Whether the model has a pooler with loaded weights.
    """

    has_map_output = False

    def __init__(self, model: Any, settings: dict[str, Any], *, has_pooler: bool) -> None:
        model = getattr(model, "vision_model", model)
        config = model.config
        super().__init__(
            features=_width(config),
            channels=getattr(config, "num_channels", 3),
            input_size=_side(settings.get("crop_size") or getattr(config, "image_size", None) or settings.get("size")),
            mean=tuple(settings.get("image_mean") or IMAGENET_MEAN),
            std=tuple(settings.get("image_std") or IMAGENET_STD),
        )
        self.model: nn.Module = model
        self.has_pooler, self.outputs_tokens = has_pooler, False
        self.definition = {
            "kind": "images",
            "config": config.to_dict(),
            "preprocessing": settings,
            "has_pooler": has_pooler,
        }
        self._is_sequential = getattr(config, "model_type", "") in SEQUENTIAL
        embeddings = getattr(model, "embeddings", None)
        self._has_cls = any(hasattr(embeddings, name) for name in ("cls_token", "class_embedding"))
        self._prefix = int(self._has_cls) + int(getattr(config, "num_register_tokens", 0) or 0)

    @classmethod
    def from_directory(cls, model: Any, folder: Path, *, has_pooler: bool) -> VisionTransformer:
        """Create the backbone from a loaded model and the preprocessing settings in its directory."""
        known = ("image_mean", "image_std", "crop_size", "size")
        settings = read_json(folder, "preprocessor_config.json")
        return cls(model, {key: settings[key] for key in known if key in settings}, has_pooler=has_pooler)

    @classmethod
    def from_definition(cls, model: Any, definition: dict[str, Any]) -> VisionTransformer:
        """Create the backbone from a new model and the settings in `Backbone.definition`."""
        return cls(model, definition["preprocessing"], has_pooler=definition["has_pooler"])

    def make_pooling(self, name: str | None = None, *, gem_p: float = 3.0) -> nn.Module:
        """Return the token pooling "cls", "mean" or "attention".

        For None or "pooler", return an identity, because the output of the model is already pooled.
        """
        if name is None or (name == POOLER and self.has_pooler):
            self.outputs_tokens = False
            return nn.Identity()
        check_choice("pooling", name, TOKEN_POOLINGS if not self.has_pooler else (*TOKEN_POOLINGS, POOLER))
        if not self._is_sequential:
            raise ValueError(f"pooling={name!r} needs a model of type {', '.join(SEQUENTIAL)}: remove pooling")
        if name == "cls" and not self._has_cls:
            raise ValueError("pooling='cls' needs a model with a CLS token: use pooling='mean' or 'attention'")
        self.outputs_tokens = True
        for unused in (POOLER, HEAD):  # remove the pooler, so that no unused weights are saved
            if isinstance(getattr(self.model, unused, None), nn.Module):
                self.model.register_module(unused, None)
        return create_token_pooling(name, self.features)

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the layers of the blocks "embeddings", "layers.0", "layers.1", ...

        The list is empty if the type of the model is not in `SEQUENTIAL`.
        """
        if not self._is_sequential:
            return []
        model: Any = self.model
        named: list[tuple[str, nn.Module]] = [("embeddings", model.embeddings)]
        if hasattr(model, "pre_layrnorm"):
            named.append(("embeddings", model.pre_layrnorm))
        encoder = getattr(model, "encoder", model)
        layers = encoder.layer if hasattr(encoder, "layer") else encoder.layers
        named += [(f"layers.{i}", _Layer(layer)) for i, layer in enumerate(layers)]
        last = named[-1][0]
        norm = model.post_layernorm if hasattr(model, "post_layernorm") else model.layernorm
        if self.outputs_tokens:
            return [*named, (last, norm), (last, _WeightedTokens(self._prefix))]
        pooler = getattr(model, POOLER, None) or getattr(model, HEAD, None)
        return [*named, (last, norm), (last, pooler if pooler is not None and self.has_pooler else _FirstToken())]

    def forward(self, x: Tensor) -> Tensor:
        if self._is_sequential:
            return super().forward(x)
        out = self.model(pixel_values=x)
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        if pooled is None or not self.has_pooler:
            pooled = out.last_hidden_state[:, 0]
        return pooled.flatten(1)


class _Layer(nn.Module):
    """A transformer layer without an attention mask."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x, None)
        return y


class _FirstToken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class _WeightedTokens(nn.Module):
    """Append a weight to each token: 0 for the first `prefix` tokens, which are not patches, and 1 for the others."""

    def __init__(self, prefix: int) -> None:
        super().__init__()
        self.prefix = prefix

    def forward(self, x: Tensor) -> Tensor:
        weights = (torch.arange(x.shape[1], device=x.device) >= self.prefix).to(x.dtype)
        return torch.cat([x, weights[None, :, None].expand(len(x), -1, 1)], dim=2)


def _width(config: Any) -> int:
    # convolutional models have a list of widths, one per stage; the last one is that of the output
    return int(config.hidden_size if hasattr(config, "hidden_size") else config.hidden_sizes[-1])


def _side(size: Any) -> int:
    if isinstance(size, dict):
        size = size.get("shortest_edge") or size.get("height")
    if isinstance(size, list | tuple):
        size = size[0]
    return int(size or 224)
