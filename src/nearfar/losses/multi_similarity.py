"""Multi-similarity loss with its pair mining. It includes the weighted batch loss of BSPML."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nearfar.host_reads import is_on_host
from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch, pair_weights
from nearfar.losses.pair_loss import PairLoss
from nearfar.mining import multi_similarity
from nearfar.ops.pairs import Pairs, pair_masks, row_count
from nearfar.validation import check_choice, check_positive


@register("multi-similarity")
class MultiSimilarityLoss(PairLoss):
    """Multi-similarity loss (Wang et al., CVPR 2019, Eq. 15), on cosines S.

    The loss is
    (1/B) sum_i [ (1/alpha) log(1 + sum_{P_i} e^{-alpha (S - threshold)})
                  + (1/beta) log(1 + sum_{N_i} e^{beta (S - neg_threshold)}) ]
    for B anchors i. P_i and N_i are those positives and negatives of anchor i that mining keeps: the positives with
    S_ip < max_n S_in + epsilon and the negatives with S_in > min_p S_ip - epsilon. B also counts anchors without pairs.

    Args:
        alpha: Scale of the positives. The default is from the paper.
        beta: Scale of the negatives. The default is from the paper; the released code has 40.
        threshold: Threshold of the positives. The default is from the released code; the text of the paper has 1.
        neg_threshold: Threshold of the negatives. None uses `threshold`. Two thresholds are needed for the equivalence
            with DRO (see `nearfar.losses.dro.GroupedKL`).
        epsilon: Margin of the mining. The default is from the paper. None turns mining off.
        weighting: How sample weights w enter the loss. "inside" multiplies the exponential of each pair by the weight
            of its positive or negative, and uses a weighted mean over the anchors. "outside" is the weighted batch loss
            of BSPML (Zhang et al., AAAI 2023, arXiv 2211.11751, Eq. 7; the paper uses it with threshold=1). If l+_i and
            l-_i are the two terms above without weights, the loss is
            (1/B) sum_i w_i [ l+_i mean_{p in P_i} w_p + l-_i mean_{n in N_i} w_n ]. Its mining ignores the weights.

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

    def compare(self, batch: PairBatch) -> Pairs:
        if self.weighting == "inside":
            return super().compare(batch)
        same, diff = pair_masks(batch.labels, batch.ref_labels)
        weights, ref_weights = pair_weights(batch)
        return Pairs(self.similarity(batch.emb, batch.ref_emb), same, diff, weights, ref_weights)

    def check_relation(self, *, weighted: bool) -> None:
        if self.weighting == "outside" and weighted:
            raise ValueError(
                "weights cannot be combined with relation if weighting='outside': create the loss with "
                "weighting='inside', or remove the weights"
            )

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if self.epsilon is not None:
            pairs = multi_similarity(pairs, epsilon=self.epsilon)
            if is_on_host(pairs.sim) and not (torch.count_nonzero(pairs.same) or torch.count_nonzero(pairs.diff)):
                return pairs.sim[:0].sum()  # 0 with gradient 0; late in training, many batches have no such pairs
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
    """Compute the mean weight of the samples in each anchor's row of the mask.

    The result has shape [A] and is 0 where the row of the mask is empty.
    """
    assert pairs.ref_weights is not None
    return (mask.to(pairs.sim.dtype) @ pairs.ref_weights) / row_count(mask).clamp_min(1)
