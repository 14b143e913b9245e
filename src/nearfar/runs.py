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
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearfar.config.merge import from_dict
from nearfar.config.schema import Config
from nearfar.config.tree import read_config
from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.files import compute_sha256, path_exists
from nearfar.model import Model
from nearfar.models import Embedder
from nearfar.training.distributed.process_group import local_device
from nearfar.training.embedder_file import load_embedder as load_embedder
from nearfar.training.embedder_file import save_embedder as save_embedder
from nearfar.training.log import read_log

CHECKPOINT = Path("checkpoint") / "state.safetensors"
PREVIOUS = Path("checkpoint") / "previous.safetensors"
BEST = Path("checkpoint") / "best.safetensors"
START = Path("checkpoint") / "start.safetensors"


@dataclass(frozen=True)
class Run(Model):
    """A run directory. The configuration exists from the start; the model and scores once training is finished.

    Attributes:
        path: The directory.
        network: Your own network, needed if the run's network cannot be created from a name. The trained weights are
            loaded into a copy of it.
        data: The data of the run, if already opened.
    """

    path: Path
    network: nn.Module | None = field(default=None, compare=False, repr=False)
    data: Manifest | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not path_exists(self.path / "config.yaml"):
            raise NearfarError(f"{self.path}: not a run directory: config.yaml is missing")

    @cached_property
    def config(self) -> Config:
        """The configuration of the run."""
        return from_dict(read_config(self.path / "config.yaml"))

    @property
    def method(self) -> str:
        """The name of the recipe, or of the loss if there is no recipe."""
        return self.config.recipe or self.config.loss_name

    @cached_property
    def digest(self) -> str:
        """The SHA-256 hash of model.safetensors."""
        return compute_sha256(self.path / "model.safetensors")

    @property
    def has_started(self) -> bool:
        """Whether the directory holds a result of training: a checkpoint, a model, or a step in the log.

        A run without any of these has not completed a step, so it can be started again with other settings.
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
                f"{self.path}: there are no scores, because training is not finished: "
                f"run nearfar train --resume --out {self.path}"
            )
        try:
            results = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise NearfarError(
                f"{path}: damaged ({error}): remove it and run nearfar train --resume --out {self.path}"
            ) from None
        if not isinstance(results, dict):
            raise NearfarError(
                f"{path}: the file does not contain scores: remove it and run nearfar train --resume --out {self.path}"
            )
        return results

    def embedder(self, *, device: str | torch.device = "auto") -> Embedder:
        """Load the trained embedder, in evaluation mode. By default, it is loaded onto a CUDA GPU if there is one."""
        path = self.path / "model.safetensors"
        if not path.is_file():
            raise NearfarError(
                f"{self.path}: there is no model, because training is not finished: "
                f"run nearfar train --resume --out {self.path}"
            )
        return load_embedder(path, self.network).to(local_device(str(device)))
