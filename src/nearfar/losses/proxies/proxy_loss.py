"""What all proxy losses share: the trainable proxies, checking what arrives, and the learning rate of the proxies."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses.base import Loss, full_precision
from nearfar.losses.proxies.class_similarity import ClassSimilarities, cosines
from nearfar.ops.geometry import unit
from nearfar.validation import check_count, check_embeddings, check_labels, check_positive, check_weights


class ProxyLoss(Loss):
    """A loss over ties of samples and trainable class representatives; a subclass says what the ties cost.

    Called as `loss(embeddings [B, d], labels [B], weights=)` with labels in range(classes); `representatives` is
    accepted and ignored, references are an error because the proxies are the references. `proxies` [C, d] (or
    [C, K, d]) is a parameter of any length: rows and proxies are normalized in the loss. `weights` multiply a sample's
    exponential inside a sum, or where the loss is a mean over samples, its term; weight 0 is removal, in value and
    gradient. A batch with nothing to compare gives 0 with a graph. Half precision is computed in float32, autocast or
    not; float64 embeddings in float64, whatever the proxies are stored in.

    >>> from nearfar.losses import create
    >>> loss = create("proxy-anchor", classes=3, dim=4)
    >>> loss.proxies.shape
    torch.Size([3, 4])
    >>> loss(torch.eye(4), torch.tensor([0, 1, 2, 3]))
    Traceback (most recent call last):
    ...
    ValueError: labels must be in range(3) (classes), got 0..3
    """

    def __init__(self, classes: int, dim: int, *, per_class: int | None = None, gain: float | None = None) -> None:
        super().__init__()
        self.classes, self.dim = check_count("classes", classes), check_count("dim", dim)
        shape = (classes, dim) if per_class is None else (classes, check_count("proxies_per_class", per_class), dim)
        # only directions enter the loss, but an optimizer's step turns a long proxy less than a short one
        std = 1.0 if gain is None else gain / math.sqrt(classes * (per_class or 1))
        self.proxies = nn.Parameter(torch.randn(shape) * std)

    def parameter_groups(self, lr: float, proxy_lr_multiplier: float = 100.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer: the proxies, at `proxy_lr_multiplier` times the network's learning rate.

        100 is Proxy-Anchor's, MPA's and Proxy-ISA's.

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
        labels: Tensor,
        *,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        weights: Tensor | None = None,
        ref_weights: Tensor | None = None,
        representatives: int | None = None,
    ) -> Tensor:
        for name, value in (("ref_emb", ref_emb), ("ref_labels", ref_labels), ("ref_weights", ref_weights)):
            if value is not None:
                raise ValueError(f"{name} was given to a proxy loss, whose proxies are the references: leave it out")
        sims = self.class_similarities(embeddings, labels, weights)
        with torch.autocast(sims.matrix.device.type, enabled=False):
            return self.cost(sims) + self.penalty(sims)

    def class_similarities(
        self, embeddings: Tensor, labels: Tensor, weights: Tensor | None = None
    ) -> ClassSimilarities:
        """Check what arrives, and tie every sample to every class."""
        check_embeddings("embeddings", embeddings, dim=self.dim)
        check_labels("labels", labels, rows=len(embeddings), rows_name="embeddings")
        check_class_ids(labels, self.classes)
        if weights is not None:
            check_weights("weights", weights, rows=len(embeddings), rows_name="embeddings")
        emb = full_precision(embeddings)
        each = None if weights is None else weights.detach().to(emb.dtype)
        with torch.autocast(emb.device.type, enabled=False):
            return self.compare(unit(emb), self.proxies.to(emb.dtype), labels.long(), each)

    def compare(self, rows: Tensor, proxies: Tensor, labels: Tensor, weights: Tensor | None) -> ClassSimilarities:
        """The ties of unit rows and raw proxies: cosines, unless a subclass has several proxies a class."""
        return ClassSimilarities(cosines(rows, proxies), labels, weights, rows)

    def cost(self, sims: ClassSimilarities) -> Tensor:
        """What the ties cost."""
        raise NotImplementedError

    def penalty(self, sims: ClassSimilarities) -> Tensor | float:
        """What is added to the cost and depends on the proxies alone."""
        return 0.0


class DataWiseLoss(ProxyLoss):
    """A proxy loss that is a mean over samples; a subclass gives their `terms`."""

    def per_sample(self, embeddings: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """The term of every sample [B], times its weight where given.

        The loss is their sum over the sum of the weights, plus the penalty of the proxies where it has one.
        """
        sims = self.class_similarities(embeddings, labels, weights)
        with torch.autocast(sims.matrix.device.type, enabled=False):
            terms = self.terms(sims)
        return terms if sims.weights is None else terms * sims.weights

    def terms(self, sims: ClassSimilarities) -> Tensor:
        """The term of every sample, [B]."""
        raise NotImplementedError

    def cost(self, sims: ClassSimilarities) -> Tensor:
        return sims.mean(self.terms(sims))


def check_class_ids(labels: Tensor, classes: int) -> None:
    """[N] class ids in range(classes)."""
    if labels.ndim != 1:
        raise ValueError(f"labels of a proxy loss must be class ids [N], got shape {list(labels.shape)}")
    if not torch.compiler.is_compiling():
        low, high = (int(x) for x in labels.aminmax())
        if low < 0 or high >= classes:
            raise ValueError(f"labels must be in range({classes}) (classes), got {low}..{high}")
