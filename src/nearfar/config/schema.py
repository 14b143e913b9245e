"""Every setting of a run: its key, type, default, bounds, choices and a sentence of help.

Settings are declared only here, in `data_settings` and in `model_settings`. Validation, suggestions, `nearfar
settings`, docs/settings.md and the JSON schema for editors are derived from these dataclasses. A run directory stores
the complete configuration, so the run can be repeated even if defaults change later.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import yaml

from nearfar.config.data_settings import MOST_THREADS
from nearfar.config.data_settings import Data as Data
from nearfar.config.model_settings import Cache, Model
from nearfar.config.setting import option, section, table, to_plain

BENCHMARKS = ("cub", "cars", "sop", "inshop")


@dataclass(frozen=True)
class Batches:
    """How samples are grouped into batches. Which of these settings apply depends on the sampler."""

    name: str = option("shuffled", "The sampler: shuffled, pk, profs, or a sampler that you registered.")
    size: int | None = option(None, "Number of samples in a batch; ignored if batches.classes is set. Default: 128.")
    classes: int | None = option(None, "Number of classes in a batch. Default: size / per_class.")
    per_class: int | None = option(None, "Number of samples per class in a batch. Default: 4.")
    epoch: str = option(
        "samples",
        "samples: an epoch has about as many samples as the data; classes: an epoch visits every class once.",
        choices=("samples", "classes"),
    )
    rho: float | None = option(
        None, "PROFS: number of times that a cycle uses each representative, on average. Default: 6."
    )
    steps: int | None = option(
        None, "PROFS: number of steps for which a class keeps its representative (a cycle); null: computed from rho."
    )
    mining: str | None = option(None, "PROFS: hncm chooses classes by hard negative class mining; null: at random.")
    seeds_per_batch: int | None = option(None, "hncm: random classes whose nearest ones fill the batch. Default: 1.")
    greedy: bool | None = option(None, "hncm: add the class nearest to any class in the batch. Default: false.")
    fill: bool | None = option(None, "hncm: embed all representatives at the start of a cycle. Default: false.")
    patience: int | None = option(None, "PROFS: end a cycle after this many steps without progress; null: never.")
    options: dict[str, Any] = table("Other options of the sampler; `batches.KEY` is short for `batches.options.KEY`.")


@dataclass(frozen=True)
class ProjectionTerm:
    """The projection term of PROFS, which keeps the parameters near their values at the start of a cycle."""

    weight: float = option(0.0, "Weight of the term; 0 turns it off.", least=0)


@dataclass(frozen=True)
class Images:
    """How images are preprocessed and augmented."""

    crop: int | None = option(
        None, "Side of the network input in pixels; null: the backbone's default, or the size of gray arrays.", above=0
    )
    resize: int | None = option(None, "Short side of a test image before its crop; null is crop * 256 / 224.", above=0)
    min_scale: float = option(
        0.16, "Smallest area of a random training crop, as a fraction of the image.", above=0, most=1
    )
    flip: float = option(0.5, "Probability of a horizontal flip in training.", least=0, most=1)
    jitter: tuple[float, ...] = option((), "Strengths of random changes in brightness, contrast, saturation; []: none.")
    augment: bool = option(True, "Augment training images; false preprocesses them as for testing.")


@dataclass(frozen=True)
class Optimizer:
    """How the weights are updated."""

    name: str = option("adamw", "The optimizer.", choices=("adam", "adamw", "sgd", "rmsprop"))
    lr: float = option(1e-3, "Learning rate of the backbone.", above=0)
    weight_decay: float = option(1e-2, "Weight decay of the network.", least=0)
    decay_vectors: bool = option(False, "Apply weight decay also to biases, normalization layers and the GeM exponent.")
    layer_decay: float = option(1.0, "Factor of the learning rate from each block to the one below.", above=0, most=1)
    head_lr_multiplier: float = option(1.0, "Learning rate of the head, as a multiple of lr.", above=0)
    proxy_lr_multiplier: float = option(10.0, "Learning rate of the proxies of a loss, as a multiple of lr.", above=0)
    proxy_weight_decay: float | None = option(0.0, "Weight decay of the proxies; null uses weight_decay.")
    momentum: float = option(0.9, "Momentum of sgd and rmsprop.")
    betas: tuple[float, ...] = option((0.9, 0.999), "The two averaging coefficients of adam and adamw.")
    clip_value: float | None = option(None, "Clip gradients to this magnitude; null: no clipping.", above=0)
    clip_norm: float | None = option(None, "Clip the total gradient norm to this; null: no clipping.", above=0)


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes over the run."""

    name: str = option(
        "cosine",
        "constant: no decay; cosine: decay to 0; step: multiply by schedule.factor every schedule.every epochs.",
        choices=("constant", "cosine", "step"),
    )
    every: int | None = option(None, "Epochs between two steps of the step schedule; null: no steps.", above=0)
    factor: float = option(0.5, "Factor by which the step schedule multiplies the learning rate.", above=0)
    warm_up: float = option(
        0.1, "Fraction of the steps, at the start, in which the learning rate rises linearly.", least=0, below=1
    )
    warm_up_epochs: int = option(0, "Number of epochs at the start in which the backbone is frozen.", least=0)


@dataclass(frozen=True)
class Select:
    """Which epoch's weights are kept."""

    by: str = option(
        "auto",
        "The epoch with the best score on the validation or test split, or the last one. auto: validation if there are "
        "validation classes, else last. With test, which some papers use, every result has a warning.",
        choices=("auto", "validation", "last", "test"),
    )
    metric: str = option("map@r", "The metric to maximize.")
    every: int = option(1, "Number of epochs between two evaluations.", above=0)
    untrained: bool = option(
        False, "Also score the network before training, and keep it if no epoch is better. Has no effect with last."
    )
    patience: int | None = option(None, "Stop after this many evaluations without improvement; null: never.", above=0)


@dataclass(frozen=True)
class Config:
    """A complete run."""

    recipe: str | None = option(None, "Name of the recipe; `nearfar recipes` lists them. null: none.")
    setting: str = option(
        "ours",
        "ours: use our defaults for the network, images, optimizer, schedule and number of epochs, so that recipes "
        "differ only in their method. paper: use the values of the recipe.",
        choices=("ours", "paper"),
    )
    benchmark: str | None = option(None, "Use the recipe's values for this dataset; null: none.", choices=BENCHMARKS)
    seed: int = option(0, "Seed of weights, batches and augmentation.", least=0, below=2**63)
    data: Data = section(Data, "What to train on.")
    loss: dict[str, Any] = table("The name of the loss and its options; `nearfar losses NAME` shows the options.")
    batches: Batches = section(Batches, "How samples are grouped into batches.")
    pacing: dict[str, Any] = table("The name and options of a pacer, which weights training samples; empty for none.")
    projection: ProjectionTerm = section(ProjectionTerm, "The projection term of PROFS.")
    model: Model = section(Model, "The network.")
    cache: Cache = section(Cache, "Cached activations of the frozen blocks.")
    images: Images = section(Images, "How images are preprocessed and augmented.")
    optimizer: Optimizer = section(Optimizer, "How the weights are updated.")
    schedule: Schedule = section(Schedule, "How the learning rate changes over the run.")
    epochs: int | None = option(None, "Length of the training in epochs; null if steps is set.", above=0)
    steps: int | None = option(None, "Length of the training in steps; null if epochs is set.", above=0)
    select: Select = section(Select, "Which epoch's weights are kept.")
    micro_batch: int | None = option(
        None,
        "Most samples in the network at once; null: all. Larger batches pass in parts, twice: for loss and gradients.",
        above=0,
    )
    autocast: str = option(
        "none", "Precision of autocast in the network; none computes in float32.", choices=("none", "bf16", "fp16")
    )
    ema: float = option(
        0.0, "Decay of a moving average of the weights; the average is tested and saved. 0 for none.", least=0, below=1
    )
    compile: bool = option(False, "Compile the network with torch.compile.")
    shard_proxies: bool = option(
        False, "Split the proxies over the processes, for a very large number of classes.", neutral=True
    )
    shard_network: bool = option(False, "Split the network's parameters over the processes (FSDP2).", neutral=True)
    device: str = option("auto", "Device: auto (a CUDA GPU if there is one), cpu, cuda or cuda:1.", neutral=True)
    threads: int | None = option(
        None, "Number of CPU threads of torch; null is torch's default.", above=0, most=MOST_THREADS, neutral=True
    )
    log_every: int = option(20, "Number of steps between two entries of the log.", above=0, neutral=True)
    log_train: bool = option(
        False,
        "After each epoch, also score at most 2,000 training samples, and measure the mean cosine of their pairs and "
        "of the pairs of proxies, for the log only.",
        neutral=True,
    )
    save_every: float = option(60.0, "Number of seconds between two checkpoints.", least=0, neutral=True)
    metrics: tuple[str, ...] = option(
        ("recall@1", "recall@2", "recall@4", "recall@8", "r-precision", "map@r"),
        "Metrics to compute on the validation and test samples.",
    )
    test: bool = option(True, "Score the test split at the end.", neutral=True)
    untrained: bool = option(True, "Also score the test split before training, with and without the head.")
    track: tuple[str, ...] = option((), "Trackers that also receive the log: tensorboard, wandb, mlflow.", neutral=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as nested dicts of plain values."""
        plain: dict[str, Any] = to_plain(asdict(self))
        return plain

    def to_yaml(self) -> str:
        """Return the configuration as YAML."""
        text: str = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)
        return text
