"""Load the embeddings and proxies of a run at its last training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.ops.geometry import unit
from nearfar.runs import CHECKPOINT
from nearfar.training import Run
from nearfar.training.checkpoint import load_state


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A split of a run's data with the embeddings of its samples, and the proxies of the run.

    Attributes:
        path: The run directory.
        method: The recipe, or the loss of a run without a recipe.
        source: Names of the dataset and of the split.
        data: The samples.
        embeddings: Normalized embeddings of the N samples, of shape [N, d].
        proxies: K normalized proxies for each of the C classes, of shape [C, K, d]. None if the loss has no proxies or
            the split is not "train".
    """

    path: Path
    method: str
    source: str
    data: Manifest
    embeddings: Tensor
    proxies: Tensor | None


def load_trained_run(path: Path, split: str = "train") -> TrainedRun:
    """Load a run's checkpoint and embed a split with it.

    Both the network and the proxies are those of the last training step, so that they match.
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
    method, source = config.recipe or config.loss_name, f"{Path(config.data.source).stem}, {split}"
    return TrainedRun(path, method, source, data, unit(run.embed(data, network)), proxies)


def load_comparable_runs(paths: Sequence[Path], split: str = "train") -> list[TrainedRun]:
    """Load runs whose splits have the same samples, so that the same samples can be drawn for all runs.

    Raises:
        NearfarError: If the samples or labels of two runs differ.
    """
    runs = [load_trained_run(path, split) for path in paths]
    first = runs[0]
    for run in runs[1:]:
        is_same = run.data.classes == first.data.classes and np.array_equal(run.data.labels, first.data.labels)
        if not is_same or run.data.paths != first.data.paths:
            raise NearfarError(
                f"{run.path}: its {split} split has different samples or labels than that of {first.path}: "
                "compare runs with the same data and the same data.validation"
            )
    return runs


def name_panels(runs: Sequence[TrainedRun]) -> list[str]:
    """Return a title for each run: its method. If several runs have the same method, add the name of the directory."""
    methods = [run.method for run in runs]
    return [
        run.method if methods.count(run.method) == 1 else f"{run.method} ({run.path.resolve().name})" for run in runs
    ]
