"""Putting a configuration together from defaults, a recipe, a file and settings, and checking it."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from nearfar.config import recipes
from nearfar.config.schema import READ_BY, Batches, Config
from nearfar.errors import NearfarError
from nearfar.validation import nearest

# Where a recipe says nothing for this kind of data (setting: ours). Chosen on validation classes, docs/training.md.
OURS: dict[str, dict[str, Any]] = {
    "pixels": {
        "model": {"backbone": "small", "dim": 512},
        "optimizer": {"name": "adamw", "lr": 2e-3, "weight_decay": 1e-2, "proxy_lr_multiplier": 10.0},
        "steps": 2000,
    },
    "features": {
        "model": {"backbone": "features", "dim": 512},
        "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 1e-2, "proxy_lr_multiplier": 10.0},
        "steps": 300,
    },
    "files": {
        "model": {"backbone": "efficientnet-lite0", "pretrained": True, "dim": 512, "freeze_bn": True},
        "optimizer": {"name": "adamw", "lr": 3e-4, "weight_decay": 1e-4, "proxy_lr_multiplier": 100.0},
        "data": {"workers": 2},
        "epochs": 5,
    },
}
MOST_VALUES, MOST_THREADS = 10_000, 1024
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
    shared: bool = False,
) -> Config:
    """The configuration for data of this kind: defaults, then the recipe, then the file, then `a.b=value` settings.

    `width` of features is the largest embedding that starts from their PCA. `base` stands between defaults and recipe
    (the demo's). An unknown key is an error that names the nearest, and so is a setting that the sampler does not read,
    unless settings are `shared` with other recipes (a bench's): then it is left out.

    >>> config = resolve("features", recipe="proxy-anchor", settings=["loss.alpha=16", "steps=50"])
    >>> config.loss["alpha"], config.steps, config.model.backbone
    (16, 50, 'features')
    >>> resolve("features", settings=["optimizer.momentun=1"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    nearfar.errors.NearfarError: optimizer has no 'momentun'; did you mean 'momentum'? Known: name, lr, ...
    """
    above = with_settings(file or {}, settings)
    name = above.get("recipe") or recipe
    tree = recipes.merged(OURS[kind], dict(base or {}))
    if kind == "features" and width is not None:
        tree["model"] = {**tree["model"], "dim": min(tree["model"]["dim"], width)}
    if name is not None:
        tree = recipes.merged(tree, _of_recipe(str(name), above.get("setting", "ours"), above.get("benchmark")))
        tree["recipe"] = name
    loss = above.get("loss")
    if isinstance(loss, Mapping) and "name" in loss and loss["name"] != tree.get("loss", {}).get("name"):
        tree["loss"] = {}  # another loss: the recipe's options are not its own
    batches = above.get("batches")
    if isinstance(batches, Mapping):
        sampler = batches.get("name", tree.get("batches", {}).get("name", Batches.name))
        tree["batches"] = _read(tree.get("batches", {}), sampler)  # another sampler: as with the loss
        if batches.get("size") is not None and "classes" not in batches:
            tree["batches"].pop("classes", None)  # a size that was asked for goes before the recipe's classes
        if shared:
            above["batches"] = _read(batches, sampler)
        else:
            _check_read(batches, sampler)
    for one, other in (("epochs", "steps"), ("steps", "epochs")):
        if above.get(one) is not None and above.get(other) is None:
            tree.pop(other, None)
    config: Config = build(Config, recipes.merged(tree, above), "")
    check(config)
    return config


def _read(batches: Mapping[str, Any], name: Any) -> dict[str, Any]:
    """Those settings of `batches` that the sampler of this name reads; all, if there is none."""
    keys = READ_BY.get(name) if isinstance(name, str) else None
    return {key: value for key, value in batches.items() if keys is None or key == "name" or key in keys}


def _check_read(batches: Mapping[str, Any], name: Any) -> None:
    for key in batches.keys() - _read(batches, name).keys():
        owners = [each for each, keys in READ_BY.items() if key in keys]
        if owners and batches[key] not in (None, getattr(Batches, key)):
            raise NearfarError(
                f"batches.{key}={batches[key]} is read by batches.name={' or '.join(owners)} alone, and the name is "
                f"{name}: set batches.name={owners[0]}, or leave batches.{key} out"
            )


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
        paper = {"model": {"pretrained": True}, "optimizer": {"decay_vectors": True, "proxy_weight_decay": None}}
        recipe = recipes.merged({**paper, "schedule": {"warm_up": 0.0}, "steps": None}, recipe)
    return recipe


def read_config(path: Path) -> dict[str, Any]:
    """A YAML file as a tree."""
    try:
        tree = _parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NearfarError(f"{path}: cannot be read as YAML ({error})") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise NearfarError(f"{path}: must be a table of settings, got {type(tree).__name__}")
    return tree


def _parsed(text: str) -> Any:
    """Plain values from YAML; what is none, or grows when it is copied, is a ValueError."""
    try:
        tree = yaml.safe_load(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as error:  # besides its own, PyYAML raises what int, float and date raise
        raise ValueError(str(error)) from None
    # a few lines of aliases can stand for more values than there is memory, or for a list that contains itself
    waiting, seen = [tree], 0
    while waiting:
        each = waiting.pop()
        seen += 1
        if seen > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set):
            waiting += each
    return tree


def from_dict(tree: Mapping[str, Any]) -> Config:
    """The configuration that `to_dict` gave."""
    config: Config = build(Config, tree, "")
    check(config)
    return config


def parse_setting(text: str) -> tuple[list[str], Any]:
    """`a.b=value`, the value as YAML reads it.

    >>> parse_setting("optimizer.lr=1e-4"), parse_setting("track=[tensorboard]")
    ((['optimizer', 'lr'], 0.0001), (['track'], ['tensorboard']))
    """
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise NearfarError(f"a setting is KEY=VALUE, for example optimizer.lr=1e-4, got {text!r}")
    try:
        parsed = _parsed(value) if value.strip() else None
    except ValueError as error:
        raise NearfarError(f"{key}: the value {value!r} is not valid YAML ({error})") from None
    if isinstance(parsed, str):
        with suppress(ValueError):  # YAML 1.1 takes 1e-4 for a word
            parsed = float(parsed)
    return key.strip().split("."), parsed


def with_settings(tree: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """The tree with `a.b=value` settings put in, one after the other.

    >>> with_settings({"loss": {"name": "mpa"}}, ["loss.alpha=16", "steps=5"])
    {'loss': {'name': 'mpa', 'alpha': 16}, 'steps': 5}
    """
    result = dict(tree)
    for each in settings:
        path, value = parse_setting(each)
        for key in reversed(path):
            value = {key: value}
        result = recipes.merged(result, value)
    return result


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
            build(hint, {} if value is None else value, place)
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
        if kind is int and isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0:
            return int(value)
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if kind is str and isinstance(value, str):
            return value
    kinds = [get_origin(each) or each for each in options]
    names = " or ".join(KINDS.get(each, str(each)) for each in kinds)
    raise NearfarError(f"{where} must be {names}, got {value!r}")


KINDS: dict[Any, str] = {
    type(None): "null",
    tuple: "a list",
    dict: "a table",
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
}
CHOICES: dict[str, tuple[str, ...]] = {
    "setting": ("ours", "paper"),
    "autocast": ("none", "bf16", "fp16"),
    "data.split": ("auto", "class-order", "all"),
    "data.on_error": ("raise", "skip"),
    "batches.name": tuple(READ_BY),
    "optimizer.name": ("adam", "adamw", "sgd", "rmsprop"),
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
    "data.folds": (2, True),
    "data.fold": (0, True),
    "data.per_class": (2, True),
    "data.noise.rate": (0, True),
    "data.cache_size": (0, False),
    "model.dim": (0, False),
    "images.crop": (0, False),
    "images.resize": (0, False),
    "images.min_scale": (0, False),
    "optimizer.lr": (0, False),
    "optimizer.weight_decay": (0, True),
    "optimizer.head_lr_multiplier": (0, False),
    "optimizer.proxy_lr_multiplier": (0, False),
    "optimizer.clip_value": (0, False),
    "optimizer.clip_norm": (0, False),
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
    for place in ("threads", "data.workers"):
        if (at(config, place) or 0) > MOST_THREADS:
            raise NearfarError(f"{place} must be at most {MOST_THREADS:,}, got {at(config, place)}")
    if not 0 <= config.seed < 2**63:
        raise NearfarError(f"seed must be at least 0 and below 2**63, got {config.seed}")
    if config.epochs is None and config.steps is None:
        raise NearfarError("how long to train is open: set epochs or steps")
    if config.epochs is not None and config.steps is not None:
        raise NearfarError(f"set epochs or steps, not both, got epochs={config.epochs} and steps={config.steps}")
    folds, fold = config.data.folds, config.data.fold
    if fold is not None and (folds is None or fold >= folds):
        raise NearfarError(f"data.fold={fold} must be below data.folds, which is {'null' if folds is None else folds}")
    if folds is not None and config.data.validation > 0:
        raise NearfarError(f"data.folds={folds} holds classes out itself: set data.validation=0")
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
