"""Multi-similarity loss with its mining, and the weighted batch loss of BSPML."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_loss import PairBatch, PairLoss, pair_weights
from nearfar.mining import multi_similarity
from nearfar.ops.pairs import Pairs, pair_masks, row_count
from nearfar.validation import check_choice, check_positive


@register("multi-similarity")
class MultiSimilarityLoss(PairLoss):
    """Multi-similarity loss (Wang et al., CVPR 2019, Eq. 15), on cosines S.

    (1/B) sum_i (1/alpha) log(1 + sum_{P_i} e^{-alpha (S - threshold)})
              + (1/beta) log(1 + sum_{N_i} e^{beta (S - neg_threshold)})
    over the mined sets P_i = {S_ip < max_n S_in + epsilon}, N_i = {S_in > min_p S_ip - epsilon}. B counts every anchor.

    Args:
        alpha: Scale of the positives; 2 is the paper's.
        beta: Scale of the negatives; 50 is the paper's, the released code has 40.
        threshold: 0.5 is the released code's, the paper's text says 1.
        neg_threshold: Threshold of the negatives, the form that DRO recovers; None is `threshold`.
        epsilon: Margin of the mining; 0.1 is the paper's. None turns mining off.
        weighting: "inside" puts a sample's weight on its exponential and in the mean over anchors. "outside" is the
            weighted batch loss of BSPML (Zhang et al., AAAI 2023, arXiv 2211.11751, Eq. 7), which has threshold=1
            there: (1/B) sum_i w_i { mean_{P_i} w_p (1/alpha) log[1 + sum ...] + mean_{N_i} w_n (1/beta) log[1 + sum
            ...] }. Mining then uses all samples, whatever their weights.

    >>> import torch
    >>> MultiSimilarityLoss(epsilon=None)(torch.eye(2), torch.tensor([0, 0]))  # 1/2 log(1 + e)
    tensor(0.6566)
    """

    def __init__(
        self,
        *,
        alpha: float = 2.0,
        beta: float = 50.0,
        threshold: float = 0.5,
        neg_threshold: float | None = None,
        epsilon: float | None = 0.1,
        weighting: str = "inside",
    ) -> None:
        super().__init__()
        self.alpha = check_positive("alpha", alpha)
        self.beta = check_positive("beta", beta)
        self.threshold, self.neg_threshold, self.epsilon = threshold, neg_threshold, epsilon
        self.weighting = check_choice("weighting", weighting, ("inside", "outside"))

    def pairs(self, batch: PairBatch) -> Pairs:
        if self.weighting == "inside":
            return super().pairs(batch)
        same, diff = pair_masks(batch.labels, batch.ref_labels)
        weights, ref_weights = pair_weights(batch)
        return Pairs(self.similarity(batch.emb, batch.ref_emb), same, diff, weights, ref_weights)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if self.epsilon is not None:
            pairs = multi_similarity(pairs, epsilon=self.epsilon)
        if self.weighting == "outside":
            pos, neg = self.sides(replace(pairs, weights=None, ref_weights=None))
            if pairs.weights is not None and pairs.ref_weights is not None:
                pos, neg = pos * mean_weight(pairs, pairs.same), neg * mean_weight(pairs, pairs.diff)
                return ((pos + neg) * pairs.weights).mean()
            return (pos + neg).mean()
        pos, neg = self.sides(pairs)
        return pairs.anchor_mean(pos + neg)

    def sides(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Compute the positive and the negative term of every anchor, each [A]."""
        neg_threshold = self.threshold if self.neg_threshold is None else self.neg_threshold
        pos = pairs.log_sum_exp((pairs.sim - self.threshold) * -self.alpha, pairs.same, plus_one=True)
        neg = pairs.log_sum_exp((pairs.sim - neg_threshold) * self.beta, pairs.diff, plus_one=True)
        return pos / self.alpha, neg / self.beta


def mean_weight(pairs: Pairs, mask: Tensor) -> Tensor:
    """Return the unweighted mean of the reference weights over each row of a mask, [A]; 0 where it is empty."""
    assert pairs.ref_weights is not None
    return (mask.to(pairs.sim.dtype) @ pairs.ref_weights) / row_count(mask).clamp_min(1)
