"""Create an embedder from the names of its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from nearfar.models.backbones import create
from nearfar.models.embedder import Embedder
from nearfar.models.heads import create_head
from nearfar.models.own_network import describe_origin
from nearfar.models.pooling import Grid
from nearfar.models.train_from import TrainFrom
from nearfar.validation import check_count


def create_embedder(
    backbone: str | nn.Module = "small",
    *,
    dim: int | None = None,
    pooling: str | None = None,
    gem_p: float = 3.0,
    head: str = "linear",
    hidden: int | None = None,
    layer_norm: bool = False,
    init: str | None = None,
    center: bool = False,
    mirror: bool = False,
    channels: int | None = None,
    input_size: int | None = None,
    pretrained: bool | str | Path = False,
    freeze_bn: bool = False,
    train_from: TrainFrom | None = None,
    channels_last: bool = True,
    download: bool = False,
    definition: dict[str, Any] | None = None,
    inputs: str | None = None,
    truncate: int | None = None,
) -> Embedder:
    """Create an embedder from the names of its parts. The arguments are stored in `Embedder.config`.

    Args:
        backbone, channels, pretrained, download, definition, inputs: See `nearfar.models.create`.
        dim: Number of dimensions. The default is 128, or the number of features for texts and for head="identity".
        pooling: "average", "max", "average+max", "gem", "gem-trainable" or "grid" (see `nearfar.models.pooling`). The
            default is "grid" for the small networks and "average" for the others. Transformers have "cls", "mean",
            "attention" (see `nearfar.models.token_pooling`) and "pooler". Other networks that output vectors have none.
        gem_p: Exponent p of "gem", or its initial value for "gem-trainable".
        head: "linear", "mlp" or "identity". The hidden layer of "mlp" has the width `hidden`, by default twice `dim`.
        layer_norm: If True, a layer norm without affine parameters is applied to the pooled features.
        init: Initialization of the linear layer of the head: "kaiming" (the default for images and texts), "random" or
            "pca" (the default for vectors). For "pca", call `init_head_from_pca(embedder, training_inputs)` next.
        center: If True, the embeddings are centered after training (see `nearfar.models.center.Center`).
        mirror: If True, the embedding of an image in evaluation mode is the mean of those of the image and its mirror
            image.
        input_size: Side of the input images in pixels, or maximum number of tokens. The default is the backbone's.
        channels_last: If True, training and search give the network images in the channels-last layout.
        truncate: Number of dimensions that are kept, see `Embedder.truncate`.
        freeze_bn, train_from: What to freeze (see `Embedder.freeze_batchnorm` and `Embedder.freeze_below`).
    """
    config = {name: value for name, value in locals().items() if name not in ("config", "truncate")}
    name = backbone if isinstance(backbone, str) else describe_origin(backbone)
    config |= {"backbone": name, "pretrained": pretrained if isinstance(pretrained, bool) else str(pretrained)}
    options = {key: config[key] for key in ("channels", "input_size", "download", "definition", "inputs")}
    trunk = create(backbone, pretrained=pretrained, **options)
    config |= {"download": False, "definition": trunk.definition}
    pool = trunk.make_pooling(pooling, gem_p=gem_p)
    features = trunk.features * (pool.cells if isinstance(pool, Grid) else 1)
    default = features if head == "identity" or trunk.has_text_input else 128
    size = default if dim is None else check_count("dim", dim)
    head_init = init or ("kaiming" if trunk.has_image_input or trunk.has_text_input else "pca")
    top = create_head(head, features, size, hidden=hidden, layer_norm=layer_norm, init=head_init)
    embedder = Embedder(trunk, pool, top, dim=size, center=center, mirror=mirror, config=config)
    embedder.channels_last = channels_last
    if freeze_bn:
        embedder.freeze_batchnorm()
    if train_from is not None:
        embedder.freeze_below(train_from)
    return embedder if truncate is None else embedder.truncate(truncate)
