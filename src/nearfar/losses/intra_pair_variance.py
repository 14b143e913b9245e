"""Intra-pair variance loss: penalize unusually dissimilar positive pairs and unusually similar negative pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.host_reads import is_on_host
from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.custom_grad import analytic
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_not_negative


@register("intra-pair-variance")
class IntraPairVarianceLoss(PairLoss):
    """Intra-pair variance loss (Yu and Tao, ICCV 2019), on cosines S.

    The loss is the mean over positive pairs of [(1 - eps_pos) m_pos - S]_+^2 plus the mean over negative pairs of
    [S - (1 + eps_neg) m_neg]_+^2, where m_pos and m_neg are the mean cosines of the positive and of the negative pairs
    of the batch. Gradients flow through these means. The paper adds this loss to the tuplet margin loss.

    Args:
        eps_pos: The tolerance of positives. The default is that of pytorch-metric-learning.
        eps_neg: The tolerance of negatives. The default is that of pytorch-metric-learning.

    >>> import torch
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> IntraPairVarianceLoss(eps_pos=0.5)(x, torch.tensor([0, 0, 0]))  # mean 1/3; two of three pairs have cosine 0
    tensor(0.0185)
    """

    def __init__(self, *, eps_pos: float = 0.01, eps_neg: float = 0.01) -> None:
        super().__init__()
        self.eps_pos = check_not_negative("eps_pos", eps_pos)
        self.eps_neg = check_not_negative("eps_neg", eps_neg)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if pairs.weights is None:
            return _one_sided_variances(pairs.sim, pairs.same, pairs.diff, self.eps_pos, self.eps_neg)
        mean_pos, mean_neg = pairs.mean(pairs.sim, pairs.same), pairs.mean(pairs.sim, pairs.diff)
        pos = ((1 - self.eps_pos) * mean_pos - pairs.sim).relu().square()
        neg = (pairs.sim - (1 + self.eps_neg) * mean_neg).relu().square()
        return pairs.mean(pos, pairs.same) + pairs.mean(neg, pairs.diff)


@analytic("one_sided_variances")
def _one_sided_variances(
    sim: Tensor, same: Tensor, diff: Tensor, eps_pos: float, eps_neg: float
) -> tuple[Tensor, Tensor]:
    """Compute the loss without weights. The function body returns the value and its gradient."""
    value, gradient = _one_sided_variance(sim, diff, 1 + eps_neg, 1)
    if is_on_host(sim):  # the positives are usually few; on a GPU, the host would have to wait for their number
        index = torch.where(same)
        chosen = sim[index]
        pos, gradient[index] = _one_sided_variance(chosen, torch.ones_like(chosen, dtype=torch.bool), 1 - eps_pos, -1)
        return value + pos, gradient
    pos, by_pos = _one_sided_variance(sim, same, 1 - eps_pos, -1)
    return value + pos, gradient.add_(by_pos)


def _one_sided_variance(sim: Tensor, mask: Tensor, scale: float, sign: int) -> tuple[Tensor, Tensor]:
    """Compute the mean of [sign (S - scale m)]_+^2 over a mask, where m is the mean of S over the mask.

    Return it with its gradient with respect to S. An empty mask gives 0.
    """
    inside, count = mask.to(sim.dtype), torch.count_nonzero(mask).clamp_min(1).to(sim.dtype)
    center = (sim * inside).sum() / count * scale
    t = (sim - center if sign > 0 else center - sim).clamp_min_(0).mul_(inside)
    # m depends on every entry, so the gradient of each has the part of m
    shift = t.sum() * (scale / count)
    value = t.square().sum() / count
    return value, t.sub_(inside.mul_(shift)).mul_(sign * 2 / count)
