"""The directory of a run, and what can be read back from it.

config.yaml          everything that decided the run; makes the same one again
model.safetensors    the chosen weights, with what makes the embedder in the header
checkpoint/          the whole state of training, to go on from
log.jsonl            a JSON object a line
scores.json          scores on the test split, and which epoch was chosen by what
report.html          the same to look at
noise.json           the truth, where labels were made wrong on purpose
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
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
from nearfar.metrics import Scores
from nearfar.models import Embedder, create_embedder
from nearfar.training.checkpoint import read_tensors, write_tensors
from nearfar.training.evaluate import embed, score
from nearfar.training.log import read_log
from nearfar.training.prepare import make_loader, open_manifest, readable, side_of, split_up

CHECKPOINT = Path("checkpoint") / "state.safetensors"
PREVIOUS = Path("checkpoint") / "previous.safetensors"
BEST = Path("checkpoint") / "best.safetensors"


@dataclass(frozen=True)
class Run:
    """A directory of a run that was started; not everything need be there yet."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not (self.path / "config.yaml").is_file():
            raise NearfarError(f"{self.path}: is no run, there is no config.yaml in it (nearfar train makes one)")

    @cached_property
    def config(self) -> Config:
        """The configuration."""
        return from_dict(read_config(self.path / "config.yaml"))

    @property
    def finished(self) -> bool:
        """Whether training went to its end."""
        return (self.path / "scores.json").is_file()

    def log(self) -> list[dict[str, Any]]:
        """The entries of the log."""
        path = self.path / "log.jsonl"
        return read_log(path) if path.is_file() else []

    def results(self) -> dict[str, Any]:
        """What scores.json holds."""
        path = self.path / "scores.json"
        if not path.is_file():
            raise NearfarError(
                f"{self.path}: has no scores yet, training is not finished: nearfar train --resume --out {self.path}"
            )
        try:
            results = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise NearfarError(
                f"{path}: is damaged ({error}): remove it, and nearfar train --resume --out {self.path}"
            ) from None
        if not isinstance(results, dict):
            raise NearfarError(
                f"{path}: is no table of scores: remove it, and nearfar train --resume --out {self.path}"
            )
        return results

    def embedder(self, *, device: str | torch.device = "cpu") -> Embedder:
        """The trained embedder, in evaluation mode."""
        path = self.path / "model.safetensors"
        if not path.is_file():
            raise NearfarError(
                f"{self.path}: has no model yet, training is not finished: nearfar train --resume --out {self.path}"
            )
        return load_embedder(path).to(device)

    def manifest(self, source: str | Path | None = None) -> Manifest:
        """The data of the run, or another source read the same way."""
        data = self.config.data
        if source is not None:
            data = type(data)(source=str(source), on_error=data.on_error, workers=data.workers)
        manifest = open_manifest(data)
        if source is None and data.fingerprint and manifest.fingerprint != data.fingerprint:
            raise NearfarError(
                f"{data.source}: is not what the run was trained on, its files, classes or split have changed "
                f"(fingerprint {manifest.fingerprint[:12]}, then {data.fingerprint[:12]})"
            )
        return manifest

    def embed(self, manifest: Manifest, embedder: Embedder | None = None, *, device: str = "cpu") -> Tensor:
        """Embeddings of all samples of a manifest, [N, dim]."""
        network = embedder or self.embedder(device=device)
        config = self.config
        side = side_of(config, network, manifest)
        loader = make_loader(manifest, config.images, network, side=side, seed=0, workers=config.data.workers)
        return embed(network, loader)

    def evaluate(
        self,
        source: str | Path | None = None,
        *,
        split: str = "test",
        metrics: Iterable[str] | None = None,
        device: str = "cpu",
    ) -> Scores:
        """Scores on a split of the run's data (or of another source; "all" takes every sample)."""
        manifest = self.manifest(source)
        network = self.embedder(device=device)
        if split != "all":
            if source is None and split in ("train", "val"):
                parts = split_up(manifest, self.config.data, seed=self.config.seed)
                chosen = parts.train if split == "train" else parts.validation
                if chosen is None:
                    raise NearfarError(f"{self.path}: the run held out no validation classes")
                manifest = chosen
            else:
                manifest = manifest.subset(split)
        side = side_of(self.config, network, manifest)
        manifest = readable(manifest, self.config.data, size=side or 224)
        return score(self.embed(manifest, network, device=device), manifest, metrics or self.config.metrics)


def save_embedder(
    embedder: Embedder, path: Path, about: dict[str, Any] | None = None, *, weights: dict[str, Tensor] | None = None
) -> None:
    """The weights as safetensors, with what `create_embedder` needs (and `about`) in the header.

    `weights`: in place of the embedder's own, where those are split over ranks.
    """
    tensors = embedder.state_dict() if weights is None else weights
    write_tensors(path, tensors, {"embedder": embedder.config | {"pretrained": False}, **(about or {})})


def load_embedder(path: Path) -> Embedder:
    """The embedder that `save_embedder` wrote, in evaluation mode."""
    try:
        tensors, header = read_tensors(path)
        config = header["embedder"] | {"pretrained": False}
        _check_shapes(config, tensors)
        embedder = create_embedder(**config)
        embedder.load_state_dict(tensors)
    except Exception as error:  # a header can ask for anything: names, types and sizes that are none
        why = str(error) or type(error).__name__
        raise NearfarError(f"{path}: is no model that nearfar wrote, or damaged ({why})") from None
    embedder.eval()
    return embedder


def _check_shapes(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """The network of a header has the shapes of the file; found without memory, of which it may ask too much."""
    if ":" in config["backbone"]:
        return  # of another library, whose models are on this machine in their size
    with torch.device("meta"):
        own = create_embedder(**config).state_dict()
    odd = [name for name in {**own, **tensors} if name not in own or name not in tensors]
    odd += [name for name, each in own.items() if name in tensors and each.shape != tensors[name].shape]
    if odd:
        raise ValueError(f"{len(odd)} of its tensors are not those of its header, the first is {odd[0]}")
