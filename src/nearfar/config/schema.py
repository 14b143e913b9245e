"""The configuration of a run: everything that decides what is trained, in one tree of frozen tables.

`nearfar.config.merge` puts a tree together; it is written to the run's directory whole, so that it makes the same
run again whatever defaults later become.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml


@dataclass(frozen=True)
class Noise:
    """Wrong labels on purpose (BSPML section 4.3): share of the training samples, kind, seed (the run's by default)."""

    rate: float = 0.0
    kind: str = "symmetric"
    seed: int | None = None


@dataclass(frozen=True)
class Data:
    """What to train on.

    source: as for `nearfar data`. split: auto, class-order (first half of the classes), all (nothing is left for a
    test). validation: share of the training classes that is held out to choose the best epoch (0: none, the last epoch
    counts; a `val` split that the data brings is used as it is). folds, fold: cross-validation as MLRC's, of so many
    contiguous parts of the sorted training classes the one, from 0, that is held out in place of `validation`.
    per_class: at most so many training samples of a class, the same ones in every run (null: all); for trials and for
    studies of little data. on_error: raise, or skip pictures that cannot be read. cache: a folder for decoded pictures
    of `cache_size` pixels (null: read files each time). fingerprint: of the data, filled in by the run; another one
    later is an error.
    """

    source: str = "sketches"
    split: str = "auto"
    root: str | None = None
    labels: str | None = None
    allow_partial: bool = False
    validation: float = 0.0
    validation_seed: int = 0
    folds: int | None = None
    fold: int | None = None
    per_class: int | None = None
    on_error: str = "raise"
    workers: int = 0
    cache: str | None = None
    cache_size: int | None = None
    noise: Noise = field(default_factory=Noise)
    fingerprint: str | None = None


@dataclass(frozen=True)
class Batches:
    """Who meets whom: shuffled (size), pk (classes x per_class, or size / per_class classes), profs (as pk, and more).

    Where classes is set, size is not looked at; a size that is set goes before the classes of a recipe.
    """

    name: str = "shuffled"
    size: int | None = None
    classes: int | None = None
    per_class: int | None = None
    epoch: str = "samples"
    rho: float | None = None
    steps: int | None = None
    mining: str | None = None
    seeds_per_batch: int | None = None
    greedy: bool | None = None
    fill: bool | None = None
    patience: int | None = None


# What each sampler reads of them.
_CLASSES = ("size", "classes", "per_class")
READ_BY: dict[str, tuple[str, ...]] = {
    "shuffled": ("size",),
    "pk": (*_CLASSES, "epoch"),
    "profs": (*_CLASSES, "rho", "steps", "mining", "seeds_per_batch", "greedy", "fill", "patience"),
}


@dataclass(frozen=True)
class Projection:
    """PROFS's (weight / 2) |theta - theta_k|^2; 0 is none."""

    weight: float = 0.0


@dataclass(frozen=True)
class Model:
    """The embedder, as for `nearfar.models.create_embedder`; null takes the backbone's own value.

    freeze_backbone: train the head only.
    """

    backbone: str = "small"
    pretrained: bool | str = False
    pooling: str | None = None
    gem_p: float = 3.0
    head: str = "linear"
    hidden: int | None = None
    dim: int | None = 512
    layer_norm: bool = False
    init: str | None = None
    freeze_bn: bool = False
    freeze_backbone: bool = False


@dataclass(frozen=True)
class Images:
    """Pictures: crop = their side for the net (null: the backbone's); resize before the center crop of a test picture;
    min_scale = smallest part of the area in a training crop; jitter = brightness, contrast, saturation.
    augment: false trains on the pictures as they are tested."""

    crop: int | None = None
    resize: int | None = None
    min_scale: float = 0.16
    flip: float = 0.5
    jitter: tuple[float, ...] = ()
    augment: bool = True


@dataclass(frozen=True)
class Optimizer:
    """adam, adamw, sgd, rmsprop. clip_value and clip_norm: of gradients, after the projection term.

    decay_vectors: whether biases, norms and GeM's p decay. proxy_weight_decay: null as the network's.
    """

    name: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1e-2
    decay_vectors: bool = False
    head_lr_multiplier: float = 1.0
    proxy_lr_multiplier: float = 10.0
    proxy_weight_decay: float | None = 0.0
    momentum: float = 0.9
    betas: tuple[float, ...] = (0.9, 0.999)
    clip_value: float | None = None
    clip_norm: float | None = None


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the run: constant, cosine (to 0), or step (times factor every so many epochs).

    warm_up: share of the steps in which it rises from 0. warm_up_epochs: epochs with the backbone frozen.
    """

    name: str = "cosine"
    every: int | None = None
    factor: float = 0.5
    warm_up: float = 0.1
    warm_up_epochs: int = 0


@dataclass(frozen=True)
class Select:
    """Which epoch's weights are kept.

    by: auto (the best on validation classes where there are any, else the last), validation, last, or test, which only
    mimics papers that chose on the test set and is told in every result. metric: what is best. every: epochs between
    two looks. patience: looks without a gain until training stops (null: never).
    """

    by: str = "auto"
    metric: str = "map@r"
    every: int = 1
    patience: int | None = None


@dataclass(frozen=True)
class Config:
    """A whole run.

    setting: "ours" takes model, images, optimizer, schedule and length from our defaults for the kind of data, so that
    recipes differ in their method alone; "paper" takes the recipe's. benchmark: cub, cars, sop, inshop: what the recipe
    says for it. One of epochs and steps sets the length. micro_batch: rows that go through the network at once, the
    loss still sees the whole batch (two passes). autocast: none, bf16, fp16. ema: decay of the averaged weights that
    are tested and kept (0: none). shard_proxies: of several ranks each keeps its part of the proxies, for very many
    classes; shard_network: the same for the network's parameters (FSDP2). save_every: seconds between checkpoints.
    log_train: after each epoch also score at most 2,000 training samples, for the log alone. metrics: of the test.
    test: score the test split at the end; untrained: also before training.
    """

    recipe: str | None = None
    setting: str = "ours"
    benchmark: str | None = None
    seed: int = 0
    data: Data = field(default_factory=Data)
    loss: dict[str, Any] = field(default_factory=dict)
    batches: Batches = field(default_factory=Batches)
    pacing: dict[str, Any] = field(default_factory=dict)
    projection: Projection = field(default_factory=Projection)
    model: Model = field(default_factory=Model)
    images: Images = field(default_factory=Images)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    epochs: int | None = None
    steps: int | None = None
    select: Select = field(default_factory=Select)
    micro_batch: int | None = None
    autocast: str = "none"
    ema: float = 0.0
    compile: bool = False
    shard_proxies: bool = False
    shard_network: bool = False
    device: str = "auto"
    threads: int | None = None
    log_every: int = 20
    log_train: bool = False
    save_every: float = 60.0
    metrics: tuple[str, ...] = ("recall@1", "recall@2", "recall@4", "recall@8", "r-precision", "map@r")
    test: bool = True
    untrained: bool = True
    track: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for YAML."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def text(self) -> str:
        """As YAML."""
        text: str = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)
        return text


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
