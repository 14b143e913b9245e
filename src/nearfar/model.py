"""Model: a network with its preprocessing. A model can embed and score data, build a search index, and be shared.

A run directory is one kind of model (`nearfar.runs.Run`). The other kinds are a backbone given by its name, a directory
that `save_pretrained` wrote, and an index directory, which refers to the model that embedded its samples.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from nearfar.config.schema import Config
from nearfar.data import Manifest
from nearfar.data.layouts import embedded_names
from nearfar.data.python_dataset import Source, as_manifest
from nearfar.errors import NearfarError
from nearfar.metrics import Scores
from nearfar.metrics.names import expand_names
from nearfar.models import Embedder
from nearfar.training.embedder_file import digest_weights, truncate_embedder
from nearfar.training.evaluate import describe_missing_positives, device_of, embed, has_positives, score
from nearfar.training.input_kind import check_same_kind
from nearfar.training.prepare import Say, prepare
from nearfar.training.splits import open_manifest, split_manifest

M = TypeVar("M", bound="Model")


class Model(ABC):
    """A network with the configuration of its preprocessing and of its data.

    Attributes:
        path: Directory of the model, which also holds its index and cached results. For a backbone, its name.
        data: The data of the model if it is already open, otherwise None. A Python dataset has no path from which it
            could be opened again, so it is kept here.
        origin: How error messages describe the data of the model: "the run was trained on" or "was indexed".
    """

    path: Path
    data: Manifest | None = None
    origin = "the run was trained on"

    @property
    @abstractmethod
    def config(self) -> Config:
        """The configuration. Its sections `data` and `images` determine how samples are prepared."""

    @abstractmethod
    def embedder(self, *, device: str | torch.device = "auto") -> Embedder:
        """Load the network, in evaluation mode."""

    @property
    def method(self) -> str:
        """For a run, the name of its recipe, or of its loss if it has no recipe. Otherwise, the name of the model."""
        return self.path.name

    @property
    def index_folder(self) -> Path:
        """Folder of the search index."""
        return self.path / "index"

    @cached_property
    def digest(self) -> str:
        """The SHA-256 hash of the weights.

        An index can be searched only with the model that embedded its samples; this hash identifies that model.
        """
        return digest_weights(self.embedder())

    def results(self) -> dict[str, Any]:
        """Return the contents of scores.json, or an empty dict if the model is not a run."""
        return {}

    def log(self) -> list[dict[str, Any]]:
        """Return the entries of the training log. The list is empty if the model is not a run."""
        return []

    @property
    def finished(self) -> bool:
        """Whether the model is a run whose training is finished, so that its scores can be read."""
        return False

    def skip_broken(self: M) -> M:
        """Return a copy of this model with data.on_error=skip, which leaves out images that cannot be read."""
        data = replace(self.config.data, on_error="skip")
        return self.with_config(replace(self.config, data=data))

    def with_config(self: M, config: Config) -> M:
        """Return a copy of this model with another configuration."""
        other = copy.copy(self)
        other.__dict__["config"] = config
        return other

    def save_pretrained(self, folder: str | Path, *, license: str | None = None) -> Path:
        """Write the model to a folder that `nearfar.load` reads (see `nearfar.sharing.save_pretrained`)."""
        from nearfar.sharing import save_pretrained

        return save_pretrained(self, folder, license=license)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model to the Hugging Face Hub and return its address (see `nearfar.sharing.push_to_hub`)."""
        from nearfar.sharing import push_to_hub

        return push_to_hub(self, repo_id, **options)

    def manifest(self, source: Source | None = None) -> Manifest:
        """Open the data of the model, or another source: a path, a manifest or a Python dataset.

        A path is opened with the model's values of `data.on_error` and `data.workers`, and, for a table, of `data.text`
        and `data.label`. All other settings have their defaults.

        Raises:
            NearfarError: If the data of the model has changed since training or indexing.
        """
        data = self.config.data
        if source is None and self.data is not None:
            return self.data
        if source is not None and not isinstance(source, str | Path):
            return as_manifest(source)
        if source is not None:
            other = type(data)(source=str(source), on_error=data.on_error, workers=data.workers)
            data = replace(other, text=data.text, label=data.label) if _is_table(str(source)) else other
        manifest = open_manifest(data)
        if source is None and data.fingerprint and manifest.fingerprint != data.fingerprint:
            raise NearfarError(
                f"{data.source}: not the data that {self.origin}: files, classes or split have changed "
                f"(fingerprint {manifest.fingerprint[:12]}, expected {data.fingerprint[:12]}): restore the data, or "
                "pass other data"
            )
        return manifest

    def array_data(self) -> Manifest | None:
        """Return the data of the model if its images are arrays, or None otherwise.

        Query images are converted to the shape of these arrays, and to white on black if the arrays are drawings. Data
        in image files is not opened, because it is not needed for this and opening many files takes a long time.
        """
        source = self.config.data.source
        if self.data is None and source not in embedded_names() and not source.lower().endswith((".npz", ".npy")):
            return None
        manifest = self.manifest()
        return None if manifest.pixels is None else manifest

    def embed(self, manifest: Manifest, embedder: Embedder | None = None, *, device: str = "auto") -> Tensor:
        """Compute the embeddings [N, dim] of all samples of a manifest.

        Args:
            manifest: The samples. All image files must be readable.
            embedder: The network. By default, that of the model is loaded.
            device: Device to load the network onto. It is ignored if `embedder` is given.
        """
        network = embedder or self.embedder(device=device)
        check_same_kind(network, manifest, self.path)
        return embed(network, prepare(self.config, manifest, network, check_images=False).loader())

    def load_split(self, split: str, embedder: Embedder, *, source: Source | None = None, say: Say = print) -> Manifest:
        """Load the samples of a split and prepare them as in training, with the model's image cache and error handling.

        Args:
            split: train, val, test or all. For the data of a run, val contains the validation classes, and train
                excludes them and has the injected label noise.
            embedder: The network that the samples are prepared for.
            source: Data to load. By default, that of the model.
            say: Function that prints a message.
        """
        config, manifest = self.config, self.manifest(source)
        check_same_kind(embedder, manifest, self.path)
        is_named = split != "all"
        # prepare all samples before selecting the split: the cache holds all images, and the label noise and the
        # validation classes are drawn from all samples
        if source is None and (config.data.cache is not None or split in ("train", "val")):
            manifest = prepare(config, manifest, embedder, say=say).manifest
            if split in ("train", "val"):
                splits = split_manifest(manifest, config)
                part = splits.train if split == "train" else splits.validation
                if part is None:
                    raise NearfarError(f"{self.path}: the run has no validation classes: choose another split")
                return part
            return manifest.subset(split) if is_named else manifest
        return prepare(config, manifest.subset(split) if is_named else manifest, embedder, say=say).manifest

    def evaluate(
        self,
        source: Source | None = None,
        *,
        split: str = "test",
        metrics: Iterable[str] | None = None,
        device: str = "auto",
        truncate: int | None = None,
        say: Say = print,
    ) -> Scores:
        """Score the network on a split.

        Args:
            source: Data to score on. By default, that of the model.
            split: train, val, test or all.
            metrics: Names of metrics. By default, those of the configuration.
            device: Device of the network.
            truncate: Number of leading dimensions of the embeddings to keep. None keeps all.
            say: Function that prints a message.

        Raises:
            ValueError: If a metric is unknown.
            NearfarError: If the split cannot be scored, because no query has another sample of its class to find.
        """
        names = expand_names(self.config.metrics if metrics is None else metrics, ks=(1, 2, 4, 8))
        network = truncate_embedder(self.embedder(device=device), truncate)
        manifest = self.load_split(split, network, source=source, say=say)
        if not has_positives(manifest):
            raise NearfarError(
                f"{manifest.source or self.config.data.source}: there are no scores, because "
                f"{describe_missing_positives(manifest, split)}"
            )
        return score(self.embed(manifest, network), manifest, names, device=device_of(network))


def _is_table(source: str) -> bool:
    return source.lower().endswith((".csv", ".tsv", ".jsonl", ".ndjson"))
