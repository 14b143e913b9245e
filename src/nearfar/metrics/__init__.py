"""Retrieval and clustering metrics for embeddings, exact by default and computed in bounded memory."""

from nearfar.metrics.clustering import adjusted_mutual_info, normalized_mutual_info, pairwise_f1
from nearfar.metrics.comparison import Difference
from nearfar.metrics.evaluation import evaluate
from nearfar.metrics.scores import Scores

__all__ = [
    "Difference",
    "Scores",
    "adjusted_mutual_info",
    "evaluate",
    "normalized_mutual_info",
    "pairwise_f1",
]
