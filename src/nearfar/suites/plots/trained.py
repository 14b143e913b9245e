"""What a run's network makes of its data at the end of training, and the proxies of its loss."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.ops.geometry import unit
from nearfar.runs import CHECKPOINT
from nearfar.training import Run
from nearfar.training.checkpoint import load_state
from nearfar.training.prepare import readable, side_of, split_up


@dataclass(frozen=True, eq=False)
class Trained:
    """Samples, their unit embeddings [N, d], and the unit proxies [C, K, d] of their classes, if there are any."""

    title: str
    data: Manifest
    embeddings: Tensor
    proxies: Tensor | None


def trained(path: Path, split: str = "train") -> Trained:
    """A run's split. Network and proxies are those of the last step, which belong together; proxies are of `train`."""
    run = Run(path)
    state, config = load_state(path / CHECKPOINT), run.config
    network = run.embedder()
    network.load_state_dict(state["embedder"])
    manifest = run.manifest()
    side = side_of(config, network, manifest) or network.input_size
    parts = split_up(readable(manifest, config.data, size=side), config.data, seed=config.seed)
    data = {"train": parts.train, "val": parts.validation, "test": parts.test}.get(split)
    if data is None:
        raise NearfarError(f"{path}: the run has no split {split!r}, choose train, val or test")
    proxies = state["loss"].get("proxies") if split == "train" else None
    if proxies is not None:
        rows = unit(proxies.float().reshape(-1, proxies.shape[-1]))
        proxies = rows.reshape(len(data.classes), -1, rows.shape[1])
    title = f"{config.recipe or config.loss['name']}, {Path(config.data.source).stem}, {split}"
    return Trained(title, data, unit(run.embed(data, network)), proxies)
