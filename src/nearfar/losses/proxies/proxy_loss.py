"""The base classes of proxy losses: trainable proxies, checked inputs, and parameter groups for the optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses.base import Loss, full_precision
from nearfar.losses.proxies.class_similarity import ClassSimilarities, cosines
from nearfar.ops.geometry import unit
from nearfar.validation import (
    Labels,
    as_label_tensor,
    as_labels,
    check_count,
    check_embeddings,
    check_labels,
    check_positive,
    check_weights,
)


class ProxyLoss(Loss):
    """Base class of losses that compare samples with trainable proxies of the classes.

    A subclass implements `cost`, a function of the similarities of samples and classes. The parameter `proxies` has the
    shape [C, d] or [C, K, d]. Embeddings and proxies are normalized in the loss.

    Args:
        classes: The number of classes, or their names. With names, labels may be names too. Without, labels must be
            class ids, because the names in a batch do not tell which proxy belongs to which name.
        dim: The dimension of the embeddings.
        per_class: The number of proxies per class, K. None is one proxy, stored as [C, d] instead of [C, 1, d].
        gain: Sets the initial standard deviation of the proxies to gain / sqrt(C K). By default it is 1.

    >>> from nearfar.losses import create
    >>> loss = create("proxy-anchor", classes=3, dim=4)
    >>> loss.proxies.shape
    torch.Size([3, 4])
    >>> loss(torch.eye(4), torch.tensor([0, 1, 2, 3]))
    Traceback (most recent call last):
    ...
    ValueError: labels must be in 0..2 because classes=3, got 0..3
    >>> create("proxy-anchor", classes=["cat", "dog"], dim=4)(torch.eye(4)[:2], ["dog", "cat"]).shape
    torch.Size([])
    """

    def __init__(
        self, classes: int | Sequence[str], dim: int, *, per_class: int | None = None, gain: float | None = None
    ) -> None:
        super().__init__()
        self.classes, self.class_names = count_classes(classes)
        if self.class_names is not None:
            self.classes_option = self.class_names
        self.dim, classes = check_count("dim", dim), self.classes
        shape = (classes, dim) if per_class is None else (classes, check_count("proxies_per_class", per_class), dim)
        # The initial length matters although the loss depends only on directions: a step rotates a long proxy less.
        std = 1.0 if gain is None else gain / math.sqrt(classes * (per_class or 1))
        self.proxies = nn.Parameter(torch.randn(shape) * std)

    def parameter_groups(self, lr: float, proxy_lr_multiplier: float = 100.0) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer.

        Args:
            lr: The learning rate of the network.
            proxy_lr_multiplier: The learning rate of the proxies as a multiple of `lr`; 100 is that of Proxy-Anchor,
                MPA and Proxy-ISA.

        >>> from nearfar.losses import create
        >>> loss, net = create("mpa", classes=3, dim=4), nn.Linear(8, 4)
        >>> adam = torch.optim.Adam([{"params": net.parameters()}, *loss.parameter_groups(1e-4)], lr=1e-4)
        >>> [group["lr"] for group in adam.param_groups]
        [0.0001, 0.01]
        """
        rate = check_positive("lr", lr) * check_positive("proxy_lr_multiplier", proxy_lr_multiplier)
        return [{"params": list(self.parameters()), "lr": rate}]

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels,
        *,
        ref_emb: Tensor | None = None,
        ref_labels: Labels | None = None,
        weights: Tensor | None = None,
        ref_weights: Tensor | None = None,
        representatives: int | None = None,
    ) -> Tensor:
        """Compute the loss.

        Half precision is computed in float32, with or without autocast, and float64 embeddings in float64, whatever the
        dtype of the proxies. A batch without anything to compare gives a differentiable 0.

        Args:
            embeddings: The embeddings [B, d]. They need not be normalized.
            labels: Class ids [B] from 0 to classes - 1, or class names if the loss was created with names.
            ref_emb: Not supported: the proxies are the references.
            ref_labels: Not supported.
            weights: Sample weights [B]. They multiply a sample's exponential inside a sum, or its term if the loss is a
                mean over samples; weight 0 removes the sample from the value and the gradient.
            ref_weights: Not supported.
            representatives: Accepted and ignored, so that PROFS can train with any loss.

        Returns:
            The loss, a scalar.
        """
        for name, value in (("ref_emb", ref_emb), ("ref_labels", ref_labels), ("ref_weights", ref_weights)):
            if value is not None:
                raise ValueError(f"{name} was given to a proxy loss, whose proxies are the references: remove {name}")
        sims = self.class_similarities(embeddings, labels, weights)
        with torch.autocast(sims.matrix.device.type, enabled=False):
            return self.cost(sims) + self.penalty(sims)

    def class_similarities(
        self, embeddings: Tensor, labels: Labels, weights: Tensor | None = None
    ) -> ClassSimilarities:
        """Check the inputs and compute the similarity of every sample and every class."""
        check_embeddings("embeddings", embeddings, dim=self.dim)
        labels = class_ids(labels, self.class_names, type(self).__name__).to(embeddings.device)
        check_labels("labels", labels, rows=len(embeddings), rows_name="embeddings")
        check_class_ids(labels, self.classes)
        if weights is not None:
            check_weights("weights", weights, rows=len(embeddings), rows_name="embeddings")
        emb = full_precision(embeddings)
        cast = None if weights is None else weights.detach().to(emb.dtype)
        with torch.autocast(emb.device.type, enabled=False):
            return self.compare(unit(emb), self.proxies.to(emb.dtype), labels.long(), cast)

    def compare(self, embeddings: Tensor, proxies: Tensor, labels: Tensor, weights: Tensor | None) -> ClassSimilarities:
        """Compute the class similarities of unit embeddings and unnormalized proxies.

        The default is the cosine; subclasses with several proxies per class override this method.
        """
        return ClassSimilarities(cosines(embeddings, proxies), labels, weights, embeddings)

    def cost(self, sims: ClassSimilarities) -> Tensor:
        """Compute the loss from the similarities, a scalar."""
        raise NotImplementedError

    def penalty(self, sims: ClassSimilarities) -> Tensor | float:
        """Compute the part of the loss that depends only on the proxies."""
        return 0.0


class DataWiseLoss(ProxyLoss):
    """Base class of proxy losses that are a mean over samples. A subclass implements `terms`."""

    def per_sample(self, embeddings: Tensor, labels: Labels, *, weights: Tensor | None = None) -> Tensor:
        """Compute the term of every sample, [B], multiplied by its weight if weights are passed.

        The loss is the sum of the terms over the sum of the weights, plus `penalty`.
        """
        sims = self.class_similarities(embeddings, labels, weights)
        with torch.autocast(sims.matrix.device.type, enabled=False):
            terms = self.terms(sims)
        return terms if sims.weights is None else terms * sims.weights

    def terms(self, sims: ClassSimilarities) -> Tensor:
        """Compute the term of every sample, [B]."""
        raise NotImplementedError

    def cost(self, sims: ClassSimilarities) -> Tensor:
        return sims.mean(self.terms(sims))


def count_classes(classes: int | Sequence[str]) -> tuple[int, list[str] | None]:
    """Return the number of classes and their names, or None if only the number is known."""
    if not isinstance(classes, int | str):
        names = list(classes)
        if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"classes must be a number or a list of different names, got {names!r}")
        return len(names), names
    return check_count("classes", classes), None  # type: ignore[arg-type]


def class_ids(labels: Labels, names: Sequence[str] | None, loss: str) -> Tensor:
    """Return labels as a tensor of class ids. Class names require `names`, the list passed as `classes`."""
    if isinstance(labels, Tensor):
        return labels
    if names is None and as_labels(labels).dtype.kind in "US":
        raise ValueError(f"labels are class names, but {loss} only knows class ids: create it with classes=[names]")
    return as_label_tensor(labels, class_names=names)


def check_class_ids(labels: Tensor, classes: int) -> None:
    """Check that labels are class ids [N] from 0 to classes - 1."""
    if labels.ndim != 1:
        raise ValueError(f"labels must be class ids [N], got shape {list(labels.shape)}")
    if not torch.compiler.is_compiling():
        low, high = (int(x) for x in labels.aminmax())
        if low < 0 or high >= classes:
            raise ValueError(f"labels must be in 0..{classes - 1} because classes={classes}, got {low}..{high}")
