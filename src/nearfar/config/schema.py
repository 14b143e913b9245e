"""Every setting of a run: its key, type, default, bounds, choices and a sentence of help.

This is the only place that knows them. Validation, suggestions, `nearfar settings`, docs/settings.md and the JSON
schema for editors are made from these tables. A run directory keeps the complete configuration, so the run can be
repeated even if defaults change later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from nearfar.config.setting import Setting, option, section, table, walk

MOST_THREADS = 1024
BENCHMARKS = ("cub", "cars", "sop", "inshop")


@dataclass(frozen=True)
class Noise:
    """Injected label noise, to measure robustness (BSPML section 4.3)."""

    rate: float = option(0.0, "Fraction of the training samples that get a wrong label.", least=0, below=1)
    kind: str = option(
        "symmetric",
        "symmetric: labels are replaced at random; small-cluster: clusters of similar samples change their class.",
        choices=("symmetric", "small-cluster"),
    )
    seed: int | None = option(None, "Seed of the noise; null uses the seed of the run.")


@dataclass(frozen=True)
class Data:
    """What to train on."""

    source: str = option("sketches", "Folder of class folders, tar of one, CSV, .npz, benchmark, or sketches.")
    split: str = option(
        "auto",
        "auto: use the split that the data defines, or else train on the first half of the classes. class-order: "
        "always train on the first half of the classes. all: train on all samples, without a test split.",
        choices=("auto", "class-order", "all"),
    )
    root: str | None = option(None, "Folder of the images that a table names; null is the folder of the table.")
    labels: str | None = option(
        None, "File with the labels of a .npy data file; null looks for a labels file next to the data."
    )
    allow_partial: bool = option(False, "Accept a benchmark in its official layout if image files are missing.")
    validation: float = option(
        0.0,
        "Fraction of the training classes held out to choose the best epoch; 0 holds out none. A val split in the data "
        "is used as it is.",
        least=0,
        below=1,
    )
    validation_seed: int = option(0, "Seed that chooses the validation classes.")
    folds: int | None = option(
        None, "Number of contiguous parts of the sorted training classes for cross-validation, as in MLRC.", least=2
    )
    fold: int | None = option(None, "The fold that this run holds out, from 0, in place of data.validation.", least=0)
    per_class: int | None = option(
        None, "Largest number of training samples per class, the same ones in every run; null uses all.", least=2
    )
    on_error: str = option(
        "raise", "What to do with an image that cannot be read: raise an error, or skip it.", choices=("raise", "skip")
    )
    workers: int = option(0, "Number of processes that load image files.", least=0, most=MOST_THREADS, neutral=True)
    cache: str | None = option(None, "Folder for decoded images; null reads the image files every time.")
    cache_size: int | None = option(
        None, "Side of the cached images in pixels; null is 256/224 of the input size.", above=0
    )
    noise: Noise = section(Noise, "Injected label noise.")
    fingerprint: str | None = option(
        None, "Fingerprint of the data, which the run fills in. Other data with this configuration is an error."
    )


@dataclass(frozen=True)
class Batches:
    """Which samples share a batch. The sampler decides which of these settings apply."""

    name: str = option("shuffled", "The sampler: shuffled, pk, profs, or one that you registered.")
    size: int | None = option(None, "Number of samples in a batch; ignored if batches.classes is set. Default: 128.")
    classes: int | None = option(None, "Number of classes in a batch. Default: size / per_class.")
    per_class: int | None = option(None, "Number of samples per class in a batch. Default: 4.")
    epoch: str = option(
        "samples",
        "samples: an epoch has about as many samples as the data; classes: it visits every class once.",
        choices=("samples", "classes"),
    )
    rho: float | None = option(
        None, "PROFS: a cycle has rho * per_class * (number of classes) / size steps, rounded up. Default: 6."
    )
    steps: int | None = option(None, "PROFS: number of steps with the same representatives; replaces rho.")
    mining: str | None = option(None, "PROFS: hncm chooses the classes of a batch by hard negative class mining.")
    seeds_per_batch: int | None = option(None, "hncm: number of random classes whose neighbors fill a batch.")
    greedy: bool | None = option(None, "hncm: add the class nearest to any chosen one, one at a time.")
    fill: bool | None = option(None, "hncm: embed all representatives when a cycle starts.")
    patience: int | None = option(None, "PROFS: end a cycle when the loss has not fallen for this many steps.")
    options: dict[str, Any] = table("Other options of the sampler; `batches.KEY` is short for `batches.options.KEY`.")


@dataclass(frozen=True)
class ProjectionTerm:
    """The projection term of PROFS: (weight / 2) |theta - theta_k|^2."""

    weight: float = option(0.0, "Weight of the term; 0 turns it off.", least=0)


@dataclass(frozen=True)
class Model:
    """The network, as for `nearfar.models.create_embedder`."""

    backbone: str = option("small", "Name of the backbone, or features for vectors.")
    pretrained: bool | str = option(False, "true loads the public weights, a path loads the weights of that file.")
    pooling: str | None = option(None, "average, max, average+max, gem, gem-trainable or grid; null is the backbone's.")
    gem_p: float = option(3.0, "Initial exponent of GeM pooling.")
    head: str = option("linear", "Layers from the pooled features to the embedding: linear, mlp or identity.")
    hidden: int | None = option(None, "Width of the hidden layer of an mlp head; null is twice model.dim.")
    dim: int | None = option(512, "Dimension of the embedding.", above=0)
    layer_norm: bool = option(False, "Apply layer normalization to the pooled features.")
    init: str | None = option(None, "Start of the head: pca, kaiming or random; null is pca for vectors, else kaiming.")
    freeze_bn: bool = option(False, "Keep the statistics of batch normalization as they are.")
    freeze_backbone: bool = option(False, "Train the head only.")


@dataclass(frozen=True)
class Images:
    """How images reach the network."""

    crop: int | None = option(None, "Side of the network input in pixels; null is the backbone's.", above=0)
    resize: int | None = option(
        None, "Short side of a test image before its center crop; null is crop * 256 / 224.", above=0
    )
    min_scale: float = option(
        0.16, "Smallest area of a random training crop, as a fraction of the image.", above=0, most=1
    )
    flip: float = option(0.5, "Probability of a horizontal flip in training.", least=0, most=1)
    jitter: tuple[float, ...] = option((), "Strength of random changes of brightness, contrast and saturation.")
    augment: bool = option(True, "false trains on images as they are tested, without random changes.")


@dataclass(frozen=True)
class Optimizer:
    """How the weights are updated."""

    name: str = option("adamw", "The optimizer.", choices=("adam", "adamw", "sgd", "rmsprop"))
    lr: float = option(1e-3, "Learning rate of the backbone.", above=0)
    weight_decay: float = option(1e-2, "Weight decay of the network.", least=0)
    decay_vectors: bool = option(False, "Also decay biases, normalization layers and the exponent of GeM.")
    head_lr_multiplier: float = option(1.0, "Learning rate of the head, as a multiple of lr.", above=0)
    proxy_lr_multiplier: float = option(10.0, "Learning rate of the proxies of a loss, as a multiple of lr.", above=0)
    proxy_weight_decay: float | None = option(0.0, "Weight decay of the proxies; null uses weight_decay.")
    momentum: float = option(0.9, "Momentum of sgd and rmsprop.")
    betas: tuple[float, ...] = option((0.9, 0.999), "The two averaging coefficients of adam and adamw.")
    clip_value: float | None = option(None, "Clip each entry of the gradients, after the PROFS term.", above=0)
    clip_norm: float | None = option(None, "Clip the norm of all gradients, after the PROFS term.", above=0)


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes over the run."""

    name: str = option(
        "cosine",
        "constant; cosine falls to 0; step multiplies by schedule.factor.",
        choices=("constant", "cosine", "step"),
    )
    every: int | None = option(None, "Number of epochs between two steps of the step schedule.", above=0)
    factor: float = option(0.5, "Factor by which the step schedule multiplies the learning rate.", above=0)
    warm_up: float = option(0.1, "Fraction of the steps in which the rate rises from 0.", least=0, below=1)
    warm_up_epochs: int = option(0, "Number of epochs at the start in which the backbone is frozen.", least=0)


@dataclass(frozen=True)
class Select:
    """Which epoch's weights are kept."""

    by: str = option(
        "auto",
        "auto is validation if validation classes exist, else last. test chooses on the test split, as some papers do; "
        "every result then says so.",
        choices=("auto", "validation", "last", "test"),
    )
    metric: str = option("map@r", "The metric to maximize.")
    every: int = option(1, "Number of epochs between two evaluations.", above=0)
    patience: int | None = option(None, "Stop after this many evaluations without improvement.", above=0)


@dataclass(frozen=True)
class Config:
    """A complete run."""

    recipe: str | None = option(None, "Name of the recipe; `nearfar recipes` lists them.")
    setting: str = option(
        "ours",
        "ours uses our defaults for the network, images, optimizer, schedule and length, so that recipes differ in "
        "their method only; paper uses those of the recipe.",
        choices=("ours", "paper"),
    )
    benchmark: str | None = option(None, "Use the values that the recipe has for this dataset.", choices=BENCHMARKS)
    seed: int = option(0, "Seed of weights, batches and augmentation.", least=0, below=2**63)
    data: Data = section(Data, "What to train on.")
    loss: dict[str, Any] = table("name and options of the loss; `nearfar losses NAME` lists them.")
    batches: Batches = section(Batches, "Which samples share a batch.")
    pacing: dict[str, Any] = table("name and options of a pacer, which weights the training samples; empty for none.")
    projection: ProjectionTerm = section(ProjectionTerm, "The projection term of PROFS.")
    model: Model = section(Model, "The network.")
    images: Images = section(Images, "How images reach the network.")
    optimizer: Optimizer = section(Optimizer, "How the weights are updated.")
    schedule: Schedule = section(Schedule, "How the learning rate changes over the run.")
    epochs: int | None = option(None, "Length of the training in epochs; set this or steps.", above=0)
    steps: int | None = option(None, "Length of the training in steps; set this or epochs.", above=0)
    select: Select = section(Select, "Which epoch's weights are kept.")
    micro_batch: int | None = option(
        None,
        "Number of samples that pass through the network at a time. The loss still sees the whole batch (two passes).",
        above=0,
    )
    autocast: str = option(
        "none", "Lower precision for the network; none computes in float32.", choices=("none", "bf16", "fp16")
    )
    ema: float = option(
        0.0, "Decay of the moving average of the weights, which is then tested and kept; 0 for none.", least=0, below=1
    )
    compile: bool = option(False, "Compile the network with torch.compile.")
    shard_proxies: bool = option(
        False, "Split the proxies over the processes, for a very large number of classes.", neutral=True
    )
    shard_network: bool = option(False, "Split the network's parameters over the processes (FSDP2).", neutral=True)
    device: str = option("auto", "Where to train: auto (a GPU if there is one), cpu, cuda, cuda:1, mps.", neutral=True)
    threads: int | None = option(
        None, "Number of CPU threads of torch; null is torch's default.", above=0, most=MOST_THREADS, neutral=True
    )
    log_every: int = option(20, "Number of steps between two entries of the log.", above=0, neutral=True)
    log_train: bool = option(
        False, "After each epoch also score at most 2,000 training samples, for the log only.", neutral=True
    )
    save_every: float = option(60.0, "Number of seconds between two checkpoints.", least=0, neutral=True)
    metrics: tuple[str, ...] = option(
        ("recall@1", "recall@2", "recall@4", "recall@8", "r-precision", "map@r"),
        "Metrics to compute on the test split.",
    )
    test: bool = option(True, "Score the test split at the end.", neutral=True)
    untrained: bool = option(True, "Also score the test split before training.")
    track: tuple[str, ...] = option((), "Trackers that also receive the log: tensorboard, wandb, mlflow.", neutral=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain values."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def to_yaml(self) -> str:
        """Return the configuration as YAML."""
        text: str = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)
        return text


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def all_settings() -> dict[str, Setting]:
    """Return the description of every setting by its key, sections included.

    >>> all_settings()["optimizer.lr"].help
    'Learning rate of the backbone.'
    """
    return {key: each.metadata["setting"] for key, each, _ in walk(Config)}


def neutral_settings() -> tuple[str, ...]:
    """Return the keys that do not change the trained weights or their scores (except for rounding)."""
    return tuple(key for key, each in all_settings().items() if each.neutral)
