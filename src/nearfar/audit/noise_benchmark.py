"""How well the audit finds wrong labels that were put there: `nearfar bench audit DATA`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.audit.ranking import audit
from nearfar.data import Manifest, add_label_noise, open_data
from nearfar.errors import NearfarError
from nearfar.formatting import markdown_table
from nearfar.metrics.detection import confident_learning, judged, knn_vote, loss_ranking, precision_at
from nearfar.pacing.objective import Floats

Score = tuple[float, float, float]
BASELINES: dict[str, Callable[[Tensor, Tensor], Floats]] = {
    "kNN vote, k=20": knn_vote,
    "loss ranking": loss_ranking,
    "cleanlab": confident_learning,
}


def vectors(manifest: Manifest) -> Tensor:
    """The features, or the pixels blurred to half their size."""
    if manifest.features is not None:
        return torch.tensor(np.asarray(manifest.features, np.float32))
    if manifest.pixels is None or manifest.pixels.ndim != 3:
        raise NearfarError(f"{manifest.source}: features or drawings are needed, as .npz")
    return torch.nn.functional.avg_pool2d(torch.tensor(manifest.pixels[:, None]).float(), 2).flatten(1)


def scores(x: Tensor, labels: Tensor, names: list[str]) -> dict[str, Floats]:
    """The audit's score, two of its witnesses alone, and the named baselines."""
    found = audit(x, labels)
    ours = {
        "audit": found.score,
        "its self-paced weights alone": 1 - found.weight,
        "its center margin alone": found.similarity[:, 1] - found.similarity[:, 0],
    }
    return ours | {name: BASELINES[name](x, labels) for name in names}


def _three(score: Floats, wrong: NDArray[np.bool_]) -> Score:
    """AUROC, precision at 100 and at the true number of wrong labels."""
    all_of_them = judged(score, wrong)
    return all_of_them["auroc"], precision_at(score, wrong, min(100, len(wrong))), all_of_them["precision"]


def measure(manifest: Manifest, *, rate: float, seeds: int, names: list[str]) -> dict[str, list[Score]]:
    """What each score is judged on each draw of the noise, which is put into all rows."""
    clean = replace(manifest.compact(), split=np.full(len(manifest), "train"))
    x = vectors(clean)
    found: dict[str, list[Score]] = {}
    for seed in range(seeds):
        noisy, record = add_label_noise(clean, rate, seed=seed)
        labels = torch.tensor(noisy.labels)
        for name, score in scores(x, labels, names).items():
            found.setdefault(name, []).append(_three(score, record.wrong))
    return found


def measured_table(
    source: str,
    *,
    split: str = "train",
    rate: float = 0.2,
    seeds: int = 5,
    classes: int | None = None,
) -> str:
    """The audit beside its baselines on data, as Markdown; cleanlab where it is installed. classes: the first ones."""
    data = open_data(source).subset(split)
    if classes:
        data = data.subset(data.labels < classes)
    names = [name for name in BASELINES if name != "cleanlab" or find_spec("cleanlab") is not None]
    found = measure(data, rate=rate, seeds=seeds, names=names)
    header = [f"rate {rate:g}, {seeds} seeds, mean ± sd", "AUROC", "precision at 100", "at the true number"]
    rows = []
    for name, values in found.items():
        mean, spread = np.mean(values, axis=0), np.std(values, axis=0, ddof=min(1, seeds - 1))
        rows.append([name, *[f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread, strict=True)]])
    return markdown_table(header, rows)
