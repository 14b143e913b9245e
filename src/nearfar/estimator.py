"""`MetricLearner`: a scikit-learn estimator that learns a linear embedding of vectors."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from nearfar.config.merge import resolve
from nearfar.data import Manifest
from nearfar.errors import NearfarError, install_hint
from nearfar.models.heads import Head
from nearfar.training.launch import train

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise NearfarError(f"MetricLearner needs scikit-learn 1.6 or later ({error}): {install_hint('sklearn')}") from None


class MetricLearner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learn a linear map that makes cosine distances small within each class and large between classes.

    The map is initialized with a half-whitened PCA of the data (see `nearfar.models.compute_half_whitened_pca`) and
    trained with a recipe of nearfar.

    Args:
        dim: Number of dimensions of the embeddings. None means 512. The dimension is capped at the number of features.
        recipe: Name of the recipe. `nearfar recipes` lists the names.
        steps: Number of training steps.
        batch_size: Number of vectors in a batch. None means the batch size of the recipe.
        lr: Learning rate.
        random_state: Seed for batches and initial weights.

    Attributes:
        components_: The matrix of the map, of shape [dim, n_features_in_].
        offset_: The vector that the map adds, of shape [dim].
        classes_: The distinct labels, sorted.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> MetricLearner(dim=2, steps=10).fit(X, y).transform(X).shape
    (150, 2)
    """

    def __init__(
        self,
        *,
        dim: int | None = None,
        recipe: str = "proxy-anchor",
        steps: int = 300,
        batch_size: int | None = None,
        lr: float = 1e-3,
        random_state: int = 0,
    ) -> None:
        self.dim, self.recipe, self.steps = dim, recipe, steps
        self.batch_size, self.lr, self.random_state = batch_size, lr, random_state

    def fit(self, X: Any, y: Any) -> MetricLearner:
        """Fit the linear map to vectors X [N, d] with labels y [N], and return the estimator."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y must have at least two classes, but it has 1 class")
        names = tuple(str(number) for number in range(len(self.classes_)))
        split = np.full(len(labels), "train")
        manifest = Manifest(labels=labels, classes=names, split=split, features=X.astype(np.float32), source="X")
        settings: dict[str, Any] = {
            "seed": int(self.random_state),
            "steps": self.steps,
            "test": False,
            "device": "cpu",
            "data": {"source": "X"},
            "optimizer": {"lr": self.lr},
        }
        if self.dim is not None:
            settings["model"] = {"dim": min(self.dim, X.shape[1])}
        if self.batch_size is not None:
            settings["batches"] = {"size": self.batch_size}
        try:
            config = resolve("features", width=X.shape[1], recipe=self.recipe, file=settings)
            state = torch.get_rng_state()
            with TemporaryDirectory() as folder:
                run = train(config, Path(folder) / "run", manifest=manifest, say=lambda _: None, progress=False)
                head = run.embedder().head
            torch.set_rng_state(state)
        except NearfarError as error:
            raise ValueError(str(error)) from None
        assert isinstance(head, Head)
        self.components_ = head.linear.weight.detach().double().numpy()
        self.offset_ = head.linear.bias.detach().double().numpy()
        return self

    def transform(self, X: Any) -> np.ndarray[Any, Any]:
        """Return the embeddings [N, dim] of vectors X [N, d]. They are not normalized."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        embeddings: np.ndarray[Any, Any] = X @ self.components_.T + self.offset_
        return embeddings

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
