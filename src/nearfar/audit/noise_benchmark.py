"""`nearfar bench audit`: measure how well the audit and its baselines find injected label noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.audit.baselines import confident_learning, knn_vote, loss_ranking
from nearfar.audit.ranking import audit
from nearfar.data import Manifest, add_label_noise, open_data
from nearfar.errors import NearfarError
from nearfar.formatting import markdown_table
from nearfar.metrics.detection import measure_detection, precision_at
from nearfar.pacing.objective import Floats

Detection = tuple[float, float, float]
BASELINES: dict[str, Callable[[Tensor, Tensor], Floats]] = {
    "kNN vote, k=20": knn_vote,
    "loss ranking": loss_ranking,
    "cleanlab": confident_learning,
}


def load_vectors(manifest: Manifest) -> Tensor:
    """Return the features of a dataset. For drawings, return the pixels, downsampled by a factor of 2."""
    if manifest.features is not None:
        return torch.tensor(np.asarray(manifest.features, np.float32))
    if manifest.pixels is None or manifest.pixels.ndim != 3:
        raise NearfarError(f"{manifest.source}: the benchmark needs features or gray drawings in an .npz file")
    return torch.nn.functional.avg_pool2d(torch.tensor(manifest.pixels[:, None]).float(), 2).flatten(1)


def compute_scores(x: Tensor, labels: Tensor, names: list[str]) -> dict[str, Floats]:
    """Return the scores of the audit, of its self-paced part alone, of its class centers alone, and of the baselines.

    The result maps names to scores [N]. `names` are the baselines to compute.
    """
    result = audit(x, labels)
    ours = {
        "audit": result.score,
        "only the self-paced weights": 1 - result.weight,
        "only the class centers": result.similarity[:, 1] - result.similarity[:, 0],
    }
    return ours | {name: BASELINES[name](x, labels) for name in names}


def _detection_of(score: Floats, wrong: NDArray[np.bool_]) -> Detection:
    """Measure how well scores detect wrong labels.

    Return the AUROC, the precision among the 100 highest scores, and the precision among as many of the highest scores
    as there are wrong labels.
    """
    detection = measure_detection(score, wrong)
    return detection["auroc"], precision_at(score, wrong, min(100, len(wrong))), detection["precision"]


def measure(manifest: Manifest, *, rate: float, seeds: int, names: list[str]) -> dict[str, list[Detection]]:
    """Inject label noise into all samples with several seeds, and measure how well each score finds the wrong labels.

    Args:
        manifest: The samples with clean labels.
        rate: Fraction of wrong labels.
        seeds: Number of noise seeds.
        names: The baselines to measure.

    Returns:
        A dict that maps the name of each score to one measurement per seed.
    """
    clean = replace(manifest.compact(), split=np.full(len(manifest), "train"))
    x = load_vectors(clean)
    detections: dict[str, list[Detection]] = {}
    for seed in range(seeds):
        noisy, record = add_label_noise(clean, rate, seed=seed)
        labels = torch.tensor(noisy.labels)
        for name, score in compute_scores(x, labels, names).items():
            detections.setdefault(name, []).append(_detection_of(score, record.wrong))
    return detections


def make_noise_table(
    source: str,
    *,
    split: str = "train",
    rate: float = 0.2,
    seeds: int = 5,
    classes: int | None = None,
) -> str:
    """Return a Markdown table that compares the audit with its baselines. cleanlab is included if it is installed.

    Args:
        source: A dataset of features or drawings.
        split: The split to use.
        rate: Fraction of wrong labels.
        seeds: Number of noise seeds.
        classes: Number of classes to use, counted from the first. By default, all classes are used.
    """
    data = open_data(source).subset(split)
    if classes:
        data = data.subset(data.labels < classes)
    names = [name for name in BASELINES if name != "cleanlab" or find_spec("cleanlab") is not None]
    detections = measure(data, rate=rate, seeds=seeds, names=names)
    header = [
        f"rate {rate:g}, {seeds} seeds, mean ± sd",
        "AUROC",
        "precision at 100",
        "precision at the number of wrong labels",
    ]
    rows = []
    for name, values in detections.items():
        mean, spread = np.mean(values, axis=0), np.std(values, axis=0, ddof=min(1, seeds - 1))
        rows.append([name, *[f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, spread, strict=True)]])
    return f"{markdown_table(header, rows)}\n\n{_describe_cutoff(data, rate=rate, seeds=seeds)}"


def measure_cutoff(manifest: Manifest, *, rate: float, seeds: int) -> list[tuple[float, float, float]]:
    """Return the fraction of labels that the audit calls wrong, its precision and its recall, once per noise seed."""
    clean = replace(manifest.compact(), split=np.full(len(manifest), "train"))
    x, results = load_vectors(clean), []
    for seed in range(seeds):
        noisy, record = add_label_noise(clean, rate, seed=seed)
        flagged = audit(x, torch.tensor(noisy.labels)).flagged
        found = int((flagged & record.wrong).sum())
        results.append((float(flagged.mean()), found / max(1, int(flagged.sum())), found / int(record.wrong.sum())))
    return results


def _describe_cutoff(manifest: Manifest, *, rate: float, seeds: int) -> str:
    flagged, precision, recall = np.mean(measure_cutoff(manifest, rate=rate, seeds=seeds), axis=0)
    return (
        f"At its cut-off, the audit calls {flagged:.1%} of the labels probably wrong: precision {precision:.3f}, "
        f"recall {recall:.3f} (means over the seeds)."
    )
