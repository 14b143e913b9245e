"""Kinds of models besides runs: a backbone, a saved model and an index directory. `open_model` opens all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nearfar.config.model_settings import Model as ModelSettings
from nearfar.config.schema import Config, Data, Images
from nearfar.config.setting import build
from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.files import atomic, expand_user
from nearfar.model import Model
from nearfar.models import Embedder, create_embedder, names
from nearfar.models.backbones import has_public_weights, is_built_in
from nearfar.models.own_network import LIBRARIES, describe_origin, is_own_code
from nearfar.runs import Run
from nearfar.spelling import suggest
from nearfar.training.distributed.process_group import local_device
from nearfar.training.embedder_file import check_code, load_embedder
from nearfar.training.input_kind import count_channels

MODEL_FILE = "model.json"  # in an index directory: names the model that embedded the samples
SAVED_FILE = "config.json"  # in a directory that `save_pretrained` wrote: describes the model
WORKERS = 2


class BackboneModel(Model):
    """A backbone without a head and without further training. Its features are the embeddings.

    Args:
        backbone: The name of a backbone, or your own network.
        size: Side length of the input images in pixels. The default is that of the backbone.
        channels: Number of dimensions of the input vectors. The backbone "features" needs it.
    """

    origin = "was indexed"

    def __init__(self, backbone: str | nn.Module, *, size: int | None = None, channels: int | None = None) -> None:
        self.backbone, self.size, self.channels = backbone, size, channels
        name = backbone if isinstance(backbone, str) else describe_origin(backbone)
        if isinstance(backbone, str) and is_built_in(name) and name != "features" and not has_public_weights(name):
            raise NearfarError(f"the backbone {name!r} has no public weights: train a run with it, and use the run")
        self.path = Path(name)

    @cached_property
    def config(self) -> Config:
        """The default configuration, with the backbone as the model."""
        name = str(self.path) if isinstance(self.backbone, nn.Module) else self.backbone
        pretrained = isinstance(self.backbone, str) and has_public_weights(name)
        model = ModelSettings(backbone=name, head="identity", dim=None, pretrained=pretrained)
        return Config(model=model, images=Images(crop=self.size), data=Data(source="", workers=WORKERS))

    @cached_property
    def _embedder(self) -> Embedder:
        if self.backbone == "features" and self.channels is None:
            raise NearfarError(
                "the backbone 'features' takes its number of input dimensions from the data: use it with data that "
                "consists of vectors"
            )
        inputs = None if self.channels is None else "vectors"
        try:
            embedder = create_embedder(
                self.backbone,
                head="identity",
                pretrained=self.config.model.pretrained,
                input_size=self.size,
                channels=self.channels,
                inputs=inputs,
            )
        except (ValueError, RuntimeError) as error:
            raise NearfarError(f"model: {error}") from None
        return embedder.eval()

    def embedder(self, *, device: str | torch.device = "auto") -> Embedder:
        """Return the backbone, with its public weights if it has any. Your own network keeps its weights."""
        return self._embedder.to(local_device(str(device)))

    def for_data(self, manifest: Manifest) -> BackboneModel:
        """Return a model that accepts this data.

        If the data consists of vectors and `channels` is not set, this is a new model whose `channels` is the number of
        dimensions of the vectors. Otherwise it is this model.
        """
        if manifest.kind != "features" or self.channels is not None:
            return self
        return BackboneModel(self.backbone, size=self.size, channels=count_channels(manifest))


class SavedModel(Model):
    """A directory that `save_pretrained` wrote: config.json, model.safetensors and other files.

    Args:
        path: The directory.
        network: Your own network, needed if the model's network cannot be created from a name. The saved weights are
            loaded into a copy of it.
    """

    origin = "was indexed"

    def __init__(self, path: Path, network: nn.Module | None = None) -> None:
        self.path, self.network = path, network

    @cached_property
    def description(self) -> dict[str, Any]:
        """The contents of config.json."""
        return read_json(self.path / SAVED_FILE, "save the model again with save_pretrained")

    @cached_property
    def config(self) -> Config:
        """The configuration: images and network as in config.json, and defaults for the rest."""
        images = build(Images, self.description.get("images") or {}, "images")
        model = build(ModelSettings, self.description.get("model") or {}, "model")
        return Config(model=model, images=images, data=Data(source="", workers=WORKERS))

    def array_data(self) -> Manifest | None:
        """Return a manifest with one blank image of the shape that the model was trained on.

        Return None if the model was not trained on arrays.
        """
        arrays = self.description.get("arrays")
        if not isinstance(arrays, dict):
            return None
        # black for drawings, because `are_drawings` recognizes drawings by their dark background
        blank = np.full((1, *arrays["shape"]), 0 if arrays["drawings"] else 255, np.uint8)
        return Manifest(labels=np.zeros(1, np.int64), classes=("",), split=np.array(["test"]), pixels=blank)

    def embedder(self, *, device: str | torch.device = "auto") -> Embedder:
        """Load the network from model.safetensors. Nothing is unpickled."""
        path = self.path / "model.safetensors"
        if not path.is_file():
            pickled = next(
                iter(sorted([*self.path.glob("*.bin"), *self.path.glob("*.pt"), *self.path.glob("*.pth")])), None
            )
            reason = (
                ""
                if pickled is None
                else (
                    f"; {pickled.name} may run code when it is loaded, so it is not read: convert it with "
                    "safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'model.safetensors')"
                )
            )
            raise NearfarError(f"{self.path}: model.safetensors is missing{reason}")
        return load_embedder(path, self.network).to(local_device(str(device)))


class IndexModel(Model):
    """An index directory with the model that embedded its samples.

    Args:
        path: The index directory.
        model: The model that embedded the samples. By default, the model that model.json names is opened.
    """

    origin = "was indexed"

    def __init__(self, path: Path, model: Model | None = None) -> None:
        self.path = path
        about = read_json(path / MODEL_FILE, "build the index again with `nearfar index --model`")
        if not isinstance(about.get("model"), str) or not isinstance(about.get("data"), str):
            raise NearfarError(f"{path / MODEL_FILE}: the file does not name a model and data: build the index again")
        check_code(path, about["model"])
        self.about = about
        self.model = model or open_model(about["model"], size=about.get("size"), channels=about.get("channels"))

    @cached_property
    def config(self) -> Config:
        """The configuration of the model that embedded the samples, with the data of the index."""
        config = self.model.config
        data = Data(source=self.about["data"], workers=WORKERS, fingerprint=self.about.get("fingerprint"))
        return replace(config, data=data)

    @property
    def method(self) -> str:
        """The `method` of the model that embedded the samples."""
        return self.model.method

    @property
    def index_folder(self) -> Path:
        """The index directory itself."""
        return self.path

    def embedder(self, *, device: str | torch.device = "auto") -> Embedder:
        """Load the network of the model that embedded the samples."""
        return self.model.embedder(device=device)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 hash of the weights of the model that embedded the samples."""
        return self.model.digest


def write_index_model(folder: Path, model: Model, manifest: Manifest, source: str) -> None:
    """Write model.json, so that the index in `folder` can be searched without naming its model again."""
    path = expand_user(source)
    name = str(model.path.resolve()) if model.path.is_dir() else str(model.path)
    about = {
        "model": name,
        "size": getattr(model, "size", None),
        "channels": getattr(model, "channels", None),
        "data": str(path.resolve()) if path.exists() else source,
        "fingerprint": manifest.fingerprint,
    }
    with atomic(folder / MODEL_FILE) as draft:
        draft.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def open_model(
    source: Any, *, network: nn.Module | None = None, size: int | None = None, channels: int | None = None
) -> Model:
    """Open a model of any kind.

    Args:
        source: A run directory, a directory that `save_pretrained` wrote, an index directory with a model.json, a
            directory of a transformers model, the name of a backbone, "transformers:NAME_OR_DIRECTORY",
            "MODULE:FUNCTION", or an `nn.Module`. A `Model` is returned unchanged.
        network: Your own network, needed for a run or saved model whose network cannot be created from a name.
        size, channels: See `BackboneModel`.

    Raises:
        NearfarError: If there is no such model.
    """
    if isinstance(source, Model):
        return source
    if isinstance(source, nn.Module):
        return BackboneModel(source, size=size, channels=channels)
    path = expand_user(source)
    if path.is_dir():
        if (path / "config.yaml").is_file():
            return Run(path, network=network)
        if (path / MODEL_FILE).is_file():
            return IndexModel(path)
        if not (path / SAVED_FILE).is_file():
            raise NearfarError(
                f"{path}: not a run directory: config.yaml is missing; the directory is not an index or a saved model "
                "either"
            )
        if "nearfar" in read_json(path / SAVED_FILE, "pass a run, an index or a saved model"):
            return SavedModel(path, network)
        return BackboneModel(f"transformers:{path}", size=size)
    name = str(source)
    if name in names() or name.startswith(LIBRARIES) or is_own_code(name):
        return BackboneModel(name, size=size, channels=channels)
    raise NearfarError(
        f"{name}: no such run, saved model, index or backbone{suggest(name, names())} Backbones: {', '.join(names())}, "
        "transformers:NAME, MODULE:FUNCTION"
    )


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON file that contains an object, and return it as a dict.

    Raises:
        NearfarError: If the file is missing or damaged. The message ends with `remedy`.
    """
    try:
        tree = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NearfarError(f"{path.parent}: not a model: {path.name} is missing: {remedy}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise NearfarError(f"{path}: damaged ({error}): {remedy}") from None
    if not isinstance(tree, dict):
        raise NearfarError(f"{path}: the file must contain a JSON object: {remedy}")
    return tree
