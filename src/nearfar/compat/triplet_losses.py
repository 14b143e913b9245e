"""The triplet losses of pytorch-metric-learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nearfar.compat.indices import Indices, SelectedPairs
from nearfar.compat.pair_based import PairBased
from nearfar.compat.reducer_base import BaseReducer
from nearfar.compat.reducers import AvgNonZeroReducer, DivisorReducer, MeanReducer, MultipleReducers
from nearfar.compat.utils.loss_and_miner_utils import Triplets, convert_to_triplets, get_random_triplet_indices
from nearfar.losses.margin import boundary_hinges
from nearfar.losses.pair_batch import PairBatch
from nearfar.ops.pairs import ratio, softplus
from nearfar.ops.triplets import mean_over_triplets

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nearfar.compat.options import LossOptions


def list_triplets(
    selected: SelectedPairs, indices: Indices | None, batch: PairBatch, per_anchor: int | str
) -> Triplets:
    """Return the triplets that a miner selected, as indices (anchors, positives, negatives).

    If `indices` is None and `per_anchor` is a number, draw that many random triplets for each anchor. If `indices` is
    None and `per_anchor` is "all", return all triplets.
    """
    if indices is not None:
        a, p, n = convert_to_triplets([part.to(batch.emb.device).long() for part in indices], batch.labels)
        return a, p, n
    if not isinstance(per_anchor, str):
        return get_random_triplet_indices(batch.labels, batch.ref_labels, per_anchor)
    a, p = torch.where(selected.same)
    row, n = torch.where(selected.diff[a])
    return a[row], p[row], n


class TripletMarginLoss(PairBased):
    """A loss with the formula of `nearfar.losses.TripletMarginLoss`, on mined triplets or on all triplets.

    The triplets are usually listed one by one. To save memory, this is avoided if three conditions hold: the loss uses
    all triplets of the selected pairs, `swap` is False, and the reducer is AvgNonZeroReducer or MeanReducer.

    Args:
        margin: The margin.
        swap: If True, replace D_an, the distance of anchor and negative, with the distance of positive and negative
            where that is smaller.
        smooth_loss: If True, use log(1 + e^t) instead of [t]_+, where t = D_ap - D_an + margin.
        triplets_per_anchor: "all", or the number of triplets to draw at random for each anchor.
        options: The arguments that all losses share.
    """

    few_is_none = False

    def get_default_reducer(self) -> BaseReducer:
        return AvgNonZeroReducer()

    def __init__(
        self,
        margin: float = 0.05,
        swap: bool = False,
        smooth_loss: bool = False,
        triplets_per_anchor: int | str = "all",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.margin, self.swap, self.smooth_loss = margin, swap, smooth_loss
        self.triplets_per_anchor = triplets_per_anchor

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        if self.swap and batch.ref_emb is not None:
            raise ValueError(
                "TripletMarginLoss: swap=True needs the distances between positives and negatives, but with ref_emb "
                "only those between anchors and references are known: pass swap=False"
            )
        sim = self.distance.similarity(batch.emb, batch.ref_emb)
        listed = indices is not None and (len(indices) == 3 or selected.repeats is not None)
        is_plain = type(self.reducer) in (MeanReducer, AvgNonZeroReducer) and self.triplets_per_anchor == "all"
        if is_plain and not (listed or self.swap):
            term = "softplus" if self.smooth_loss else "hinge"
            nonzero = isinstance(self.reducer, AvgNonZeroReducer)
            return mean_over_triplets(
                sim, selected.same, selected.diff, None, None, self.margin, 1.0, term, 0.0, nonzero
            )
        triplets = list_triplets(selected, indices, batch, self.triplets_per_anchor)
        a, p, n = triplets
        flat, columns = sim.flatten(), sim.shape[1]
        negative = flat.gather(0, a * columns + n)
        if self.swap:
            negative = torch.maximum(negative, flat.gather(0, p * columns + n))
        t = self.margin + negative - flat.gather(0, a * columns + p)
        losses = softplus(t) if self.smooth_loss else t.relu()
        entry = {"losses": losses, "indices": triplets, "reduction_type": "triplet"}
        return self.reducer({"loss": entry}, batch.emb, batch.labels)


class MarginLoss(PairBased):
    """A loss with the hinge terms of `nearfar.losses.MarginLoss`. A pair counts once for each triplet that contains it.

    The default reducer divides the sum of the hinge terms by the number of nonzero hinge terms.

    With learn_beta=True, `beta` is a parameter, and a penalty on beta is added to the loss. If `num_classes` is None,
    all classes share one beta, and the penalty is nu * beta. If `num_classes` is given, each class has its own beta,
    and the penalty has one term per triplet: nu times the beta of the anchor's class. The default reducer divides the
    sum of these terms by the number of nonzero hinge terms.
    """

    few_is_none = False
    beta: Tensor

    def get_default_reducer(self) -> BaseReducer:
        return DivisorReducer()

    def _sub_loss_names(self) -> list[str]:
        return ["margin_loss", "beta_reg_loss"]

    def __init__(
        self,
        margin: float = 0.2,
        nu: float = 0,
        beta: float = 1.2,
        triplets_per_anchor: int | str = "all",
        learn_beta: bool = False,
        num_classes: int | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.margin, self.nu, self.learn_beta, self.num_classes = margin, nu, learn_beta, num_classes
        self.triplets_per_anchor = triplets_per_anchor
        self.needs_labels = num_classes is not None
        start = torch.full((num_classes or 1,), float(beta))
        self.beta = nn.Parameter(start) if learn_beta else start

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        beta = self.beta.to(batch.emb)
        anchor_beta = beta.expand(len(batch.emb)) if len(beta) == 1 else beta[batch.labels]
        distances = -self.distance.similarity(batch.emb, batch.ref_emb)
        losses = boundary_hinges(distances, selected.same, -self.distance.sign * anchor_beta[:, None], self.margin)
        reducer = self.reducer
        divides = isinstance(reducer, MultipleReducers) and all(
            type(reducer.of(name)) is DivisorReducer for name in self._sub_loss_names()
        )
        if self.triplets_per_anchor != "all" or not divides:
            return self.reduce_triplets(losses, anchor_beta, batch, selected, indices)
        each = selected.triplet_counts(batch.emb.dtype)
        divisor = torch.where(losses.detach() > 0, each, 0.0).sum()
        value = ratio((losses * each).sum(), divisor)
        if not (self.learn_beta and self.nu):
            return value
        if len(beta) == 1:
            return value + torch.where(each.sum() > 0, self.nu * beta[0], 0.0)
        triplets = torch.where(selected.same, each, 0.0).sum(1)
        return value + ratio((self.nu * anchor_beta * triplets).sum(), divisor)

    def reduce_triplets(
        self, losses: Tensor, anchor_beta: Tensor, batch: PairBatch, selected: SelectedPairs, indices: Indices | None
    ) -> Any:
        """List the triplets and apply the reducer to their losses."""
        triplets = list_triplets(selected, indices, batch, self.triplets_per_anchor)
        a, p, n = triplets
        pos, neg = losses[a, p], losses[a, n]
        divisor = torch.count_nonzero(pos) + torch.count_nonzero(neg)
        hinges = {"losses": pos + neg, "indices": triplets, "reduction_type": "triplet", "divisor": divisor}
        reg = self.zero_loss()
        if self.learn_beta and len(self.beta) == 1:
            reg = {"losses": self.nu * anchor_beta[0], "indices": None, "reduction_type": "already_reduced"}
        elif self.learn_beta:
            reg = {"losses": self.nu * anchor_beta[a], "indices": a, "reduction_type": "element", "divisor": divisor}
        return self.reducer({"margin_loss": hinges, "beta_reg_loss": reg}, batch.emb, batch.labels)
