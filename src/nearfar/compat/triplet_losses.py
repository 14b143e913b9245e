"""The triplet losses of pytorch-metric-learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nearfar import losses
from nearfar.compat.arguments import refusal
from nearfar.compat.indices import Indices, SelectedPairs, as_pairs
from nearfar.compat.pair_based import PairBased
from nearfar.compat.reducers import AvgNonZeroReducer, DivisorReducer, MeanReducer, ThresholdReducer
from nearfar.losses.margin import boundary_hinges
from nearfar.losses.pair_loss import PairBatch
from nearfar.ops.triplets import mean_over_triplets

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nearfar.compat.options import LossOptions


class TripletMarginLoss(PairBased):
    """The formula of `nearfar.losses.TripletMarginLoss`, on the triplets that a miner selects, or on all triplets.

    All triplets are computed without listing them.
    """

    default_reducer = AvgNonZeroReducer()
    reducer_kinds = (MeanReducer, ThresholdReducer)
    few_is_none = False

    def __init__(
        self,
        margin: float = 0.05,
        swap: bool = False,
        smooth_loss: bool = False,
        triplets_per_anchor: str = "all",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        if swap:
            raise refusal(self, "swap", swap)
        check_all_triplets(self, triplets_per_anchor)
        if isinstance(self.reducer, ThresholdReducer) and (self.reducer.low, self.reducer.high) != (0, None):
            raise refusal(self, "reducer", self.reducer, "use AvgNonZeroReducer or MeanReducer")
        self.margin, self.smooth_loss = margin, smooth_loss

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Tensor:
        sim = self.distance.similarity(batch.emb, batch.ref_emb)
        nonzero = isinstance(self.reducer, ThresholdReducer)
        triplets = selected.triplets
        if triplets is None and selected.repeats is not None and indices is not None:
            a1, p, a2, n = as_pairs(indices)
            first, second = torch.where(a1[:, None] == a2)
            triplets = a1[first], p[first], n[second]
        if triplets is None:
            term = "softplus" if self.smooth_loss else "hinge"
            return mean_over_triplets(
                sim, selected.same, selected.diff, None, None, self.margin, 1.0, term, 0.0, nonzero
            )
        a, p, n = (each.to(sim.device).long() for each in triplets)
        flat = sim.flatten()
        gap = flat.gather(0, a * sim.shape[1] + n) - flat.gather(0, a * sim.shape[1] + p)
        average = "nonzero" if nonzero else "all"
        formula = losses.TripletMarginLoss(margin=self.margin, squared=False, smooth=self.smooth_loss, average=average)
        return formula.mean_cost(gap, torch.ones_like(gap))


class MarginLoss(PairBased):
    """The hinges of `nearfar.losses.margin.boundary_hinges` over triplets: a pair counts once for each of its triplets.

    With learn_beta=True, `beta` is a parameter, and nu * beta is added to the loss.
    """

    default_reducer = DivisorReducer()
    reducer_kinds = (DivisorReducer,)
    few_is_none = False
    beta: Tensor

    def __init__(
        self,
        margin: float = 0.2,
        nu: float = 0,
        beta: float = 1.2,
        triplets_per_anchor: str = "all",
        learn_beta: bool = False,
        num_classes: int | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        check_all_triplets(self, triplets_per_anchor)
        if nu and num_classes:
            raise refusal(self, "nu", nu, "use nu=0 with num_classes")
        self.margin, self.nu, self.learn_beta, self.num_classes = margin, nu, learn_beta, num_classes
        self.needs_labels = num_classes is not None
        start = torch.full((num_classes or 1,), float(beta))
        self.beta = nn.Parameter(start) if learn_beta else start

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Tensor:
        each = selected.triplet_counts(batch.emb.dtype)
        if not each.any():
            return batch.emb.sum() * 0
        beta = self.beta.to(batch.emb)
        anchor_beta = beta if len(beta) == 1 else beta[batch.labels]
        distances = -self.distance.similarity(batch.emb, batch.ref_emb)
        losses = boundary_hinges(distances, selected.same, -self.distance.sign * anchor_beta[:, None], self.margin)
        value = AvgNonZeroReducer()(losses, each)
        return value + self.nu * beta[0] if self.learn_beta and self.nu else value


def check_all_triplets(what: nn.Module, triplets_per_anchor: object) -> None:
    """Raise an error unless `triplets_per_anchor` is "all"."""
    if triplets_per_anchor != "all":
        raise refusal(what, "triplets_per_anchor", triplets_per_anchor, "use 'all', which is fast")
