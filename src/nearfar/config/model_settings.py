"""The settings of the network, and of the cache for the activations of its frozen blocks."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.config.setting import option


@dataclass(frozen=True)
class Model:
    """The network (see `nearfar.models.create_embedder`)."""

    backbone: str = option(
        "small",
        "Name of the backbone (`nearfar.models.names()`), all-minilm-l6-v2, transformers:NAME, timm:NAME, or "
        "MODULE:FUNCTION for your own network.",
    )
    pretrained: bool | str = option(
        False,
        "true: public weights; a path: the weights in that file; false: random, or the weights of your own network.",
    )
    download: bool = option(
        False, "Download the model of transformers:NAME if it is not on this machine.", neutral=True
    )
    pooling: str | None = option(
        None,
        "Pooling of feature maps: average, max, average+max, gem, gem-trainable or grid; of the tokens of a "
        "transformer: cls, mean, attention or pooler. null: the default of the backbone.",
    )
    max_tokens: int | None = option(
        None, "Number of tokens after which a text is cut; null is the limit of the network, at most 256.", above=1
    )
    token_dropout: float = option(
        0.0,
        "Probability with which a token of a training text is hidden from the network and from the pooling; only for "
        "texts.",
        least=0,
        below=1,
    )
    gem_p: float = option(3.0, "Initial exponent of GeM pooling.")
    head: str = option("linear", "Layers from the pooled features to the embedding: linear, mlp or identity.")
    hidden: int | None = option(None, "Width of the hidden layer of an mlp head; null is twice model.dim.")
    dim: int | None = option(
        512,
        "Dimension of the embedding; null: 128, or the number of features for texts and for head=identity.",
        above=0,
    )
    layer_norm: bool = option(False, "Apply layer normalization to the pooled features.")
    init: str | None = option(
        None, "Initial weights of the head: pca, kaiming or random; null: pca for feature vectors, otherwise kaiming."
    )
    proxies: str | None = option(
        None,
        "Initial proxies; null: class-means if the head starts as pca, otherwise random.",
        choices=("class-means", "random"),
    )
    center: bool = option(
        False, "After training, subtract the mean of the normalized embeddings of the training set from embeddings."
    )
    mirror: bool = option(
        False,
        "Embed each image and its mirror image, and average the two embeddings, except in training steps. This takes "
        "twice the time. Do not set it if mirror images have another meaning, as letters have.",
    )
    freeze_bn: bool = option(False, "Keep the statistics of batch normalization fixed.")
    freeze_backbone: bool = option(False, "Train only the head.")
    train_from: int | float | str | None = option(
        None,
        "First trained block; everything below it is frozen. Give the name of a block, its index counted from 0, the "
        "fraction of blocks to train (0.5 is the upper half), or head; null trains everything.",
    )
    lora: int | None = option(
        None,
        "Rank of LoRA: in the trained blocks, only low-rank updates of the weights of linear, attention and 1x1 "
        "convolution layers are trained; null trains all weights.",
        above=0,
    )
    lora_alpha: float | None = option(None, "LoRA multiplies its updates by lora_alpha / lora; null: by 1.", above=0)
    channels_last: bool = option(
        True,
        "Store images and the weights of convolutions in the channels-last layout, which is faster. Set false if your "
        "own network needs the usual layout.",
        neutral=True,
    )
    interpolate: tuple[float, ...] = option(
        (),
        "WiSE-FT: average the weights before and after training. Each value, as in [0.25, 0.5], is the fraction of the "
        "trained weights in the average. Of these averages and the trained network, the one with the best validation "
        "score is kept. Without validation classes, give one value.",
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
