"""PNP: penalize only the negatives that are ranked before positives."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.custom_grad import analytic
from nearfar.ops.pairs import Pairs
from nearfar.ops.triplets import anchor_shares, positive_table
from nearfar.validation import check_choice, check_positive

VARIANTS = ("O", "Ds", "Dq", "Iu", "Ib")


@register("pnp")
class PNPLoss(PairLoss):
    """PNP loss (Li et al., AAAI 2022, arXiv 2102.04640), on cosines S.

    For an anchor i with negatives N_i and a positive p, R_ip = sum_{n in N_i} sigmoid((S_in - S_ip) / temperature) is a
    smooth count of the negatives that are ranked before p. The loss is the mean of f(R_ip) over the positives of each
    anchor, averaged over the anchors that have positives:

    - variant="O": f = R.
    - variant="Ds": f = log(1 + R).
    - variant="Dq": f = 1 - (1 + R)^-alpha.
    - variant="Iu": f = (1 + R) log(1 + R).
    - variant="Ib": f = (b R - log(1 + b R)) / b^2.

    The anchor is not one of its own positives; the released code includes it. The weight of a negative multiplies its
    sigmoid. The weights of positives and anchors multiply their terms in the means. The computation makes one pass over
    the similarity matrix per positive.

    Args:
        variant: "O", "Ds", "Dq", "Iu" or "Ib". The default is our choice.
        alpha: The exponent of variant "Dq". The default is from pytorch-metric-learning.
        b: The parameter of variant "Ib". The default is from pytorch-metric-learning.
        temperature: The temperature of the sigmoid. The default is that of pytorch-metric-learning.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> PNPLoss()(x, torch.tensor([0, 0, 1]))
    tensor(0.)
    >>> PNPLoss()(x, torch.tensor([0, 1, 0]))  # the mean of 1 - 1/2 and 1 - 1/1.5
    tensor(0.4167)
    """

    def __init__(self, *, variant: str = "Dq", alpha: float = 1.0, b: float = 2.0, temperature: float = 0.01) -> None:
        super().__init__()
        self.variant = check_choice("variant", variant, VARIANTS)
        self.alpha, self.b = check_positive("alpha", alpha), check_positive("b", b)
        self.temperature = check_positive("temperature", temperature)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return pnp(
            pairs.sim,
            pairs.same,
            pairs.diff,
            pairs.weights,
            pairs.ref_weights,
            self.variant,
            self.alpha,
            self.b,
            self.temperature,
        )


def penalty(r: Tensor, variant: str, alpha: float, b: float) -> tuple[Tensor, Tensor]:
    """Compute the function f(R) of a variant (see `PNPLoss`) and its derivative, elementwise."""
    if variant == "Ds":
        return torch.log1p(r), 1 / (1 + r)
    if variant == "Dq":
        return 1 - (1 + r) ** -alpha, alpha * (1 + r) ** (-alpha - 1)
    if variant == "Iu":
        return (1 + r) * torch.log1p(r), 1 + torch.log1p(r)
    if variant == "Ib":
        return (b * r - torch.log1p(b * r)) / b**2, r / (1 + b * r)
    return r, torch.ones_like(r)


@analytic("pnp")
def pnp(
    sim: Tensor,
    same: Tensor,
    diff: Tensor,
    weights: Tensor | None,
    ref_weights: Tensor | None,
    variant: str,
    alpha: float,
    b: float,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Compute the loss and its gradient with respect to sim. The arguments are those of `PNPLoss` and `Pairs`."""
    gradient = torch.zeros_like(sim)
    table, columns = positive_table(sim, same)
    has, share = anchor_shares(same, weights, sim.dtype)
    r = torch.ones_like(sim[0]) if ref_weights is None else ref_weights
    r_p = torch.where(torch.isfinite(table), r[columns], 0.0)  # weights of the positives; 0 in the padding
    share = share / torch.where(has, r_p.sum(1), 1.0)
    scaled = torch.where(diff, sim, -torch.inf) / temperature
    value = sim.new_zeros(())
    for k in range(columns.shape[1]):
        # Replace the infinite padding of the table by 0. Any finite value works, because its weight is 0.
        own = torch.where(r_p[:, k] > 0, table[:, k], 0.0)[:, None] / temperature
        g = torch.sigmoid(scaled - own)
        f, slope = penalty(g @ r, variant, alpha, b)
        w = share * r_p[:, k]
        value = value + (w * f).sum()
        each = (w * slope)[:, None] * (g - g * g) * r / temperature
        gradient += each
        gradient.scatter_add_(1, columns[:, k : k + 1], -each.sum(1, keepdim=True))
    return value, gradient
