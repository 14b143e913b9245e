"""Recipes: one YAML a method, the paper's setting with whose value each number is.

A comment behind a number names its source: `paper`, `released code` or `ours`. Under `loss` that is the loss's own
paper (`paper`), elsewhere the one whose set-up the recipe follows (`setup`, where it is another).

    name, paper, setup   the file's own name, and references
    loss                 name and options, for nearfar.losses.create; proxy losses also get classes and dim
    batches              name: shuffled (size), or pk (classes x per_class; epoch: classes, each class visited once, or
                         samples, as many samples as the data set has), or profs, with the options of
                         nearfar.samplers.Profs
    projection           PROFS's term: weight
    pacing               name and options, for nearfar.pacing.create, which also gets samples and classes
    model                backbone, pooling (gem: gem_p), dim, freeze_bn
    images               crop, resize (before the center crop of a test image), min_scale (of the random crop)
    optimizer            name, lr, weight_decay, head_lr_multiplier, proxy_lr_multiplier, clip_value
    schedule             name: constant, or step (every so many epochs, times factor); warm_up_epochs: backbone frozen
    epochs               how long to train
    data                 cub, cars, sop, inshop: what differs there, in the same shape

>>> load("dro-topk")["loss"]["k"]
'2B'
>>> load("proxy-isa", data="cars")["loss"]["sensitivity"]
0.4
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

from nearfar.validation import check_choice, nearest

# section -> its keys; None: a plain value, or for the loss whatever the loss takes
KEYS: dict[str, set[str] | None] = {
    "name": None,
    "paper": None,
    "setup": None,
    "loss": None,
    "batches": {
        *("name", "size", "classes", "per_class", "epoch"),
        *("rho", "steps", "mining", "seeds_per_batch", "greedy", "fill", "patience"),
    },
    "projection": {"weight"},
    "pacing": None,
    "model": {"backbone", "pooling", "gem_p", "dim", "freeze_bn"},
    "images": {"crop", "resize", "min_scale"},
    "optimizer": {"name", "lr", "weight_decay", "head_lr_multiplier", "proxy_lr_multiplier", "clip_value"},
    "schedule": {"name", "every", "factor", "warm_up_epochs"},
    "epochs": None,
    "data": {"cub", "cars", "sop", "inshop"},
}


def names() -> list[str]:
    """The names that `load` knows."""
    return sorted(file.name.removesuffix(".yaml") for file in files(__name__).iterdir() if file.name.endswith(".yaml"))


def text(name: str) -> str:
    """A recipe as it is written, comments included; an unknown name is a ValueError that suggests the nearest."""
    known = names()
    if name not in known:
        raise ValueError(f"unknown recipe {name!r}{nearest(name, known)} Known: {', '.join(known)}")
    return (files(__name__) / f"{name}.yaml").read_text(encoding="utf-8")


def load(name: str, *, data: str | None = None) -> dict[str, Any]:
    """A recipe as a dict; with `data` what differs on that data set is put in its place, and the key `data` is gone.

    >>> load("dro-tpk")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown recipe 'dro-tpk'; did you mean 'dro-topk'? Known: a-profs, ...
    """
    recipe: dict[str, Any] = yaml.safe_load(text(name))
    check(recipe)
    if data is None:
        return recipe
    differences = recipe.pop("data")
    return merged(recipe, differences[check_choice("data", data, differences)])


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """base with the changes put in, section by section.

    >>> merged({"loss": {"name": "dro", "k": 5}, "epochs": 9}, {"loss": {"k": 7}})
    {'loss': {'name': 'dro', 'k': 7}, 'epochs': 9}
    """
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def check(recipe: dict[str, Any]) -> None:
    """Every key is known; otherwise a ValueError that suggests the nearest."""
    for section, value in recipe.items():
        if section not in KEYS:
            raise ValueError(f"a recipe has no {section!r}{nearest(section, KEYS)} Known: {', '.join(KEYS)}")
        known = KEYS[section]
        for key in value if known is not None else ():
            if known is not None and key not in known:
                raise ValueError(f"{section} has no {key!r}{nearest(key, known)} Known: {', '.join(sorted(known))}")
    for differences in recipe.get("data", {}).values():
        check(differences)
