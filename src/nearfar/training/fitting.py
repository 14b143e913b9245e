"""`fit`: train a network on data in one call, as `nearfar train` does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, overload

from torch import nn

from nearfar.config.keys import SHORT_KEYS
from nearfar.config.merge import gather_losses, resolve
from nearfar.config.schema import Config, Data
from nearfar.config.setting import build
from nearfar.config.tree import merge_trees
from nearfar.data import Manifest
from nearfar.data.layouts import PYTHON
from nearfar.data.python_dataset import Source, as_manifest
from nearfar.errors import NearfarError
from nearfar.files import path_exists
from nearfar.formatting import slug
from nearfar.model import Model
from nearfar.models import Backbone, Embedder, create
from nearfar.models.own_network import describe_origin
from nearfar.runs import Run
from nearfar.training.image_text import ImageTextModel, fit_image_text
from nearfar.training.input_kind import count_channels
from nearfar.training.launch import train
from nearfar.training.pair_settings import choose_for_pairs
from nearfar.training.splits import open_manifest

DEFAULT_RECIPE = "proxy-anchor"
Network = str | nn.Module | Model | None


@overload
def fit(model: tuple[str | nn.Module, str | nn.Module], data: Source, **settings: Any) -> ImageTextModel: ...


@overload
def fit(
    model: Network,
    data: Source,
    *,
    recipe: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    say: Callable[[str], object] = print,
    **settings: Any,
) -> Run: ...


def fit(
    model: Network | tuple[str | nn.Module, str | nn.Module],
    data: Source,
    *,
    recipe: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    say: Callable[[str], object] = print,
    **settings: Any,
) -> Run | ImageTextModel:
    """Train a network on data and return the run, which gives access to the scores and the trained model.

    Args:
        model: The network: the name of a backbone, any `nn.Module`, an embedder from `nearfar.models.create_embedder`,
            a run or another model to start from, or None for the default for this kind of data. An `nn.Module` is
            trained in place. If it outputs vectors, they are the embeddings, and no head is added unless you set `dim`
            or model={"head": ...}. A pair (image encoder, text encoder) is trained on pairs of images and texts. In
            this case, the settings are those of `nearfar.training.image_text.fit_image_text`, and an `ImageTextModel`
            is returned instead of a run.
        data: A path, a dataset or arrays (see `nearfar.data.as_manifest`).
        recipe: Name of the recipe. The default is `proxy-anchor` for data with classes, and `supcon` for data with
            pairs. If you set loss={"name": ...}, the default is no recipe.
        out: The run directory, by default a new one in `runs`. A pair of encoders is saved only if `out` is set.
        resume: If True, continue the run in `out`.
        progress: If True, show progress: a bar in a terminal, elsewhere a message every 30 seconds.
        say: Function that prints a message.
        settings: Any settings that `nearfar settings` lists: epochs=5, a section as a dict (optimizer={"lr": 1e-4}), a
            dotted key (**{"optimizer.lr": 1e-4}), or one of the short names `lr`, `batch_size`, `backbone`, `size` and
            `dim`.

    Raises:
        NearfarError: If a setting is unknown or invalid, or the data does not fit the network.

    >>> from torch import nn
    >>> import tempfile
    >>> x, labels = [[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.1]] * 2, [0, 0, 1, 1, 2, 2, 3, 3]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = fit(nn.Linear(2, 2), (x, labels), out=folder + "/run", steps=2, say=lambda _: None)
    ...     sorted(run.results()["test"])
    ['map@r', 'r-precision', 'recall@1', 'recall@2', 'recall@4', 'recall@8']
    """
    if isinstance(model, tuple):
        return _fit_pairs(model, data, recipe=recipe, resume=resume, out=out, progress=progress, say=say, **settings)
    config, manifest, network = configure(model, data, recipe=recipe, **settings)
    name = config.recipe or config.loss_name
    stem = Path(config.data.source.removeprefix(PYTHON)).stem
    folder = _new_folder(slug(f"{stem}-{name}")) if out is None else Path(out)
    return train(config, folder, manifest=manifest, network=network, resume=resume, say=say, progress=progress)


def _fit_pairs(
    model: tuple[Any, ...], data: Source, *, recipe: str | None, resume: bool, **settings: Any
) -> ImageTextModel:
    if len(model) != 2:
        raise NearfarError(f"model must be a pair (image encoder, text encoder), got a tuple of length {len(model)}")
    known = [name for name in inspect.signature(fit_image_text).parameters if name not in ("image", "text", "data")]
    given = {"recipe": recipe is not None, "resume": resume}
    unknown = [name for name, is_given in given.items() if is_given] + [name for name in settings if name not in known]
    if unknown:
        raise NearfarError(
            f"fit of (image encoder, text encoder) does not support {unknown[0]!r}: its settings are {', '.join(known)}"
        )
    return fit_image_text(*model, data, **settings)


def configure(
    model: Network, data: Source, *, recipe: str | None = None, **settings: Any
) -> tuple[Config, Manifest, nn.Module | None]:
    """Return the configuration, data and network that `fit` uses, for example to create a `nearfar.Trainer` with hooks.

    The arguments are those of `fit`. The returned network is None if `model` is None or a name, because the
    configuration then names the network.
    """
    tree = expand_settings(settings)
    if isinstance(data, str | Path):
        section = {**tree.get("data", {}), "source": str(data)}
        tree = merge_trees(tree, {"data": section})
        manifest = open_manifest(build(Data, section, "data"))
    else:
        columns = {key: tree.get("data", {}).get(key) for key in ("image", "text", "label")}
        manifest = as_manifest(data, **columns, split=tree.get("data", {}).get("split", "auto"))
        # Mark the source as Python data. The manifest may hold only a part of the source that it names, so a run must
        # not open that source again.
        tree = merge_trees(tree, {"data": {"source": f"{PYTHON}{manifest.source.removeprefix(PYTHON)}"}})
    tree, recipe = choose_for_pairs(gather_losses(tree), manifest, recipe)
    network, base = _choose_network(model, manifest, tree)
    if recipe is None and not tree.get("recipe") and not tree.get("loss", {}).get("name"):
        recipe = DEFAULT_RECIPE
    width = None if manifest.features is None else int(manifest.features.shape[1])
    kind = "files" if manifest.kind == "tensors" else manifest.kind
    if manifest.items is not None and not manifest.items.files:
        base = merge_trees({"data": {"workers": 0}}, base)  # a Python dataset may fail in worker processes
    samples = len(manifest.rows("train"))
    return resolve(kind, width=width, samples=samples, recipe=recipe, file=tree, base=base), manifest, network


def expand_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as nested dicts, with short names and dotted keys replaced by their sections.

    >>> expand_settings({"lr": 0.1, "loss.alpha": 16, "epochs": 2})
    {'optimizer': {'lr': 0.1}, 'loss': {'alpha': 16}, 'epochs': 2}
    """
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        *sections, key = SHORT_KEYS.get(name, name).split(".")
        branch: Any = {key: value}
        for section in reversed(sections):
            branch = {section: branch}
        tree = merge_trees(tree, branch)
    return tree


def _choose_network(
    model: Network, manifest: Manifest, tree: dict[str, Any]
) -> tuple[nn.Module | None, dict[str, Any]]:
    """Return the network (None if the configuration names it) and the settings that follow from the network."""
    if model is None:
        return None, {}
    if isinstance(model, str):
        return None, {"model": {"backbone": model}}
    if isinstance(model, Model):
        model = model.embedder()
    if isinstance(model, Embedder):
        known = Config().to_dict()["model"].keys()
        parts = {key: value for key, value in model.config.items() if key in known}
        # the head already has its weights; init=kaiming prevents its initialization from the data
        return model, {"model": {**parts, "init": "kaiming"}, "images": {"crop": model.config.get("input_size")}}
    if not isinstance(model, nn.Module):
        raise NearfarError(
            f"model must be the name of a backbone, an nn.Module, an embedder or a run, got {type(model).__name__}"
        )
    try:
        backbone: Backbone = create(
            model,
            channels=count_channels(manifest),
            input_size=tree.get("images", {}).get("crop"),
            inputs="vectors" if manifest.kind == "features" else "images",
        )
    except ValueError as error:
        raise NearfarError(f"model: {error}") from None
    base: dict[str, Any] = {"backbone": describe_origin(model), "pretrained": False, "freeze_bn": False}
    if not backbone.has_map_output and not {"dim", "head"} & tree.get("model", {}).keys():
        base |= {"head": "identity", "dim": None}
    return backbone, {"model": base}


def _new_folder(name: str) -> Path:
    """Return the first of runs/NAME, runs/NAME-2, runs/NAME-3, ... that does not exist."""
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(folder for folder in (Path("runs") / name for name in names) if not path_exists(folder))
