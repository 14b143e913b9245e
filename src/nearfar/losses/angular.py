"""Angular loss: keep the angle at the negative of each triplet below a bound."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.n_pair import examples_against_representatives, first_against_second
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.custom_grad import analytic
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs, softplus, to_one
from nearfar.ops.triplets import positive_table, positives_at_once
from nearfar.validation import check_choice


@register("angular")
class AngularLoss(PairLoss):
    """Angular loss (Wang et al., ICCV 2017, arXiv 1708.01682, Eq. 8), on unit vectors.

    The loss is the mean over ordered positive pairs (a, p) of log(1 + sum_{n in N_a} e^{f_n}) with
    f_n = 4 tan^2(angle) (x_a + x_p).x_n - 2 (1 + tan^2(angle)) x_a.x_p, where N_a are the negatives of anchor a. All
    embeddings x are normalized, including those of the negatives.

    If `ref_emb` is passed, all positives and negatives are samples in `ref_emb`. In a batch from the PROFS sampler
    (`nearfar.samplers.Profs`), the anchors are the samples that are not class representatives, and their positives and
    negatives are class representatives.

    Args:
        angle: The bound in degrees. The default is the paper's value for its N-pair batches.
        batch: "full" uses all ordered positive pairs of the batch and all negatives. "n-pair" uses the first sample of
            each class as anchor, the second as its positive, and the positives of other classes as negatives.

    >>> AngularLoss()(torch.eye(3), torch.tensor([0, 0, 1]))
    tensor(0.6931)
    """

    def __init__(self, *, angle: float = 45.0, batch: str = "full") -> None:
        super().__init__()
        if not 0 < angle < 90:
            raise ValueError(f"angle must be above 0 and below 90 degrees, got {angle}")
        self.angle = angle
        self.batch = check_choice("batch", batch, ("full", "n-pair"))

    def arrange(self, batch: PairBatch, representatives: int | None) -> PairBatch:
        if representatives is not None:
            return examples_against_representatives(batch, representatives)
        if batch.ref_emb is not None or self.batch == "full":
            return batch
        return first_against_second(batch, cure="create the loss with batch='full'")

    def check_relation(self, *, weighted: bool) -> None:
        if self.batch != "full":
            raise ValueError(
                f"relation cannot be used with {self}, which needs class labels: pass labels, or create the loss "
                "with batch='full'"
            )

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        # The loss also needs the similarity of each positive to each negative. If y is given, all positives and
        # negatives are in y, so the matrix has a row for each sample in x, followed by a row for each sample in y.
        return cosine_matrix(x) if y is None else cosine_matrix(torch.cat([x, y]), y)

    def select(self, pairs: Pairs) -> Pairs:
        # miners expect one row per anchor, and the matrix also has the rows of the references (see `similarity`)
        selected = super().select(replace(pairs, sim=pairs.sim[: len(pairs.same)]))
        return replace(selected, sim=pairs.sim)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        first = 0 if batch.ref_emb is None else len(batch.emb)
        tan2 = math.tan(math.radians(self.angle)) ** 2
        return angular(pairs.sim, pairs.same, pairs.diff, pairs.weights, pairs.ref_weights, tan2, first)


@analytic("angular")
def angular(
    sim: Tensor,
    same: Tensor,
    diff: Tensor,
    weights: Tensor | None,
    ref_weights: Tensor | None,
    tan2: float,
    first: int,
) -> tuple[Tensor, Tensor]:
    """Compute the angular loss, a weighted mean over positive pairs, and its gradient with respect to sim.

    A is the number of anchors. R is the number of references, the samples that the anchors are compared with.

    Args:
        sim: The similarities to the references, of shape [first + R, R]. Row a belongs to anchor a, and row first + p
            to reference p.
        same: The mask of the positive pairs [A, R].
        diff: The mask of the negative pairs [A, R].
        weights: The weights of the anchors [A], or None if all are 1.
        ref_weights: The weights of the references [R]; None if `weights` is None.
        tan2: tan^2(angle).
        first: The row of `sim` at which the references start: 0 if the anchors are the references, else A.
    """
    anchors = len(same)
    table, columns = positive_table(sim[:anchors], same)
    gradient = torch.zeros_like(sim)
    by_anchor = gradient[:anchors]
    if columns.shape[1] == 0:
        return sim.new_zeros(()), gradient
    w = torch.isfinite(table).to(sim.dtype)  # weights of the positive pairs; 0 in the padding of the table
    if weights is not None and ref_weights is not None:
        w = torch.where(w > 0, to_one(weights)[:, None] * to_one(ref_weights)[columns], 0.0)
    w /= torch.where(w.sum() > 0, w.sum(), 1.0)
    negative = torch.where(diff, sim[:anchors], -torch.inf).mul_(4 * tan2)
    f = -2 * (1 + tan2) * table  # -inf in the padding
    lowest = torch.finfo(sim.dtype).min
    width = positives_at_once(by_anchor, columns.shape[1])
    for start in range(0, columns.shape[1], width):
        k = slice(start, start + width)
        rows = (columns[:, k] + first).flatten()
        e = sim.index_select(0, rows).mul_(4 * tan2).view(anchors, -1, sim.shape[1]).add_(negative[:, None])
        top = e.amax(2, keepdim=True).clamp_min_(lowest)
        e.sub_(top).exp_()
        if ref_weights is not None:
            e.mul_(ref_weights)
        mass = e.sum(2, keepdim=True)
        f[:, k] += (top + mass.log())[:, :, 0]
        slope = f[:, k].sigmoid().mul_(w[:, k])
        e.mul_((slope * (4 * tan2))[:, :, None] / mass.clamp_min_(torch.finfo(sim.dtype).tiny))
        by_anchor += e[:, 0] if width == 1 else e.sum(1)
        gradient.index_add_(0, rows, e.view(-1, sim.shape[1]))
        by_anchor.scatter_add_(1, columns[:, k], slope.mul_(-2 * (1 + tan2)))
    return (softplus(f) * w).sum(), gradient
