"""The settings of the network: its parts, which of them are trained, and the cache of those that are not."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.config.setting import option


@dataclass(frozen=True)
class Model:
    """The network, as for `nearfar.models.create_embedder`."""

    backbone: str = option("small", "Name of the backbone (`nearfar.models.names()`), or transformers:DIRECTORY.")
    pretrained: bool | str = option(False, "true: public weights; a path: the weights in that file; false: random.")
    download: bool = option(False, "Download a transformers:NAME that is not on this machine.", neutral=True)
    pooling: str | None = option(
        None,
        "Pooling of feature maps: average, max, average+max, gem, gem-trainable or grid; of the tokens of a "
        "transformer: cls, mean, attention or pooler. null: the default of the backbone.",
    )
    max_tokens: int | None = option(
        None, "Number of tokens after which a text is cut; null is the limit of the network, at most 256.", above=1
    )
    gem_p: float = option(3.0, "Initial exponent of GeM pooling.")
    head: str = option("linear", "Layers from the pooled features to the embedding: linear, mlp or identity.")
    hidden: int | None = option(None, "Width of the hidden layer of an mlp head; null is twice model.dim.")
    dim: int | None = option(
        512, "Dimension of the embedding; null: 128 (texts, head=identity: number of features).", above=0
    )
    layer_norm: bool = option(False, "Apply layer normalization to the pooled features.")
    init: str | None = option(
        None, "Initial head weights: pca, kaiming, random; null is pca for vectors, else kaiming."
    )
    proxies: str | None = option(
        None, "Initial proxies; null is class-means with init=pca, else random.", choices=("class-means", "random")
    )
    freeze_bn: bool = option(False, "Keep the statistics of batch normalization fixed.")
    freeze_backbone: bool = option(False, "Train only the head.")
    train_from: int | float | str | None = option(
        None,
        "First trained block; everything below it is frozen. The name of a block, its index from 0, the fraction of "
        "blocks to train (0.5 is the upper half), or head; null trains everything.",
    )
    lora: int | None = option(
        None,
        "Rank of LoRA: in the trained blocks, only low-rank updates of the weights of linear, attention and 1x1 "
        "convolution layers are trained; null trains all weights.",
        above=0,
    )
    lora_alpha: float | None = option(None, "LoRA multiplies its updates by lora_alpha / lora; null is 1.", above=0)
    interpolate: tuple[float, ...] = option(
        (),
        "WiSE-FT: shares of the trained weights in an average with the weights before training, such as [0.25, 0.5]. "
        "The best on validation classes is kept, or the trained weights. Without validation classes, give one share.",
    )


@dataclass(frozen=True)
class Cache:
    """Cached activations of the blocks below model.train_from."""

    activations: str | None = option(None, "Folder of the cache; null computes the frozen blocks in every step.")
    dtype: str = option("float16", "Precision of the cached activations.", choices=("float16", "float32"))
    views: int = option(4, "Number of augmented views per training image; epoch e uses view e % views.", above=0)
    limit_gb: float | None = option(
        20.0, "Maximum cache size of a run in GB; if needed, fewer views are cached. null: no limit.", above=0
    )
