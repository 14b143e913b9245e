"""Every setting of a run: its key, type, default, bounds, choices and a sentence of help.

Settings are declared only here, in `data_settings` and in `model_settings`. Validation, suggestions, `nearfar
settings`, docs/settings.md and the JSON schema for editors are derived from these dataclasses. A run directory stores
the complete configuration, so the run can be repeated even if defaults change later.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nearfar.config.data_settings import MOST_THREADS
from nearfar.config.data_settings import Data as Data
from nearfar.config.model_settings import Cache, Model
from nearfar.config.setting import option, section, table, to_plain

BENCHMARKS = ("cub", "cars", "sop", "inshop")


@dataclass(frozen=True)
class Batches:
    """How samples are grouped into batches. Which of these settings apply depends on the sampler."""

    name: str = option("shuffled", "The sampler: shuffled, pk, profs, stream, pairs, or a sampler that you registered.")
    size: int | None = option(None, "Number of samples in a batch; ignored if batches.classes is set. Default: 128.")
    classes: int | None = option(None, "Number of classes in a batch. Default: batches.size / batches.per_class.")
    per_class: int | None = option(None, "Number of samples per class in a batch. Default: 4.")
    epoch: str = option(
        "samples",
        "samples: an epoch has about as many samples as the data; classes: an epoch visits every class once.",
        choices=("samples", "classes"),
    )
    rho: float | None = option(
        None, "PROFS: number of times that a cycle uses the representative of a class, on average. Default: 6."
    )
    steps: int | None = option(
        None,
        "PROFS: number of steps of a cycle, in which each class keeps the same sample as its representative; null: "
        "computed from rho.",
    )
    mining: str | None = option(None, "PROFS: hncm chooses classes by hard negative class mining; null: at random.")
    seeds_per_batch: int | None = option(
        None, "hncm: number of random classes in a batch; the classes nearest to them fill the rest. Default: 1."
    )
    greedy: bool | None = option(
        None, "hncm: always add the class that is nearest to any class already in the batch. Default: false."
    )
    fill: bool | None = option(
        None, "hncm: embed the representatives of all classes at the start of a cycle. Default: false."
    )
    patience: int | None = option(
        None, "PROFS: end a cycle when the loss has not improved for this many steps; null: a fixed number of steps."
    )
    options: dict[str, Any] = table(
        "Other options of the sampler; `batches.KEY` is shorthand for `batches.options.KEY`."
    )


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
    resize: int | None = option(
        None,
        "Short side in pixels to which a test image is resized before it is cropped; null is crop * 256 / 224.",
        above=0,
    )
    train_crop: int | float | None = option(
        None,
        "Side of training images in pixels or, below 1, as a fraction of the side of test images, rounded up to a "
        "multiple of 32; null: the side of test images. Smaller training images save time and can improve the scores, "
        "because random crops enlarge objects.",
        above=0,
    )
    min_scale: float = option(
        0.16, "Smallest area of a random training crop, as a fraction of the image.", above=0, most=1
    )
    flip: float = option(0.5, "Probability of a horizontal flip in training.", least=0, most=1)
    jitter: tuple[float, ...] = option(
        (), "Strengths of random changes in brightness, contrast and saturation; []: none."
    )
    augment: bool = option(True, "Augment training images; false preprocesses them as for testing.")


@dataclass(frozen=True)
class Optimizer:
    """How the weights are updated."""

    name: str = option("adamw", "The optimizer.", choices=("adam", "adamw", "sgd", "rmsprop"))
    lr: float = option(1e-3, "Learning rate of the backbone.", above=0)
    weight_decay: float = option(1e-2, "Weight decay of the network.", least=0)
    decay_vectors: bool = option(False, "Also apply weight decay to biases, normalization layers and the GeM exponent.")
    layer_decay: float = option(
        1.0, "Learning rate of each block, as a multiple of that of the next block toward the output.", above=0, most=1
    )
    head_lr_multiplier: float = option(1.0, "Learning rate of the head, as a multiple of lr.", above=0)
    proxy_lr_multiplier: float = option(10.0, "Learning rate of the proxies of a loss, as a multiple of lr.", above=0)
    proxy_weight_decay: float | None = option(0.0, "Weight decay of the proxies; null uses weight_decay.")
    momentum: float = option(0.9, "Momentum of sgd and rmsprop.")
    betas: tuple[float, ...] = option((0.9, 0.999), "The two averaging coefficients of adam and adamw.")
    clip_value: float | None = option(None, "Clip each gradient entry to this magnitude; null: no clipping.", above=0)
    clip_norm: float | None = option(None, "Clip the total gradient norm to this value; null: no clipping.", above=0)


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes over the run."""

    name: str = option(
        "cosine",
        "constant: no decay; cosine: decay to 0; step: multiply by schedule.factor every schedule.every epochs.",
        choices=("constant", "cosine", "step"),
    )
    every: int | None = option(
        None,
        "Number of epochs between two changes of the learning rate in the step schedule; null in other schedules.",
        above=0,
    )
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
        "validation, test: keep the epoch with the best score on this split. last: keep the last epoch. auto: "
        "validation if there are validation classes, otherwise last. Some papers use test. This makes test scores too "
        "optimistic, so every result then has a warning.",
        choices=("auto", "validation", "last", "test"),
    )
    metric: str = option("map@r", "The metric to maximize.")
    every: int = option(1, "Number of epochs between two evaluations.", above=0)
    untrained: bool = option(
        False,
        "Also score the network before training, and keep it if no epoch is better. Has no effect if the last epoch is "
        "kept (select.by).",
    )
    patience: int | None = option(None, "Stop after this many evaluations without improvement; null: never.", above=0)


SEVERAL = "several"  # loss.name of a weighted sum of several losses, which are in loss.losses


@dataclass(frozen=True)
class Config:
    """The complete configuration of a run."""

    recipe: str | None = option(None, "Name of the recipe; `nearfar recipes` lists them. null: none.")
    setting: str = option(
        "ours",
        "ours: use our defaults for the network, images, optimizer, schedule and number of epochs, so that recipes "
        "differ only in their method. paper: use the values of the recipe.",
        choices=("ours", "paper"),
    )
    benchmark: str | None = option(
        None, "Use the recipe's values for this dataset; null: its general values.", choices=BENCHMARKS
    )
    seed: int = option(0, "Seed for the initial weights, batches and augmentation.", least=0, below=2**63)
    data: Data = section(Data, "What to train on.")
    loss: dict[str, Any] = table(
        "The name of the loss and its options; `nearfar losses NAME` shows the options. A list of such mappings, each "
        "optionally with a weight, trains with the weighted sum of the losses."
    )
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
        "Maximum number of samples in the network at once; null: the whole batch. A larger batch is split into parts, "
        "and each part passes through the network twice: for the loss and for the gradients.",
        above=0,
    )
    autocast: str = option(
        "none", "Precision of autocast in the network; none computes in float32.", choices=("none", "bf16", "fp16")
    )
    ema: float = option(
        0.0, "Decay of a moving average of the weights; the average is tested and saved. 0 for none.", least=0, below=1
    )
    compile: bool = option(False, "Compile the network with torch.compile.")
    tf32: str = option(
        "convolutions",
        "Operations in which a GPU rounds float32 to TF32, which is several times faster but has only about 3 decimal "
        "digits.",
        choices=("none", "convolutions", "all"),
        neutral=True,
    )
    cudnn_benchmark: bool = option(
        False,
        "Let cuDNN time its convolution algorithms and use the fastest. A resumed run may then use other algorithms, "
        "so its weights may differ slightly from those of an uninterrupted run.",
        neutral=True,
    )
    shard_proxies: bool = option(
        False, "Split the proxies over the processes, for a very large number of classes.", neutral=True
    )
    shard_network: bool = option(False, "Split the network's parameters over the processes (FSDP2).", neutral=True)
    device: str = option("auto", "Device: auto (a CUDA GPU if there is one), cpu, cuda or cuda:1.", neutral=True)
    threads: int | None = option(
        None, "Number of CPU threads for torch; null is torch's default.", above=0, most=MOST_THREADS, neutral=True
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

    @property
    def loss_name(self) -> str:
        """The name of the loss. The names of several losses are joined by " + "."""
        parts = self.loss["losses"] if self.loss["name"] == SEVERAL else [self.loss]
        return " + ".join(str(part["name"]) for part in parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as nested dicts of plain values."""
        plain: dict[str, Any] = to_plain(asdict(self))
        return plain

    def to_yaml(self) -> str:
        """Return the configuration as YAML."""
        import yaml  # here, so that --help is fast

        text: str = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)
        return text
