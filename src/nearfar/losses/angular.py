"""Angular loss: the angle at the negative of each triplet is kept below a bound."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.analytic import analytic
from nearfar.checks import check_choice
from nearfar.geometry import cosine_matrix
from nearfar.losses.n_pair import first_and_second
from nearfar.losses.pair_loss import Batch, PairLoss
from nearfar.pairs import Pairs
from nearfar.triples import positive_table


class Angular(PairLoss):
    """Angular loss (Wang et al., ICCV 2017, arXiv 1708.01682, Eq. 8), every vector normalised, negatives too.

    Mean over ordered positive pairs (a, p) of log(1 + sum_{n in N_a} e^{f}) with
    f = 4 tan^2(angle) (x_a + x_p).x_n - 2 (1 + tan^2(angle)) x_a.x_p.

    batch="full" (default): all ordered positive pairs of the batch, all negatives. batch="n-pair": the first sample
    of a
    class is the anchor, the second its positive, negatives are the other classes' positives. With references,
    positives and negatives are references; with `representatives` they are the references, the other rows the anchors
    (PROFS). angle=45 degrees is the paper's for its N-pair batches.

    >>> Angular()(torch.eye(3), torch.tensor([0, 0, 1]))
    tensor(0.6931)
    """

    def __init__(self, *, angle: float = 45.0, batch: str = "full") -> None:
        super().__init__()
        if not 0 < angle < 90:
            raise ValueError(f"angle must be between 0 and 90 degrees, got {angle}")
        self.angle = angle
        self.batch = check_choice("batch", batch, ("full", "n-pair"))

    def arrange(self, batch: Batch, n: int) -> Batch:
        representatives, examples = batch.split(n)
        return examples.against(representatives)

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        # positives meet negatives as well as anchors do, so with references theirs against themselves follow below
        return cosine_matrix(x) if y is None else cosine_matrix(torch.cat([x, y]), y)

    def pairs(self, batch: Batch) -> Pairs:
        pairs = super().pairs(batch)
        if batch.ref_emb is not None or self.batch == "full":
            return pairs
        return first_and_second(pairs, batch, cure="sample two of each class, or pass batch='full'")

    def cost(self, pairs: Pairs, batch: Batch) -> Tensor:
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
    """Weighted mean over positive pairs, and its gradient by sim.

    sim [>= A, R]: row a < A holds anchor a, row first + p holds reference p, both against the references.
    """
    gradient = torch.zeros_like(sim)
    anchors = len(same)
    table, columns = positive_table(sim[:anchors], same)
    near = torch.where(diff, 4 * tan2 * sim[:anchors], -torch.inf)
    total, pairs = (sim.new_zeros((), dtype=torch.float64) for _ in range(2))
    for k in range(columns.shape[1]):
        column, s_ap = columns[:, k], table[:, k]
        there = torch.isfinite(s_ap)
        z = sim[first + column].mul_(4 * tan2).add_(near)
        top = z.amax(1)
        top = torch.where(top > -torch.inf, top, 0.0)
        e = z.sub_(top[:, None]).exp_()
        if ref_weights is not None:
            e *= ref_weights
        mass = e.sum(1)
        f = torch.where(there, mass.log() + top - 2 * (1 + tan2) * s_ap, -torch.inf)
        w = there.to(sim.dtype)
        if weights is not None and ref_weights is not None:
            w = w * weights * ref_weights[column]
        total += (w * torch.nn.functional.softplus(f, threshold=50.0)).sum(dtype=torch.float64)
        pairs += w.sum(dtype=torch.float64)
        slope = w * f.sigmoid()
        e *= (4 * tan2 * slope / torch.where(mass > 0, mass, 1.0))[:, None]
        gradient[:anchors] += e
        gradient.index_add_(0, first + column, e)
        gradient[:anchors].scatter_add_(1, column[:, None], (-2 * (1 + tan2) * slope)[:, None])
    divisor = torch.where(pairs > 0, pairs, 1.0).to(sim.dtype)
    return total.to(sim.dtype) / divisor, gradient.div_(divisor)
