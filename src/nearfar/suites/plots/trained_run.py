"""Embeddings and proxies of a run at its last training step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nearfar.data import Manifest
from nearfar.ops.geometry import unit
from nearfar.runs import CHECKPOINT
from nearfar.training import Run
from nearfar.training.checkpoint import load_state


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A split of a run's data with its embeddings.

    Attributes:
        title: Recipe, dataset and split.
        data: The samples.
        embeddings: Their unit embeddings, [N, d].
        proxies: Unit proxies of the classes, [C, K, d]; None if the loss has none or the split is not "train".
    """

    title: str
    data: Manifest
    embeddings: Tensor
    proxies: Tensor | None


def load_trained_run(path: Path, split: str = "train") -> TrainedRun:
    """Load a run's checkpoint and embed a split with it.

    Network and proxies both come from the last training step, so that they belong together.
    """
    run = Run(path)
    state, config = load_state(path / CHECKPOINT), run.config
    network = run.embedder()
    network.load_state_dict(state["embedder"])
    data = run.load_split(split, network)
    proxies = state["loss"].get("proxies") if split == "train" else None
    if proxies is not None:
        rows = unit(proxies.float().reshape(-1, proxies.shape[-1]))
        proxies = rows.reshape(len(data.classes), -1, rows.shape[1])
    title = f"{config.recipe or config.loss['name']}, {Path(config.data.source).stem}, {split}"
    return TrainedRun(title, data, unit(run.embed(data, network)), proxies)
