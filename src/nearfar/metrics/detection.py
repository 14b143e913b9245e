"""How well a score finds wrong labels, and the simple scores to beat."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from nearfar.ops.geometry import unit
from nearfar.pacing.objective import Floats, WeightProblem
from nearfar.pacing.xi import hardness


def precision_at(score: ArrayLike, wrong: ArrayLike, count: int) -> float:
    """The share of truly wrong labels among the `count` highest scores; ties by row.

    >>> precision_at([0.9, 0.1, 0.8, 0.7], [True, False, False, True], 2)
    0.5
    """
    values, truth = _pair(score, wrong)
    if not 1 <= count <= len(values):
        raise ValueError(f"count must be in 1..{len(values)}, got {count}")
    return float(truth[np.argsort(-values, kind="stable")[:count]].mean())


def auroc(score: ArrayLike, wrong: ArrayLike) -> float:
    """The probability that a wrong label scores higher than a right one, ties half.

    >>> auroc([0.9, 0.1, 0.8, 0.7], [True, False, False, True])
    0.75
    """
    values, truth = _pair(score, wrong)
    many, few = int(truth.sum()), int((~truth).sum())
    if not many or not few:
        raise ValueError(f"wrong must hold both kinds, got {many} wrong and {few} right labels")
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((rank[truth].sum() - many * (many + 1) / 2) / (many * few))


def judged(score: ArrayLike, wrong: ArrayLike) -> dict[str, float]:
    """AUROC, and the precision among as many samples as there are wrong labels.

    >>> judged([0.9, 0.1, 0.8, 0.7], [True, False, False, True])
    {'auroc': 0.75, 'precision': 0.5}
    """
    return {"auroc": auroc(score, wrong), "precision": precision_at(score, wrong, int(np.sum(wrong)))}


def _pair(score: ArrayLike, wrong: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    values, truth = np.asarray(score, np.float64), np.asarray(wrong, np.bool_)
    if values.shape != truth.shape or values.ndim != 1:
        raise ValueError(f"score and wrong must both be [N], got {list(values.shape)} and {list(truth.shape)}")
    return values, truth


def loss_ranking(embeddings: Tensor, labels: Tensor) -> Floats:
    """Baseline: the multi-similarity hardness of every sample among all others (G_p + G_n of BSPML at weights 1)."""
    pos, neg = hardness(embeddings, labels)
    problem = WeightProblem.of(pos.cpu().numpy(), neg.cpu().numpy(), labels.cpu().numpy(), age=0.0, mu=0.0)
    return problem.hardness(np.ones(len(labels)))


def knn_vote(embeddings: Tensor, labels: Tensor, *, k: int = 20) -> Floats:
    """Baseline: the share of the k nearest others that have another label."""
    x = unit(embeddings.float())
    scores = []
    for start in range(0, len(x), 1024):
        sim = x[start : start + 1024] @ x.T
        line = torch.arange(len(sim), device=x.device)
        sim[line, line + start] = -torch.inf
        nearest = sim.topk(min(k, len(x) - 1), dim=1).indices
        scores.append((labels[nearest] != labels[start : start + 1024, None]).double().mean(1))
    result: Floats = torch.cat(scores).cpu().numpy()
    return result


def confident_learning(embeddings: Tensor, labels: Tensor, *, folds: int = 3) -> Floats:
    """Baseline: 1 - cleanlab's label quality (Northcutt et al., 2021), from a logistic regression cross-validated.

    Needs the packages cleanlab and scikit-learn; labels must be 0..C-1, each in every fold.
    """
    try:
        rank = import_module("cleanlab.rank")
        model = import_module("sklearn.linear_model").LogisticRegression(max_iter=200, C=10.0)
        predict = import_module("sklearn.model_selection").cross_val_predict
    except ImportError as error:
        raise ImportError(f"confident_learning needs {error.name}: pip install cleanlab scikit-learn") from error
    x, y = unit(embeddings.float()).numpy(), labels.numpy()
    probabilities = predict(model, x, y, cv=folds, method="predict_proba")
    result: Floats = 1 - np.asarray(rank.get_label_quality_scores(y, probabilities), np.float64)
    return result
