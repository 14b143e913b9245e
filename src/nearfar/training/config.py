"""The configuration of a run: everything that decides what is trained, in one tree of frozen tables.

A tree is put together from the defaults for the kind of data, a recipe, a file and single settings (`resolve`), and is
written to the run's directory whole, so that it makes the same run again whatever defaults later become.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from nearfar import recipes
from nearfar.checks import nearest
from nearfar.errors import NearfarError


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
    counts; a `val` split that the data brings is used as it is). on_error: raise, or skip pictures that cannot be read.
    cache: a folder for decoded pictures of `cache_size` pixels (null: read files each time). fingerprint: of the data,
    filled in by the run; another one later is an error.
    """

    source: str = "sketches"
    split: str = "auto"
    root: str | None = None
    labels: str | None = None
    allow_partial: bool = False
    validation: float = 0.0
    validation_seed: int = 0
    on_error: str = "raise"
    workers: int = 0
    cache: str | None = None
    cache_size: int | None = None
    noise: Noise = field(default_factory=Noise)
    fingerprint: str | None = None


@dataclass(frozen=True)
class Batches:
    """Who meets whom: shuffled (size), pk (classes x per_class, or size / per_class classes), profs."""

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
    """Pictures: crop = their side for the net (null: the backbone's); resize before the centre crop of a test picture;
    min_scale = smallest part of the area in a training crop; jitter = brightness, contrast, saturation.
    augment: false trains on the pictures as they are tested."""

    crop: int | None = None
    resize: int | None = None
    min_scale: float = 0.16
    flip: float = 0.5
    jitter: tuple[float, ...] = ()
    augment: bool = True


@dataclass(frozen=True)
class Optimiser:
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

    setting: "ours" takes model, images, optimiser, schedule and length from our defaults for the kind of data, so that
    recipes differ in their method alone; "paper" takes the recipe's. benchmark: cub, cars, sop, inshop: what the recipe
    says for it. One of epochs and steps sets the length. micro_batch: rows that go through the network at once, the
    loss still sees the whole batch (two passes). autocast: none, bf16, fp16. ema: decay of the averaged weights that
    are tested and kept (0: none). save_every: seconds between checkpoints. metrics: of the test.
    untrained: also test the network before training.
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
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    epochs: int | None = None
    steps: int | None = None
    select: Select = field(default_factory=Select)
    micro_batch: int | None = None
    autocast: str = "none"
    ema: float = 0.0
    compile: bool = False
    device: str = "auto"
    threads: int | None = None
    log_every: int = 20
    save_every: float = 60.0
    metrics: tuple[str, ...] = ("recall@1", "recall@2", "recall@4", "recall@8", "r-precision", "map@r")
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


# Where a recipe says nothing for this kind of data (setting: ours). Chosen on validation classes, docs/training.md.
OURS: dict[str, dict[str, Any]] = {
    "pixels": {
        "model": {"backbone": "small", "dim": 512},
        "optimiser": {"name": "adamw", "lr": 2e-3, "weight_decay": 1e-2, "proxy_lr_multiplier": 10.0},
        "steps": 2000,
    },
    "features": {
        "model": {"backbone": "features", "dim": 512},
        "optimiser": {"name": "adamw", "lr": 1e-3, "weight_decay": 1e-2, "proxy_lr_multiplier": 10.0},
        "steps": 300,
    },
    "files": {
        "model": {"backbone": "efficientnet-lite0", "pretrained": True, "dim": 512, "freeze_bn": True},
        "optimiser": {"name": "adamw", "lr": 1e-4, "weight_decay": 1e-4, "proxy_lr_multiplier": 100.0},
        "data": {"workers": 2},
        "epochs": 5,
    },
}
# What of a recipe is the method itself, taken in every setting.
METHOD = ("loss", "batches", "pacing", "projection")


def resolve(
    kind: str,
    *,
    width: int | None = None,
    recipe: str | None = None,
    file: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    base: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration for data of this kind: defaults, then the recipe, then the file, then `a.b=value` settings.

    `width` of features is the largest embedding that starts from their PCA. `base` stands between defaults and recipe
    (the demo's). An unknown key is an error that names the nearest.

    >>> config = resolve("features", recipe="proxy-anchor", settings=["loss.alpha=16", "steps=50"])
    >>> config.loss["alpha"], config.steps, config.model.backbone
    (16, 50, 'features')
    >>> resolve("features", settings=["optimiser.momentun=1"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    nearfar.errors.NearfarError: optimiser has no 'momentun'; did you mean 'momentum'? Known: name, lr, ...
    """
    single = [parse_setting(each) for each in settings]
    above: dict[str, Any] = dict(file or {})
    for path, value in single:
        above = recipes.merged(above, _nested(path, value))
    name = above.get("recipe") or recipe
    tree = recipes.merged(OURS[kind], dict(base or {}))
    if kind == "features" and width is not None:
        tree["model"] = {**tree["model"], "dim": min(tree["model"]["dim"], width)}
    if name is not None:
        tree = recipes.merged(tree, _of_recipe(str(name), above.get("setting", "ours"), above.get("benchmark")))
        tree["recipe"] = name
    if "loss" in above and "name" in above["loss"] and above["loss"]["name"] != tree.get("loss", {}).get("name"):
        tree["loss"] = {}  # another loss: the recipe's options are not its own
    for one, other in (("epochs", "steps"), ("steps", "epochs")):
        if above.get(one) is not None and above.get(other) is None:
            tree.pop(other, None)
    config: Config = build(Config, recipes.merged(tree, above), "")
    check(config)
    return config


def _of_recipe(name: str, setting: str, benchmark: str | None) -> dict[str, Any]:
    if setting not in ("ours", "paper"):
        raise NearfarError(f"setting must be ours or paper, got {setting!r}")
    try:
        recipe = recipes.load(name, data=benchmark)
    except ValueError as error:
        raise NearfarError(str(error)) from None
    recipe = {key: value for key, value in recipe.items() if key not in ("name", "paper", "setup", "data")}
    if setting == "ours":
        recipe = {key: value for key, value in recipe.items() if key in METHOD}
        recipe.get("batches", {}).pop("epoch", None)  # an epoch is one pass over the samples for every method
    else:
        # what the recipes leave open is as in the released codes: everything decays, no linear warm-up, BN-Inception's
        # public weights
        paper = {"model": {"pretrained": True}, "optimiser": {"decay_vectors": True, "proxy_weight_decay": None}}
        recipe = recipes.merged({**paper, "schedule": {"warm_up": 0.0}, "steps": None}, recipe)
    return recipe


def read_config(path: Path) -> dict[str, Any]:
    """A YAML file as a tree."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise NearfarError(f"{path}: cannot be read as YAML ({error})") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise NearfarError(f"{path}: must be a table of settings, got {type(tree).__name__}")
    return tree


def from_dict(tree: Mapping[str, Any]) -> Config:
    """The configuration that `to_dict` gave."""
    config: Config = build(Config, tree, "")
    check(config)
    return config


def parse_setting(text: str) -> tuple[list[str], Any]:
    """`a.b=value`, the value as YAML reads it.

    >>> parse_setting("optimiser.lr=1e-4"), parse_setting("track=[tensorboard]")
    ((['optimiser', 'lr'], 0.0001), (['track'], ['tensorboard']))
    """
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise NearfarError(f"a setting is KEY=VALUE, for example optimiser.lr=1e-4, got {text!r}")
    try:
        parsed = yaml.safe_load(value) if value.strip() else None
    except yaml.YAMLError:
        raise NearfarError(f"{key}: the value {value!r} is not valid YAML") from None
    if isinstance(parsed, str):
        with suppress(ValueError):  # YAML 1.1 takes 1e-4 for a word
            parsed = float(parsed)
    return key.strip().split("."), parsed


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)


@cache
def _hints(table: type) -> dict[str, Any]:
    return get_type_hints(table)


def build(table: type, tree: Any, where: str) -> Any:
    """A table (dataclass) from a tree of plain values; wrong keys and types are errors that name the place."""
    if not isinstance(tree, Mapping):
        raise NearfarError(f"{where or 'the configuration'} must be a table of settings, got {tree!r}")
    known = [each.name for each in fields(table)]
    values: dict[str, Any] = {}
    for key, value in tree.items():
        place = f"{where}.{key}" if where else str(key)
        if key not in known:
            inside = where or "the configuration"
            raise NearfarError(f"{inside} has no {key!r}{nearest(str(key), known)} Known: {', '.join(known)}")
        hint = _hints(table)[key]
        values[key] = (
            build(hint, value or {}, place)
            if isinstance(hint, type) and is_dataclass(hint)
            else _typed(hint, value, place)
        )
    return table(**values)


def _typed(hint: Any, value: Any, where: str) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        kind = get_origin(option) or option
        if kind is dict and (isinstance(value, Mapping) or value is None):
            return dict(value or {})
        if kind is tuple and isinstance(value, list | tuple | str):
            return tuple([value] if isinstance(value, str) else value)
        if kind is bool and isinstance(value, bool):
            return value
        if kind is int and isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
            return int(value)
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if kind is str and isinstance(value, str):
            return value
    names = " or ".join("null" if each is type(None) else getattr(each, "__name__", str(each)) for each in options)
    raise NearfarError(f"{where} must be {names}, got {value!r}")


CHOICES: dict[str, tuple[str, ...]] = {
    "setting": ("ours", "paper"),
    "autocast": ("none", "bf16", "fp16"),
    "data.split": ("auto", "class-order", "all"),
    "data.on_error": ("raise", "skip"),
    "batches.name": ("shuffled", "pk", "profs"),
    "optimiser.name": ("adam", "adamw", "sgd", "rmsprop"),
    "schedule.name": ("constant", "cosine", "step"),
    "select.by": ("auto", "validation", "last", "test"),
}
# place: the least value, and whether it is allowed itself
LEAST: dict[str, tuple[float, bool]] = {
    "steps": (0, False),
    "epochs": (0, False),
    "micro_batch": (0, False),
    "log_every": (0, False),
    "save_every": (0, True),
    "threads": (0, False),
    "data.workers": (0, True),
    "data.validation": (0, True),
    "data.noise.rate": (0, True),
    "data.cache_size": (0, False),
    "model.dim": (0, False),
    "images.crop": (0, False),
    "images.resize": (0, False),
    "images.min_scale": (0, False),
    "optimiser.lr": (0, False),
    "optimiser.weight_decay": (0, True),
    "optimiser.head_lr_multiplier": (0, False),
    "optimiser.proxy_lr_multiplier": (0, False),
    "optimiser.clip_value": (0, False),
    "optimiser.clip_norm": (0, False),
    "schedule.every": (0, False),
    "schedule.factor": (0, False),
    "schedule.warm_up": (0, True),
    "schedule.warm_up_epochs": (0, True),
    "select.every": (0, False),
    "select.patience": (0, False),
    "projection.weight": (0, True),
    "ema": (0, True),
}


def check(config: Config) -> None:
    """Values that cannot be right are errors before anything is loaded."""
    for place, choices in CHOICES.items():
        value = at(config, place)
        if value not in choices:
            raise NearfarError(f"{place} must be one of {', '.join(choices)}, got {value!r}{nearest(value, choices)}")
    for place, (least, allowed) in LEAST.items():
        value = at(config, place)
        if value is not None and not (value > least or (allowed and value == least)):
            raise NearfarError(f"{place} must be {'at least' if allowed else 'above'} {least:g}, got {value!r}")
    for place in ("data.validation", "schedule.warm_up", "ema", "data.noise.rate"):
        if not at(config, place) < 1:
            raise NearfarError(f"{place} must be below 1, got {at(config, place)!r}")
    if config.epochs is None and config.steps is None:
        raise NearfarError("how long to train is open: set epochs or steps")
    if config.epochs is not None and config.steps is not None:
        raise NearfarError(f"set epochs or steps, not both, got epochs={config.epochs} and steps={config.steps}")
    if not config.loss.get("name"):
        raise NearfarError("no loss: choose a recipe (nearfar recipes) or set loss.name (nearfar losses)")
    if config.schedule.name == "step" and config.schedule.every is None:
        raise NearfarError("schedule.every is needed with schedule.name=step: epochs between two steps")


def at(config: Config, place: str) -> Any:
    """The value at a dotted place."""
    value: Any = config
    for key in place.split("."):
        value = getattr(value, key)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
