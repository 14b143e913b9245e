"""Models: embedder = backbone + pooling + head. One file a backbone; `create_embedder` makes all three by their names.

>>> import torch
>>> create_embedder("small", dim=64, pooling="gem", channels=1)(torch.zeros(2, 1, 28, 28)).shape
torch.Size([2, 64])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from nearfar.models.backbones.base import Backbone
from nearfar.models.backbones.bn_inception import BN_INCEPTION_WEIGHTS, BNInception
from nearfar.models.backbones.efficientnet_lite import EFFICIENTNET_LITE0_WEIGHTS, EfficientNetLite0
from nearfar.models.backbones.features import Features
from nearfar.models.backbones.googlenet import GOOGLENET_BN_WEIGHTS, GOOGLENET_WEIGHTS, GoogLeNet
from nearfar.models.backbones.hub import Timm, Transformer
from nearfar.models.backbones.resnet import RESNET18_WEIGHTS, RESNET50_WEIGHTS, resnet18, resnet50
from nearfar.models.backbones.small import SmallConv, SmallResNet
from nearfar.models.embedder import Embedder
from nearfar.models.heads import create_head
from nearfar.models.init import compute_half_whitened_pca, init_head_from_pca, init_proxies_from_class_means
from nearfar.models.pooling import Grid, create_pooling
from nearfar.models.weights import WeightFile, find_weights, load_tensors, read_tensors, select_backbone
from nearfar.validation import check_count, nearest


@dataclass(frozen=True)
class _Known:
    make: Callable[..., Backbone]
    weights: WeightFile | None = None


_BACKBONES = {
    "bn-inception": _Known(BNInception, BN_INCEPTION_WEIGHTS),
    "efficientnet-lite0": _Known(EfficientNetLite0, EFFICIENTNET_LITE0_WEIGHTS),
    "features": _Known(Features),
    "googlenet": _Known(GoogLeNet, GOOGLENET_WEIGHTS),
    "googlenet-bn": _Known(lambda *, channels=3: GoogLeNet(channels=channels, batch_norm=True), GOOGLENET_BN_WEIGHTS),
    "resnet18": _Known(resnet18, RESNET18_WEIGHTS),
    "resnet50": _Known(resnet50, RESNET50_WEIGHTS),
    "small": _Known(SmallResNet),
    "small-conv": _Known(SmallConv),
}
# a name with one of these in front is looked up in that library
_LIBRARIES = ("transformers:", "timm:")


def names() -> list[str]:
    """The backbones that `create` knows; "transformers:NAME" and "timm:NAME" come on top."""
    return sorted(_BACKBONES)


def create(name: str, *, channels: int | None = None, pretrained: bool | str | Path = False) -> Backbone:
    """Make a backbone by its name; an unknown name is a ValueError that suggests the nearest.

    Args:
        name: one of `names()`, or "transformers:NAME_OR_DIRECTORY", "timm:NAME".
        channels: of the pictures (3 by default, 1 for "small" and "small-conv"), or the length of the vectors of
            "features".
        pretrained: False: He et al.'s random start. True: the public weights, from their package or torch.hub's
            folder; nothing is downloaded. A path: that file, .safetensors or a state dict, under the names of the
            public file or ours; of the model of a run (model.safetensors) the backbone.

    >>> create("resnet81")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown backbone 'resnet81'; did you mean 'resnet18'? Known: bn-inception, ...
    """
    if name.startswith(_LIBRARIES):
        return _from_library(name, channels, pretrained)
    if name not in _BACKBONES:
        known_names = ", ".join([*names(), *(f"{library}NAME" for library in _LIBRARIES)])
        raise ValueError(f"unknown backbone {name!r}{nearest(name, _BACKBONES)} Known: {known_names}")
    known = _BACKBONES[name]
    if channels is None and name == "features":
        raise ValueError("backbone='features' needs channels=, the length of the vectors")
    backbone = known.make() if channels is None else known.make(channels=check_count("channels", channels))
    if pretrained is not False and pretrained is not None:
        if pretrained is True and known.weights is None:
            raise ValueError(
                f"there are no public weights for backbone {name!r}: pretrained=False, or the path of a file"
            )
        path = find_weights(known.weights) if pretrained is True and known.weights else Path(str(pretrained))
        load_tensors(backbone, select_backbone(read_tensors(path)), known.weights, origin=path.name)
    return backbone


def _from_library(name: str, channels: int | None, pretrained: bool | str | Path) -> Backbone:
    library, _, inner = name.partition(":")
    backbone: Backbone
    if library == "timm":
        if pretrained is True:
            raise ValueError(
                "timm's weights would be downloaded, which nearfar never does: pass the file as pretrained="
            )
        backbone = Timm(inner, weights=None if pretrained is False else pretrained)
    elif isinstance(pretrained, bool):
        backbone = Transformer(inner, pretrained=pretrained)
    else:
        raise ValueError(
            f"pretrained must be True or False for {name!r}, whose weights are with its name: {pretrained!r}"
        )
    if channels not in (None, backbone.channels):
        raise ValueError(f"backbone {name!r} has {backbone.channels} channels, got channels={channels}")
    return backbone


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
    """Make an embedder from names and numbers, which it keeps as `config`.

    Args:
        backbone, channels, pretrained: as for `create`.
        dim: of the embedding; 128 by default, with head="identity" the backbone's number of features.
        pooling: average, max, average+max, gem, gem-trainable, grid (keeps what is where, the default of the small
            nets; the others' is average); None where the backbone gives vectors.
        gem_p: GeM's p, the start of a trainable one.
        head: linear, mlp (`hidden` wide), identity. `layer_norm` normalizes the pooled features before it.
        init: of the head's linear layer: kaiming (the default) or random, or pca (the default for features), which
            `init_head_from_pca(embedder, training_features)` completes.
        input_size: the side that pictures get, where it is not the backbone's own.
        freeze_bn: keep batch norms in eval mode, see `Embedder.freeze_batchnorm`.
    """
    config = {name: value for name, value in locals().items() if name != "config"}
    config["pretrained"] = pretrained if isinstance(pretrained, bool) else str(pretrained)
    trunk = create(backbone, channels=channels, pretrained=pretrained)
    if input_size is not None:
        trunk.input_size = check_count("input_size", input_size)
    if not trunk.has_map_output and pooling is not None:
        raise ValueError(
            f"backbone {backbone!r} gives vectors, there is nothing to pool: leave pooling={pooling!r} out"
        )
    pool = create_pooling(pooling or trunk.pooling, gem_p=gem_p) if trunk.has_map_output else nn.Identity()
    features = trunk.features * (pool.cells if isinstance(pool, Grid) else 1)
    size = check_count("dim", dim) if dim is not None else (features if head == "identity" else 128)
    start = init or ("kaiming" if trunk.has_image_input else "pca")
    top = create_head(head, features, size, hidden=hidden, layer_norm=layer_norm, init=start)
    embedder = Embedder(trunk, pool, top, dim=size, config=config)
    if freeze_bn:
        embedder.freeze_batchnorm()
    return embedder


__all__ = [
    "Backbone",
    "Embedder",
    "compute_half_whitened_pca",
    "create",
    "create_embedder",
    "find_weights",
    "init_head_from_pca",
    "init_proxies_from_class_means",
    "load_tensors",
    "names",
    "read_tensors",
]
