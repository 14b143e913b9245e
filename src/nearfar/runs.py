"""Run directories: read back the configuration, the model, the log and the scores of a run.

config.yaml          all settings; training with this file reproduces the run
model.safetensors    the selected weights, with the settings of the embedder in the header
checkpoint/          the complete state of training, to resume from
log.jsonl            one JSON object per line
scores.json          scores on the test split, and how the epoch was selected
report.html          a report of the results
noise.json           the true labels, if label noise was injected
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearfar.config.merge import from_dict
from nearfar.config.schema import Config
from nearfar.config.tree import read_config
from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.files import path_exists
from nearfar.metrics import Scores
from nearfar.metrics.names import expand_names
from nearfar.models import Embedder, create_embedder
from nearfar.training.checkpoint import read_tensors, write_tensors
from nearfar.training.distributed.process_group import local_device
from nearfar.training.evaluate import embed, has_positives, score
from nearfar.training.log import read_log
from nearfar.training.prepare import Say, check_same_kind, prepare
from nearfar.training.splits import open_manifest, split_manifest

CHECKPOINT = Path("checkpoint") / "state.safetensors"
PREVIOUS = Path("checkpoint") / "previous.safetensors"
BEST = Path("checkpoint") / "best.safetensors"
START = Path("checkpoint") / "start.safetensors"


@dataclass(frozen=True)
class Run:
    """A run directory. It has its configuration from the start, and its model and scores once training is finished."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not path_exists(self.path / "config.yaml"):
            raise NearfarError(f"{self.path}: is not a run directory: config.yaml is missing")

    @cached_property
    def config(self) -> Config:
        """The configuration of the run."""
        return from_dict(read_config(self.path / "config.yaml"))

    def skip_broken(self) -> Run:
        """Return this run with data.on_error=skip, which leaves out images that cannot be read."""
        other, config = Run(self.path), self.config
        object.__setattr__(other, "config", replace(config, data=replace(config.data, on_error="skip")))
        return other

    @property
    def has_started(self) -> bool:
        """Whether the directory holds a result of training: a checkpoint, a model, or a step in the log.

        A run without any of these failed before its first step, so it can be started again with other settings.
        """
        files = (CHECKPOINT, PREVIOUS, Path("model.safetensors"), Path("scores.json"))
        return any((self.path / file).is_file() for file in files) or any(e["kind"] == "step" for e in self.log())

    @property
    def finished(self) -> bool:
        """Whether training is finished."""
        return (self.path / "scores.json").is_file()

    def log(self) -> list[dict[str, Any]]:
        """Return the entries of the log."""
        path = self.path / "log.jsonl"
        return read_log(path) if path.is_file() else []

    def results(self) -> dict[str, Any]:
        """Return the contents of scores.json."""
        path = self.path / "scores.json"
        if not path.is_file():
            raise NearfarError(
                f"{self.path}: has no scores because training is not finished: "
                f"run nearfar train --resume --out {self.path}"
            )
        try:
            results = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise NearfarError(
                f"{path}: is damaged ({error}): remove it and run nearfar train --resume --out {self.path}"
            ) from None
        if not isinstance(results, dict):
            raise NearfarError(
                f"{path}: does not hold scores: remove it and run nearfar train --resume --out {self.path}"
            )
        return results

    def embedder(self, *, device: str | torch.device = "cpu") -> Embedder:
        """Load the trained embedder, in evaluation mode."""
        path = self.path / "model.safetensors"
        if not path.is_file():
            raise NearfarError(
                f"{self.path}: has no model because training is not finished: "
                f"run nearfar train --resume --out {self.path}"
            )
        return load_embedder(path).to(local_device(str(device)))

    def manifest(self, source: str | Path | None = None) -> Manifest:
        """Open the data of the run, or another source.

        Another source is opened with the run's `data.on_error` and `data.workers`, and defaults for all other settings.

        Raises:
            NearfarError: If the data of the run has changed since training.
        """
        data = self.config.data
        if source is not None:
            data = type(data)(source=str(source), on_error=data.on_error, workers=data.workers)
        manifest = open_manifest(data)
        if source is None and data.fingerprint and manifest.fingerprint != data.fingerprint:
            raise NearfarError(
                f"{data.source}: is not the data that the run was trained on: files, classes or split have changed "
                f"(fingerprint {manifest.fingerprint[:12]}, expected {data.fingerprint[:12]})"
            )
        return manifest

    def embed(self, manifest: Manifest, embedder: Embedder | None = None, *, device: str = "cpu") -> Tensor:
        """Compute the embeddings [N, dim] of all samples of a manifest.

        Args:
            manifest: The samples. All image files must be readable.
            embedder: The network, by default the trained one.
            device: Device of the trained network if `embedder` is None.
        """
        network = embedder or self.embedder(device=device)
        check_same_kind(network, manifest, self.path)
        return embed(network, prepare(self.config, manifest, network, check_images=False).loader())

    def load_split(
        self, split: str, embedder: Embedder, *, source: str | Path | None = None, say: Say = print
    ) -> Manifest:
        """Load the samples of a split and prepare them as in training, with the run's image cache and error handling.

        Args:
            split: train, val, test or all. For the data of the run, val contains the validation classes, and train
                excludes them and has the injected label noise.
            embedder: The network that the samples are prepared for.
            source: Other data, by default that of the run.
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
        source: str | Path | None = None,
        *,
        split: str = "test",
        metrics: Iterable[str] | None = None,
        device: str = "cpu",
        say: Say = print,
    ) -> Scores:
        """Score the trained network on a split.

        Args:
            source: Other data, by default that of the run.
            split: train, val, test or all.
            metrics: Names of metrics, by default those of the run.
            device: Device of the network.
            say: Function that prints a message.

        Raises:
            ValueError: If a metric is unknown.
        """
        names = expand_names(self.config.metrics if metrics is None else metrics, ks=(1, 2, 4, 8))
        network = self.embedder(device=device)
        manifest = self.load_split(split, network, source=source, say=say)
        if not has_positives(manifest):
            raise NearfarError(
                f"{manifest.source or source or self.config.data.source}: there are no scores, because no two samples "
                f"of the split {split} have the same class"
            )
        return score(self.embed(manifest, network), manifest, names)


def save_embedder(
    embedder: Embedder, path: Path, about: dict[str, Any] | None = None, *, weights: dict[str, Tensor] | None = None
) -> None:
    """Save an embedder as a safetensors file that `load_embedder` reads.

    Args:
        embedder: The embedder. Its settings go into the header of the file.
        path: The file.
        about: More entries for the header.
        weights: Weights to save instead of those of the embedder, for an embedder that is sharded over processes.
    """
    tensors = embedder.state_dict() if weights is None else weights
    write_tensors(path, tensors, {"embedder": embedder.config | {"pretrained": False}, **(about or {})})


def load_embedder(path: Path) -> Embedder:
    """Load an embedder that `save_embedder` saved, in evaluation mode."""
    try:
        tensors, header = read_tensors(path)
        config = header["embedder"] | {"pretrained": False}
        _check_shapes(config, tensors)
        embedder = create_embedder(**config)
        embedder.load_state_dict(tensors)
    except Exception as error:  # a manipulated header can hold any name, type or size
        reason = str(error) or type(error).__name__
        raise NearfarError(f"{path}: is damaged, or is not a nearfar model ({reason})") from None
    embedder.eval()
    return embedder


def _check_shapes(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Check that the tensors have the shapes of the network that the header describes, without allocating it."""
    if ":" in config["backbone"]:
        return  # the backbone comes from another library, and the header does not determine its size
    with torch.device("meta"):
        expected = create_embedder(**config).state_dict()
    wrong = [name for name in {**expected, **tensors} if name not in expected or name not in tensors]
    wrong += [name for name, value in expected.items() if name in tensors and value.shape != tensors[name].shape]
    if wrong:
        raise ValueError(f"{len(wrong)} tensors do not match the header; the first is {wrong[0]}")
