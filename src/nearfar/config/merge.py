"""Merge the defaults, a recipe, a YAML file and single settings into the configuration of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from nearfar import samplers
from nearfar.config import recipes
from nearfar.config.defaults import OURS, PAPER, PLAIN_FILES, fine_tuning_defaults, text_defaults
from nearfar.config.schema import SEVERAL, Batches, Config
from nearfar.config.setting import build
from nearfar.config.tree import apply_settings, merge_trees
from nearfar.errors import NearfarError
from nearfar.metrics.names import expand_names
from nearfar.models.backbones import is_built_in
from nearfar.models.own_network import LIBRARIES
from nearfar.spelling import suggest
from nearfar.validation import check_choice


def resolve(
    kind: str,
    *,
    width: int | None = None,
    recipe: str | None = None,
    file: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    base: Mapping[str, Any] | None = None,
    shared: bool = False,
    samples: int | None = None,
    cache: str | None = None,
) -> Config:
    """Merge the defaults for a kind of data, the recipe, the file and the settings, and return the configuration.

    Later values in this order override earlier ones.

    Args:
        kind: Kind of the data: "pixels", "features", "files" or "text".
        width: Dimension of the feature vectors. The default dimension of the embeddings is at most this.
        recipe: Name of a recipe.
        file: Settings as nested dicts, as read from a YAML file. A recipe named here replaces `recipe`.
        settings: Single settings, each `key=value`.
        base: Nested dicts that override the defaults and are overridden by the recipe.
        shared: If True, the settings are meant for several recipes, as in a suite. Settings of `batches` that the
            sampler does not use are then ignored; otherwise they are an error. The section `ours` of the recipe is
            ignored as well, because a suite uses the values of the papers and tunes settings itself.
        samples: Number of training samples. With few images or texts, the default is more epochs.
        cache: Folder of cached activations, if there is no GPU. The defaults for image files are then those of
            `nearfar train` without a GPU: smaller training images or, if `model.train_from` is set, cached activations.

    Raises:
        ValueError: If `kind` is unknown.
        NearfarError: If a key is unknown or a value is invalid.

    >>> config = resolve("features", recipe="proxy-anchor", settings=["loss.alpha=16", "steps=50"])
    >>> config.loss["alpha"], config.steps, config.model.backbone
    (16, 50, 'features')
    >>> resolve("features", settings=["optimizer.momentun=1"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    nearfar.errors.NearfarError: optimizer has no 'momentun'; did you mean 'momentum'? Known: name, lr, ...
    """
    check_choice("kind", kind, OURS)
    changes = gather_losses(apply_settings(file or {}, settings))
    name = changes.get("recipe") or recipe
    is_plain = shared or changes.get("setting") == "paper"
    chosen = changes.get("model")
    model = {**(base or {}).get("model", {}), **(chosen if isinstance(chosen, Mapping) else {})}
    backbone = model.get("backbone")
    is_own_network = isinstance(backbone, str) and not (is_built_in(backbone) or backbone.startswith(LIBRARIES))
    defaults = PLAIN_FILES if kind == "files" else OURS[kind]
    if is_plain:
        defaults = {key: value for key, value in defaults.items() if key != "select"}
    elif kind == "files" and not is_own_network:
        folder = None if changes.get("shard_network") else cache
        defaults = fine_tuning_defaults(model, samples=samples, cache=folder)
    elif kind == "text":
        defaults = text_defaults(samples=samples)
    tree = merge_trees(defaults, base or {})
    if kind == "features" and width is not None:
        dim = tree["model"]["dim"]
        tree["model"] = {**tree["model"], "dim": None if dim is None else min(dim, width)}
    if kind == "text" and model.get("dim") is not None:
        tree["model"] = {**tree["model"], "head": "linear"}  # the default head, identity, cannot change the dimension
    if is_own_network:
        tree["model"] = {**tree["model"], "pretrained": False}  # your own network comes with its weights
    if name is not None:
        setting, benchmark = changes.get("setting", "ours"), changes.get("benchmark")
        tree = merge_trees(tree, _from_recipe(str(name), None if shared else kind, setting, benchmark))
        tree["recipe"] = name
    loss = changes.get("loss")
    if isinstance(loss, Mapping) and "name" in loss and loss["name"] != tree.get("loss", {}).get("name"):
        tree["loss"] = {}  # options of the recipe's loss do not apply to another loss
    _drop_options_of_another(tree.get("loss", {}), loss, "uncertainty")
    batches = changes.get("batches")
    if isinstance(batches, Mapping):
        sampler = batches.get("name", tree.get("batches", {}).get("name", Batches.name))
        # options of the recipe's sampler do not apply to another sampler
        tree["batches"] = _readable(tree.get("batches", {}), sampler)
        if batches.get("size") is not None and "classes" not in batches:
            tree["batches"].pop("classes", None)  # an explicit size replaces the recipe's number of classes
        if shared:
            changes["batches"] = _readable(batches, sampler)
        else:
            _check_readable(batches, sampler)
    for one, other in (("epochs", "steps"), ("steps", "epochs")):
        if changes.get(one) is not None and changes.get(other) is None:
            tree.pop(other, None)
    return from_dict(merge_trees(tree, changes))


def from_dict(tree: Mapping[str, Any]) -> Config:
    """Build a configuration from nested dicts, such as the result of `Config.to_dict`, and check it."""
    tree = gather_losses(tree)
    if isinstance(tree, Mapping) and isinstance(tree.get("batches"), Mapping):
        tree = {**tree, "batches": _gather_options(tree["batches"])}
    config: Config = build(Config, tree, root=Config)
    check(config)
    return config


def gather_losses(tree: Mapping[str, Any]) -> dict[str, Any]:
    """If `loss` is a list of losses, return the tree with `loss` = {"name": "several", "losses": list}.

    Otherwise, return the tree unchanged.

    >>> gather_losses({"loss": [{"name": "supcon"}, {"name": "triplet", "weight": 2}]})["loss"]["name"]
    'several'
    """
    loss = tree.get("loss") if isinstance(tree, Mapping) else None
    if not isinstance(loss, list):
        return tree  # type: ignore[return-value]
    if not loss or not all(isinstance(part, Mapping) and part.get("name") for part in loss):
        raise NearfarError(f"loss must be a list of mappings, each with a name, got {loss!r}")
    return {**tree, "loss": {"name": SEVERAL, "losses": loss}}


def _options(sampler: Any) -> Iterable[str] | None:
    """Return the names of the settings that a sampler uses, or None if there is no such sampler."""
    known = isinstance(sampler, str) and sampler in samplers.names()
    return samplers.options(sampler) if known else None


def _readable(batches: Mapping[str, Any], sampler: Any) -> dict[str, Any]:
    """Return the settings in `batches` that the sampler uses, or all settings if there is no such sampler."""
    options = _options(sampler)
    return {k: v for k, v in batches.items() if options is None or k in ("name", "options") or k in options}


def _check_readable(batches: Mapping[str, Any], sampler: Any) -> None:
    for key in batches.keys() - _readable(batches, sampler).keys():
        readers = [name for name in samplers.names() if key in samplers.options(name)]
        if readers and batches[key] not in (None, getattr(Batches, key, None)):
            raise NearfarError(
                f"batches.{key}={batches[key]} applies only to batches.name={' or '.join(readers)}, but batches.name "
                f"is {sampler}: set batches.name={readers[0]}, or remove batches.{key}"
            )


def _gather_options(batches: Mapping[str, Any]) -> dict[str, Any]:
    """Move sampler options that the schema does not declare into `options`.

    A new sampler can therefore have its own options without a change to the schema.
    """
    known = {each.name for each in fields(Batches)}
    options = _options(batches.get("name", Batches.name)) or ()
    own = {key: value for key, value in batches.items() if key not in known and key in options}
    if not own or not isinstance(batches.get("options", {}), Mapping):
        return dict(batches)
    rest = {key: value for key, value in batches.items() if key not in own}
    return {**rest, "options": {**rest.get("options", {}), **own}}


def _from_recipe(name: str, kind: str | None, setting: str, benchmark: str | None) -> dict[str, Any]:
    """Return the part of a recipe that applies to this kind of data with these values of `setting` and `benchmark`.

    The section `ours` applies only if `setting` is "ours" and `kind` is not None.
    """
    if setting not in ("ours", "paper"):
        raise NearfarError(f"setting must be ours or paper, got {setting!r}")
    try:
        recipe = gather_losses(recipes.load(name, data=benchmark))
    except ValueError as error:
        raise NearfarError(str(error)) from None
    ours = {} if kind is None else recipe.get("ours", {}).get(kind, {})
    recipe = {key: value for key, value in recipe.items() if key not in recipes.ABOUT}
    if setting == "paper":
        return merge_trees(PAPER, recipe)
    recipe = {key: value for key, value in recipe.items() if key in recipes.METHOD}
    # with setting=ours, an epoch is one pass over the samples for every method
    recipe.get("batches", {}).pop("epoch", None)
    return merge_trees(recipe, ours)


def check(config: Config) -> None:
    """Raise a NearfarError for settings that do not fit together, before anything is loaded."""
    known = samplers.names()
    if config.batches.name not in known:
        raise NearfarError(
            f"batches.name must be one of {', '.join(known)}, got {config.batches.name!r}"
            f"{suggest(config.batches.name, known)}"
        )
    if config.epochs is None and config.steps is None:
        raise NearfarError("the length of the training is missing: set epochs or steps")
    if config.epochs is not None and config.steps is not None:
        raise NearfarError(f"set epochs or steps, not both, got epochs={config.epochs} and steps={config.steps}")
    folds, fold = config.data.folds, config.data.fold
    if fold is not None and (folds is None or fold >= folds):
        bound = f"must be below data.folds, which is {folds}" if folds else "needs data.folds, the number of folds"
        raise NearfarError(f"data.fold={fold} {bound}")
    if folds is not None and config.data.validation > 0:
        raise NearfarError(f"data.folds={folds} already holds out classes: set data.validation=0")
    if not config.loss.get("name"):
        raise NearfarError("no loss: choose a recipe (nearfar recipes) or set loss.name (nearfar losses)")
    if config.loss["name"] == SEVERAL and not isinstance(config.loss.get("losses"), list):
        raise NearfarError("loss.name=several needs a list of losses: set loss=[{name: A}, {name: B, weight: 0.5}]")
    try:
        expand_names(config.metrics, ks=(1,))
    except ValueError as error:
        raise NearfarError(str(error)) from None
    if config.cache.activations is not None and config.model.train_from is None:
        raise NearfarError("cache.activations needs frozen blocks: set model.train_from to the first block to train")
    if config.cache.activations is not None and config.model.mirror:
        raise NearfarError(
            "model.mirror=true does not work with cached activations, which have no mirror images: set "
            "cache.activations=null or model.mirror=false"
        )
    size = config.images.train_crop
    if size is not None and size > 1 and size % 1 != 0:
        raise NearfarError(f"images.train_crop must be a whole number of pixels or a fraction below 1, got {size}")
    if not all(0 < share < 1 for share in config.model.interpolate):
        raise NearfarError(
            f"model.interpolate must hold numbers above 0 and below 1, got {list(config.model.interpolate)}"
        )
    if config.schedule.name == "step" and config.schedule.every is None:
        raise NearfarError("schedule.name=step needs schedule.every: set it to a number of epochs")


def _drop_options_of_another(section: dict[str, Any], changes: Any, key: str) -> None:
    """Clear section[key] if `changes` replaces the name in it, because its other options belong to the old name."""
    before, after = (part.get(key) if isinstance(part, Mapping) else None for part in (section, changes))
    if (
        isinstance(before, Mapping)
        and isinstance(after, Mapping)
        and after.get("name", before["name"]) != before["name"]
    ):
        section[key] = {}
