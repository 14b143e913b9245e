"""The metrics of the AccuracyCalculator that compare labels with clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

CLUSTERING = ("AMI", "NMI")


def clustering_score(name: str, labels: Tensor, clusters: Any) -> float:
    """Compute the mutual information of labels and clusters: name="nmi" for normalized, name="ami" for adjusted."""
    from sklearn import metrics  # imported here because the import takes a second

    function = {"nmi": metrics.normalized_mutual_info_score, "ami": metrics.adjusted_mutual_info_score}[name]
    arrays = [x.cpu().numpy() if isinstance(x, Tensor) else np.asarray(x) for x in (labels, clusters)]
    return float(function(*arrays))
