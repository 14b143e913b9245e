"""Margin loss: a trainable boundary between positive and negative distances."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfar.losses.base import register
from nearfar.losses.pair_loss import PairBatch, PairLoss
from nearfar.mining import closest_negatives
from nearfar.ops.geometry import unit_distance_matrix
from nearfar.ops.pairs import Pairs, ratio
from nearfar.validation import check_choice


def boundary_hinges(dist: Tensor, same: Tensor, beta: Tensor | float, delta: float) -> Tensor:
    """[D - beta + delta]_+ for the same kind, [beta + delta - D]_+ for different kinds, elementwise."""
    past = dist - beta
    return (torch.where(same, past, -past) + delta).relu()


@register("margin")
class MarginLoss(PairLoss):
    """Margin loss (Wu et al., ICCV 2017; PROFS, arXiv 1907.07585, Eq. 3.3), on unit vectors.

    Mean over all pairs of y [D - beta + delta]_+ + (1-y) [beta + delta - D]_+, with beta trainable.

    average="all" divides by the number of pairs (PROFS, default), "nonzero" by the number of non-zero terms (Wu et
    al.). beta=1.2, delta=0.2 are Wu's. `classes=C` trains one beta for each class, taken by the anchor's label. `nu`
    adds nu x (mean over anchors of beta), Wu's regularizer (0: off). `trainable=False` keeps beta fixed.
    With `representatives` each representative has as many negatives, its closest, as positives (PROFS).

    >>> loss = MarginLoss()
    >>> loss(torch.eye(3), torch.tensor([0, 0, 1]))  # all distances are sqrt(2), the one positive pair is too far apart
    tensor(0.1381, grad_fn=<DivBackward0>)
    """

    def __init__(
        self,
        *,
        beta: float = 1.2,
        delta: float = 0.2,
        average: str = "all",
        trainable: bool = True,
        classes: int | None = None,
        nu: float = 0.0,
    ) -> None:
        super().__init__()
        if classes is not None and classes < 1:
            raise ValueError(f"classes must be at least 1 (or None for one common beta), got {classes}")
        self.beta_option, self.delta, self.classes, self.nu, self.trainable = (
            beta,
            delta,
            classes,
            nu,
            trainable,
        )
        self.average = check_choice("average", average, ("all", "nonzero"))
        # in float64, so that 1.2 is 1.2 for float64 embeddings too; it is a handful of numbers
        self.beta = nn.Parameter(torch.full((classes or 1,), beta, dtype=torch.float64), requires_grad=trainable)

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return -unit_distance_matrix(x, y)

    def anchor_beta(self, labels: Tensor) -> Tensor:
        """beta of every anchor, [A] or [1]."""
        if self.classes is None:
            return self.beta
        if labels.ndim != 1:
            raise ValueError(
                f"labels must be class ids [N] for a margin loss with classes, got shape {list(labels.shape)}"
            )
        if not torch.compiler.is_compiling() and (labels.min() < 0 or labels.max() >= self.classes):
            raise ValueError(
                f"labels must be in range({self.classes}) (classes), got {int(labels.min())}..{int(labels.max())}"
            )
        return self.beta[labels.long()]

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if batch.representatives:
            pairs = closest_negatives(pairs)
        beta = self.anchor_beta(batch.labels).to(pairs.sim.dtype)
        losses = boundary_hinges(-pairs.sim, pairs.same, beta[:, None], self.delta)
        value = pairs.mean(losses)
        if self.average == "nonzero":
            # the same sum over the share of pairs that is not zero
            value = ratio(value, pairs.mean((losses.detach() > 0).to(losses.dtype)))
        if self.nu:
            value = value + self.nu * pairs.anchor_mean(beta.expand(len(batch.emb)))
        return value
