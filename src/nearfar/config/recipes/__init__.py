"""Recipes: one YAML file per method, with the settings of its paper and the source of each number.

The comment after a number names its source: `paper`, `released code` or `ours`. Under `loss`, "paper" is the paper that
introduced the loss, cited under the key `paper`. Elsewhere it is the paper whose experimental setup the recipe follows,
cited under the key `setup`, or under `paper` if both are the same.

    name, purpose, group   what `nearfar recipes` lists
    paper, setup           references
    loss                   name and options, for nearfar.losses.create; proxy losses also get classes and dim
    batches                name and options of the sampler, for nearfar.samplers.create
    projection             weight of the projection term of PROFS
    pacing                 name and options, for nearfar.pacing.create, which also gets samples and classes
    ours                   pixels, features, files, text: what we change for that kind of data, with `setting=ours` only
    model, images, optimizer, schedule, epochs
                           settings of the paper, which apply with `setting=paper` only
    data                   values that differ on a dataset (cub, cars, sop, inshop), under the same keys

>>> load("dro-topk")["loss"]["uncertainty"]["k"]
'2B'
>>> load("proxy-isa", data="cars")["loss"]["sensitivity"]
0.4
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from nearfar.config.schema import BENCHMARKS, Config
from nearfar.config.setting import is_section, type_hints
from nearfar.config.tree import merge_trees
from nearfar.spelling import suggest

ABOUT = ("name", "purpose", "group", "paper", "setup", "ours", "data")
# Keys that apply with both values of `setting`.
METHOD = ("loss", "batches", "pacing", "projection")
# Keys that apply only with setting=paper.
PAPER_ONLY = ("model", "images", "optimizer", "schedule", "epochs")
# Keys that `ours` may set for a kind of data. The length of training is not among them, because by default all recipes
# train equally long.
OURS_KEYS = (*METHOD, "model", "images", "optimizer", "schedule")
KINDS = ("pixels", "features", "files", "text")
# The headings under which `nearfar recipes` lists the recipes, in order.
GROUPS = (
    "A first choice",
    "Classes that look varied",
    "Long training on few samples",
    "Very many classes",
    "Wrong labels",
    "Pair and triplet losses",
    "Ranking losses",
    "Only the hardest pairs (DRO)",
    "Batches by alternating projections (PROFS)",
)


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(file.name.removesuffix(".yaml") for file in files(__name__).iterdir() if file.name.endswith(".yaml"))


def text(name: str) -> str:
    """Return the YAML text of a recipe, including comments.

    Raises:
        ValueError: If there is no such recipe. The message suggests a similar one.
    """
    known = names()
    if name not in known:
        if name.endswith((".yaml", ".yml")):
            raise ValueError(f"{name} is not the name of a recipe: pass a file of settings with --config {name}")
        raise ValueError(f"unknown recipe {name!r}{suggest(name, known)} Known: {', '.join(known)}")
    return (files(__name__) / f"{name}.yaml").read_text(encoding="utf-8")


def load(name: str, *, data: str | None = None) -> dict[str, Any]:
    """Return a recipe as a dict.

    Args:
        name: The recipe.
        data: Name of a dataset. Its overrides (`data.<name>` in the recipe) are applied, and the key `data` is removed.

    >>> load("dro-tpk")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown recipe 'dro-tpk'; did you mean 'dro-topk'? Known: a-profs, ...
    """
    recipe = deepcopy(_parse(text(name)))
    if data is None:
        return recipe
    differences = recipe.pop("data")
    if data not in differences:
        raise ValueError(f"data must be one of {', '.join(differences)}, got {data!r}{suggest(data, differences)}")
    return merge_trees(recipe, differences[data])


@cache
def _parse(text: str) -> dict[str, Any]:
    """Parse and check the text of a recipe."""
    recipe: dict[str, Any] = yaml.safe_load(text)
    check(recipe)
    return recipe


@cache
def sections() -> dict[str, tuple[str, ...] | None]:
    """Return a dict that maps each key of a recipe to the keys allowed inside it.

    The value is None for a key that holds a plain value or arbitrary options.
    """
    hints = type_hints(Config)
    own = {key: tuple(type_hints(hints[key])) if is_section(hints[key]) else None for key in (*METHOD, *PAPER_ONLY)}
    return {**dict.fromkeys(ABOUT), **own, "ours": KINDS, "data": BENCHMARKS}


def check(recipe: dict[str, Any]) -> None:
    """Raise a ValueError if a key of the recipe is unknown. The message suggests a similar key."""
    known = sections()
    for section, value in recipe.items():
        if section not in known:
            raise ValueError(f"a recipe has no key {section!r}{suggest(section, known)} Known: {', '.join(known)}")
        keys = known[section]
        for key in value if keys is not None else ():
            if keys is not None and key not in keys:
                raise ValueError(f"{section} has no {key!r}{suggest(key, keys)} Known: {', '.join(sorted(keys))}")
    for differences in recipe.get("data", {}).values():
        check(differences)
    for kind, settings in recipe.get("ours", {}).items():
        for section in settings:
            if section not in OURS_KEYS:
                raise ValueError(
                    f"ours.{kind} has no {section!r}{suggest(section, OURS_KEYS)} Known: {', '.join(OURS_KEYS)}"
                )
        check(settings)


def overview() -> str:
    """Return a string that lists all recipes with their purpose, under the headings in GROUPS."""
    loaded = [load(name) for name in names()]
    lines = []
    for group in GROUPS:
        lines += ["", group]
        members = [recipe for recipe in loaded if recipe["group"] == group]
        lines += [f"  {recipe['name']:20s} {recipe['purpose']}" for recipe in members]
    return "\n".join(lines[1:])


def annotate(name: str) -> str:
    """Return the YAML text of a recipe, with added comments that say with which settings each part applies."""
    marks = {
        METHOD: "# Applies with our defaults and with --set setting=paper:",
        ("ours",): "# Our changes for each kind of data. They override the values above unless setting=paper:",
        PAPER_ONLY: "# Applies only with --set setting=paper:",
        ("data",): "# Values for one dataset. They apply with --set benchmark=NAME; those of model, images, optimizer, "
        "schedule and epochs also need --set setting=paper:",
    }
    lines: list[str] = []
    section = ""
    for line in text(name).splitlines():
        if line[0] not in " #":
            before, section = section, line.partition(":")[0]
            mark = next((mark for keys, mark in marks.items() if section in keys and before not in keys), None)
            lines += [] if mark is None else ["", mark]
        # with our defaults, an epoch is always one pass over the samples
        unused = section == "batches" and line.startswith("  epoch:")
        lines.append(f"{line} (only with setting=paper)" if unused else line)
    return "\n".join(lines) + "\n"
