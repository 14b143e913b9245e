"""Vision models of the libraries transformers and timm as backbones. Nothing is downloaded."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nearfar.errors import NearfarError, install_hint
from nearfar.models.backbones.base import IMAGENET_MEAN, IMAGENET_STD, Backbone
from nearfar.models.weights import WeightFile, drop_prefixes, load_tensors, read_tensors

SEQUENTIAL = ("vit",)  # model types of transformers whose forward pass is the composition of their layers


def create_from_library(name: str, *, channels: int | None, pretrained: bool | str | Path) -> Backbone:
    """Create the backbone "transformers:NAME" or "timm:NAME" (see `nearfar.models.create`)."""
    library, _, model = name.partition(":")
    backbone: Backbone
    if library == "timm":
        if pretrained is True:
            raise ValueError("nearfar downloads no weights of timm: set pretrained to the path of a weight file")
        backbone = Timm(model, weights=None if pretrained is False else pretrained)
    elif isinstance(pretrained, bool):
        backbone = Transformer(model, pretrained=pretrained)
    else:
        raise ValueError(
            f"pretrained must be True or False for {name!r}, got {pretrained!r}: "
            "to load a directory, use the name 'transformers:DIRECTORY'"
        )
    if channels not in (None, backbone.channels):
        raise ValueError(f"backbone {name!r} has {backbone.channels} channels, got channels={channels}")
    return backbone


class Transformer(Backbone):
    """Vision model of the transformers library, loaded from a directory, or by name from the local cache.

    The output [B, features] is the `pooler_output` of the model, or of its vision part for models like CLIP. If the
    model has no pooler, or the checkpoint has no weights for it, the output is the first token: a randomly initialized
    pooler would degrade the features.
    """

    has_map_output = False

    def __init__(self, name: str, *, pretrained: bool = True) -> None:
        library = _import("transformers", install_hint("hub"))
        model, missing = _load(library, name, pretrained)
        model = getattr(model, "vision_model", model)
        config = getattr(model.config, "vision_config", model.config)
        settings = _preprocessing(name)
        super().__init__(
            features=_width(config),
            channels=getattr(config, "num_channels", 3),
            input_size=_side(settings.get("crop_size") or getattr(config, "image_size", None) or settings.get("size")),
            mean=tuple(settings.get("image_mean") or IMAGENET_MEAN),
            std=tuple(settings.get("image_std") or IMAGENET_STD),
        )
        self.model: nn.Module = model
        self.first_token = any("pooler" in part for part in missing)
        # a list, so that the tensors are not registered under a second name
        self._layers = self._split() if getattr(config, "model_type", "") in SEQUENTIAL else []

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the layers "embeddings", "layers.0", "layers.1", ... of a ViT, or an empty list for other models."""
        return self._layers

    def _split(self) -> list[tuple[str, nn.Module]]:
        model: Any = self.model
        # in version 4 of transformers, the layers are in `model.encoder`
        layers = list(model.layers if hasattr(model, "layers") else model.encoder.layer)
        pooler = None if self.first_token else getattr(model, "pooler", None)
        named: list[tuple[str, nn.Module]] = [("embeddings", model.embeddings)]
        named += [(f"layers.{i}", _Layer(layer)) for i, layer in enumerate(layers)]
        return [*named, (named[-1][0], model.layernorm), (named[-1][0], _FirstToken() if pooler is None else pooler)]

    def forward(self, x: Tensor) -> Tensor:
        out = self.model(pixel_values=x)
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        if pooled is None or self.first_token:
            pooled = out.last_hidden_state[:, 0]
        return pooled.flatten(1)


class _Layer(nn.Module):
    """A transformer layer that returns a tensor. In version 4 of transformers, layers return tuples."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        hidden: Tensor = y[0] if isinstance(y, tuple) else y
        return hidden


class _FirstToken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class Timm(Backbone):
    """Model of the timm library, with weights from a file. The output [B, features] is pooled by timm."""

    has_map_output = False

    def __init__(self, name: str, *, weights: str | Path | None = None) -> None:
        # timm imports torchvision, whose PyPI wheels are CUDA builds, and importing them fails with a CPU torch.
        timm = _import(
            "timm", "timm needs a torchvision that matches this torch: see pytorch.org, then pip install timm"
        )
        try:
            model = timm.create_model(name, pretrained=False, num_classes=0)
        except RuntimeError as error:
            similar = ", ".join(timm.list_models(f"*{name.split('_')[0]}*")[:5])
            raise ValueError(f"timm has no model {name!r}{f'; similar names: {similar}' if similar else ''}") from error
        settings = model.pretrained_cfg
        channels, side, _ = settings["input_size"]
        mean, std = tuple(settings["mean"]), tuple(settings["std"])
        super().__init__(features=model.num_features, channels=channels, input_size=side, mean=mean, std=std)
        if weights is not None:
            classifier = settings.get("classifier") or "classifier"
            drop = (classifier,) if isinstance(classifier, str) else tuple(classifier)
            mapping = WeightFile((), "", drop_prefixes(*(f"{part}." for part in drop)))
            load_tensors(model, read_tensors(weights), mapping, origin=str(weights))
        self.model: nn.Module = model

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.model(x)
        return y


def _import(library: str, solution: str) -> Any:
    try:
        return importlib.import_module(library)
    except (ImportError, RuntimeError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise NearfarError(f"{library} cannot be imported ({reason}): {solution}") from error


def _load(library: Any, name: str, pretrained: bool) -> tuple[Any, list[str]]:
    try:
        if not pretrained:
            config = library.AutoConfig.from_pretrained(name, local_files_only=True)
            return library.AutoModel.from_config(config), []
        model, report = library.AutoModel.from_pretrained(name, local_files_only=True, output_loading_info=True)
    except (OSError, ValueError) as error:
        raise NearfarError(
            f"no vision model {name!r} on this machine, and nearfar downloads nothing: download it once with "
            f"`hf download {name}`, or pass the directory of a model saved by save_pretrained "
            f"({str(error).splitlines()[0]})"
        ) from error
    missing = [str(part) for part in report["missing_keys"]]
    required = [part for part in missing if "pooler" not in part]
    if required:
        raise NearfarError(f"the weights of {name!r} lack {len(required)} tensors of the model, e.g. {required[0]}")
    return model, missing


def _preprocessing(name: str) -> dict[str, Any]:
    path: Any = Path(name) / "preprocessor_config.json"
    if not path.is_file() and not Path(name).is_dir():
        path = importlib.import_module("huggingface_hub").try_to_load_from_cache(name, "preprocessor_config.json")
    if not isinstance(path, str | Path) or not Path(path).is_file():
        return {}
    settings: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return settings


def _width(config: Any) -> int:
    # convolutional models have a list of widths, one per stage; the last one is that of the output
    return int(config.hidden_size if hasattr(config, "hidden_size") else config.hidden_sizes[-1])


def _side(size: Any) -> int:
    if isinstance(size, dict):
        size = size.get("shortest_edge") or size.get("height")
    if isinstance(size, list | tuple):
        size = size[0]
    return int(size or 224)
