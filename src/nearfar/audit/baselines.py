"""Baselines for the audit: simple scores that are high for labels that are probably wrong."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from nearfar.ops.geometry import unit
from nearfar.pacing.objective import WeightProblem
from nearfar.pacing.xi import hardness
from nearfar.validation import Floats


def loss_ranking(embeddings: Tensor, labels: Tensor) -> Floats:
    """Return the multi-similarity loss of each sample with all other samples, [N].

    The loss is computed as in BSPML (balanced self-paced metric learning), with weight 1 for every sample.
    """
    pos, neg = hardness(embeddings, labels)
    problem = WeightProblem.of(pos.cpu().numpy(), neg.cpu().numpy(), labels.cpu().numpy(), age=0.0, mu=0.0)
    return problem.hardness(np.ones(len(labels)))


def knn_vote(embeddings: Tensor, labels: Tensor, *, k: int = 20) -> Floats:
    """Return the fraction of each sample's k nearest neighbors that have another label."""
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
    """Return 1 minus the label quality that cleanlab computes (Northcutt et al., 2021).

    cleanlab gets the class probabilities of a cross-validated logistic regression. The function needs the packages
    cleanlab and scikit-learn. The labels of C classes must be 0..C-1, and every fold must contain samples of every
    class.
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
