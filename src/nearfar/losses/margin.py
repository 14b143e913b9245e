"""Margin loss: a trainable boundary between positive and negative distances."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nearfar.host_reads import should_check_values
from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.losses.proxies.proxy_loss import class_ids, count_classes
from nearfar.mining import closest_negatives
from nearfar.ops.geometry import negative_distance_matrix
from nearfar.ops.pairs import Pairs, ratio
from nearfar.validation import Labels, check_choice, check_not_negative


def boundary_hinges(dist: Tensor, same: Tensor, beta: Tensor | float, delta: float) -> Tensor:
    """Compute [D - beta + delta]_+ for positives and [beta + delta - D]_+ for negatives, where D is the distance."""
    past = dist - beta
    return (torch.where(same, past, -past) + delta).relu()


@register("margin")
class MarginLoss(PairLoss):
    """Margin loss (Wu et al., ICCV 2017; PROFS, arXiv 1907.07585, Eq. 3.3), on unit vectors.

    The loss is the mean over all pairs of [D - beta + delta]_+ for positives and [beta + delta - D]_+ for negatives,
    where D is the Euclidean distance and the boundary beta is a trainable parameter. In a batch from the PROFS sampler
    (`nearfar.samplers.Profs`), each class representative uses only its closest negatives, as many as it has positives.

    Args:
        beta: The initial boundary. The default is from Wu et al.
        delta: The margin. The default is from Wu et al.
        average: "all" divides by the number of pairs (PROFS), "nonzero" by the number of non-zero terms (Wu et al.).
        trainable: Whether beta is trained.
        classes: If given, each class has its own beta, and a pair uses the beta of its anchor's class. Pass the number
            of classes, or a list of class names; with names, labels may be names too. None uses one beta for all.
        nu: Weight of the regularizer of Wu et al., the mean of beta over the anchors. 0 turns it off.

    >>> loss = MarginLoss()
    >>> loss(torch.eye(3), torch.tensor([0, 0, 1]))  # all distances are sqrt(2)
    tensor(0.1381, grad_fn=<DivBackward0>)
    """

    def __init__(
        self,
        *,
        beta: float = 1.2,
        delta: float = 0.2,
        average: str = "all",
        trainable: bool = True,
        classes: int | Sequence[str] | None = None,
        nu: float = 0.0,
    ) -> None:
        super().__init__()
        self.classes: int | None = None
        self.class_names: list[str] | None = None
        if classes is not None:
            self.classes, self.class_names = count_classes(classes)
        self.classes_option = self.class_names or self.classes
        self.delta = check_not_negative("delta", delta)
        self.beta_option, self.nu, self.trainable = beta, nu, trainable
        self.average = check_choice("average", average, ("all", "nonzero"))
        # Store beta in float64, so that float64 embeddings use it without float32 rounding.
        self.beta = nn.Parameter(torch.full((self.classes or 1,), beta, dtype=torch.float64), requires_grad=trainable)

    def check_relation(self, *, weighted: bool) -> None:
        if self.classes is not None:
            raise ValueError(
                f"relation cannot be used with {self}, which needs class labels: pass labels, or create the loss "
                "without classes"
            )

    def label_tensors(
        self, labels: Labels, ref_labels: Labels | None, device: torch.device | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.classes is None:
            return super().label_tensors(labels, ref_labels, device)
        name = type(self).__name__
        ids = None if ref_labels is None else class_ids(ref_labels, self.class_names, name).to(device)
        return class_ids(labels, self.class_names, name).to(device), ids

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return negative_distance_matrix(x, y)

    def anchor_beta(self, labels: Tensor) -> Tensor:
        """Return beta for every anchor [A], or [1] if all classes share one beta."""
        if self.classes is None:
            return self.beta
        if labels.ndim != 1:
            raise ValueError(
                "labels must be class ids of shape [N] if MarginLoss is created with classes, "
                f"got shape {list(labels.shape)}"
            )
        if should_check_values(labels) and (labels.min() < 0 or labels.max() >= self.classes):
            raise ValueError(
                f"labels must be in 0..{self.classes - 1} because classes={self.classes}, "
                f"got {int(labels.min())}..{int(labels.max())}"
            )
        return self.beta[labels.long()]

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if batch.representatives:
            pairs = closest_negatives(pairs)
        beta = self.anchor_beta(batch.labels).to(pairs.sim.dtype)
        losses = boundary_hinges(-pairs.sim, pairs.same, beta[:, None], self.delta)
        value = pairs.mean(losses)
        if self.average == "nonzero":
            # Dividing the mean over all pairs by the fraction of non-zero terms gives the mean over those terms.
            value = ratio(value, pairs.mean((losses.detach() > 0).to(losses.dtype)))
        if self.nu:
            value = value + self.nu * pairs.anchor_mean(beta.expand(len(batch.emb)))
        return value
