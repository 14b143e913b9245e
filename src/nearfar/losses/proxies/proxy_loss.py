"""The base classes of proxy losses. They hold the proxies, check the inputs and compute the class similarities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearfar.host_reads import should_check_values
from nearfar.losses.base import Loss, full_precision
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.cosines import cosines
from nearfar.ops.precision import without_autocast
from nearfar.validation import (
    Labels,
    as_label_tensor,
    as_labels,
    as_signed_ids,
    check_count,
    check_embeddings,
    check_labels,
    check_positive,
    check_weights,
)


class ProxyLoss(Loss):
    """Base class of losses that compare samples with trainable proxies of the classes.

    A subclass implements `cost`, which computes the loss from the similarities of samples and classes. The parameter
    `proxies` has the shape [C, d] for C classes, or [C, K, d] for K proxies per class. The loss normalizes embeddings
    and proxies.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names or class ids. Without
            names, labels must be class ids, because the loss cannot know which proxy belongs to which name.
        dim: The dimension of the embeddings, d.
        per_class: The number of proxies per class, K. None means one proxy per class, stored as [C, d] instead of
            [C, 1, d].
        gain: The proxies are initialized from a normal distribution with standard deviation gain / sqrt(C K), or 1 if
            gain is None.

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

    multi_hot: ClassVar[bool] = False  # whether the loss takes multi-hot labels [B, C]

    def __init__(
        self, classes: int | Sequence[str], dim: int, *, per_class: int | None = None, gain: float | None = None
    ) -> None:
        super().__init__()
        self.classes, self.class_names = count_classes(classes)
        if self.class_names is not None:
            self.classes_option = self.class_names
        self.dim, classes = check_count("dim", dim), self.classes
        shape = (classes, dim) if per_class is None else (classes, check_count("proxies_per_class", per_class), dim)
        # The loss depends only on the directions of the proxies. Their initial norms matter nevertheless: the larger
        # the norm of a proxy, the less an optimizer step changes its direction.
        std = 1.0 if gain is None else gain / math.sqrt(classes * (per_class or 1))
        self.proxies = nn.Parameter(torch.randn(shape) * std)

    def parameter_groups(self, lr: float, proxy_lr_multiplier: float = 100.0) -> list[dict[str, Any]]:
        """Return the parameters of the loss as one parameter group for an optimizer, with their own learning rate.

        Args:
            lr: The learning rate of the network.
            proxy_lr_multiplier: The learning rate of the proxies as a multiple of `lr`. The default is that of
                Proxy-Anchor, MPA and Proxy-ISA.

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
        labels: Labels | None = None,
        *,
        relation: object = None,
        ref_emb: Tensor | None = None,
        ref_labels: Labels | None = None,
        weights: Tensor | None = None,
        ref_weights: Tensor | None = None,
        representatives: int | None = None,
    ) -> Tensor:
        """Compute the loss.

        Half-precision embeddings are converted to float32, even under autocast. float64 embeddings stay in float64. The
        proxies are converted to the same dtype. If there is nothing to compare, for example because all weights are 0,
        the value of `cost` is 0 and backward() still works.

        Args:
            embeddings: The embeddings [B, d]. They need not be normalized.
            labels: Class ids [B] from 0 to classes - 1, or class names if the loss was created with names.
                `proxy-anchor` also takes multi-hot labels [B, C].
            relation: Not supported: the classes of samples must be known.
            ref_emb: Not supported: samples are compared with proxies only.
            ref_labels: Not supported.
            weights: Sample weights [B]. If the loss is a mean over samples, the mean is weighted. Otherwise the weight
                of a sample multiplies its exponentials. Weight 0 removes a sample from the value and the gradient.
            ref_weights: Not supported.
            representatives: Ignored. It is accepted so that the PROFS sampler works with any loss.

        Returns:
            The loss, a scalar tensor.
        """
        if relation is not None:
            raise ValueError(
                "relation is not supported: proxy losses need class labels; pass labels instead, or use a pair loss"
            )
        if labels is None:
            raise ValueError("labels is missing: pass class ids, or class names if the loss was created with names")
        for name, value in (("ref_emb", ref_emb), ("ref_labels", ref_labels), ("ref_weights", ref_weights)):
            if value is not None:
                raise ValueError(
                    f"{name} is not supported: proxy losses compare samples only with proxies; remove {name}"
                )
        emb, ids, cast = self.checked_inputs(embeddings, labels, weights)
        with without_autocast(emb.device.type):
            return self.value(emb, self.proxies.to(emb.dtype), ids, cast)

    def value(self, embeddings: Tensor, proxies: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Compute the loss from checked inputs. The arguments are those of `compare`."""
        sims = self.compare(embeddings, proxies, labels, weights)
        cost, penalty = self.cost(sims), self.penalty(sims)
        return cost + penalty if penalty is not None else cost

    def class_similarities(
        self, embeddings: Tensor, labels: Labels, weights: Tensor | None = None
    ) -> ClassSimilarities:
        """Check the inputs and compute the similarity of every sample and every class."""
        emb, ids, cast = self.checked_inputs(embeddings, labels, weights)
        with without_autocast(emb.device.type):
            return self.compare(emb, self.proxies.to(emb.dtype), ids, cast)

    def checked_inputs(
        self, embeddings: Tensor, labels: Labels, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Check the inputs. Return the embeddings in full precision, the labels as int64, and the cast weights."""
        check_embeddings("embeddings", embeddings, dim=self.dim)
        labels = class_ids(labels, self.class_names, type(self).__name__)
        check_labels("labels", labels, rows=len(embeddings), rows_name="embeddings")
        # Check before the copy: reading values from a GPU is slow.
        check_class_ids(labels, self.classes, multi_hot=self.multi_hot)
        labels = labels.to(embeddings.device, non_blocking=True)
        if weights is not None:
            check_weights("weights", weights, rows=len(embeddings), rows_name="embeddings")
        emb = full_precision(embeddings)
        cast = None if weights is None else weights.detach().to(emb.device, emb.dtype, non_blocking=True)
        return emb, labels.long(), cast

    def compare(self, embeddings: Tensor, proxies: Tensor, labels: Tensor, weights: Tensor | None) -> ClassSimilarities:
        """Compute the class similarities from embeddings and proxies that are not normalized.

        The default is the cosine. Subclasses with several proxies per class override this method.
        """
        return ClassSimilarities(cosines(embeddings, proxies, normalize=True), labels, weights, embeddings)

    def cost(self, sims: ClassSimilarities) -> Tensor:
        """Compute the loss from the similarities. Return a scalar."""
        raise NotImplementedError

    def penalty(self, sims: ClassSimilarities) -> Tensor | None:
        """Compute the term of the loss that depends on the proxies but not on the samples, such as a regularizer.

        It can be computed from `sims.gram`, the cosines between the proxies of each class. None means that the loss has
        no such term.
        """
        return None


class DataWiseLoss(ProxyLoss):
    """Base class of proxy losses that are a mean over samples. A subclass implements `terms` instead of `cost`."""

    def per_sample(self, embeddings: Tensor, labels: Labels, *, weights: Tensor | None = None) -> Tensor:
        """Compute the loss of every sample, [B], multiplied by its weight if weights are passed.

        The loss of the batch is the sum of these values divided by the sum of the weights, plus `penalty`.
        """
        sims = self.class_similarities(embeddings, labels, weights)
        with without_autocast(sims.matrix.device.type):
            terms = self.terms(sims)
        return terms if sims.weights is None else terms * sims.weights

    def terms(self, sims: ClassSimilarities) -> Tensor:
        """Compute the loss of every sample without its weight. The result has shape [B]."""
        raise NotImplementedError

    def cost(self, sims: ClassSimilarities) -> Tensor:
        return sims.mean(self.terms(sims))


def count_classes(classes: int | Sequence[str]) -> tuple[int, list[str] | None]:
    """Return the number of classes, and the list of their names or None if `classes` is a number."""
    if not isinstance(classes, int | str):
        names = list(classes)
        if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"classes must be a number or a list of different names, got {names!r}")
        return len(names), names
    return check_count("classes", classes), None  # type: ignore[arg-type]


def class_ids(labels: Labels, names: Sequence[str] | None, loss: str) -> Tensor:
    """Convert labels to a tensor of class ids.

    Args:
        labels: Class ids or class names [B].
        names: The class names in the order of their ids, or None if labels must be class ids.
        loss: The name of the loss for error messages.
    """
    if isinstance(labels, Tensor):
        return as_signed_ids(labels)
    if names is None and as_labels(labels).dtype.kind in "US":
        raise ValueError(
            f"labels are class names, but {loss} was created without names: pass class ids, or create the loss with "
            "classes=[names]"
        )
    return as_label_tensor(labels, class_names=names)


def check_class_ids(labels: Tensor, classes: int, *, multi_hot: bool = False) -> None:
    """Check that labels are class ids [N] from 0 to classes - 1 or, with `multi_hot`, multi-hot labels [N, classes]."""
    if labels.ndim == 2 and multi_hot:
        if labels.shape[1] != classes:
            raise ValueError(f"labels must have shape [N, {classes}] if multi-hot, got shape {list(labels.shape)}")
        return
    if labels.ndim != 1:
        raise ValueError(
            f"labels must be class ids of shape [N], got shape {list(labels.shape)}: this loss needs one label per "
            "sample; for several labels per sample, use proxy-anchor or a pair loss such as supcon"
        )
    if should_check_values(labels):
        low, high = (int(x) for x in labels.aminmax())
        if low < 0 or high >= classes:
            raise ValueError(f"labels must be in 0..{classes - 1} because classes={classes}, got {low}..{high}")
