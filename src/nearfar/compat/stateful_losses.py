"""Losses that are not sums over labeled pairs: VICReg, dynamic soft margin and manifold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nearfar.compat.arguments import InvalidInputError, refusal
from nearfar.compat.distances import BaseDistance, CosineSimilarity
from nearfar.compat.indices import Indices
from nearfar.compat.metric_loss import BaseMetricLossFunction
from nearfar.compat.utils.loss_and_miner_utils import convert_to_triplets
from nearfar.losses.dynamic_soft_margin import closest_gaps, cumulative_share, update_histogram
from nearfar.losses.manifold import manifold
from nearfar.losses.vicreg import covariance_term, invariance_terms, variance_terms

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nearfar.compat.options import LossOptions


def reduced(value: Tensor) -> dict[str, Any]:
    """Return an entry of a loss dictionary that holds a scalar, which is not reduced further."""
    return {"losses": value, "indices": None, "reduction_type": "already_reduced"}


class VICRegLoss(BaseMetricLossFunction):
    """A loss with the terms of `nearfar.losses.vicreg`, for any reducer.

    The loss is called without labels, as `loss(embeddings, ref_emb=ref_emb)`.
    """

    def __init__(
        self,
        invariance_lambda: float = 25,
        variance_mu: float = 25,
        covariance_v: float = 1,
        eps: float = 1e-4,
        **options: Unpack[LossOptions],
    ) -> None:
        for name in ("distance", "embedding_regularizer"):
            if name in options:
                raise refusal(self, name, options[name])
        super().__init__(**options)
        self.invariance_lambda, self.variance_mu = invariance_lambda, variance_mu
        self.covariance_v, self.eps = covariance_v, eps

    def _sub_loss_names(self) -> list[str]:
        return ["invariance_loss", "variance_loss1", "variance_loss2", "covariance_loss"]

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: Indices | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, Any]:
        if labels is not None or ref_labels is not None or indices_tuple is not None:
            raise ValueError("VICRegLoss takes neither labels nor indices_tuple: pass embeddings and ref_emb only")
        each = {
            "invariance_loss": self.invariance_lambda * invariance_terms(embeddings, ref_emb),
            "variance_loss1": self.variance_mu / 2 * variance_terms(embeddings, self.eps),
            "variance_loss2": self.variance_mu / 2 * variance_terms(ref_emb, self.eps),
        }
        covariance = self.covariance_v * (covariance_term(embeddings) + covariance_term(ref_emb))
        return {name: elements(terms) for name, terms in each.items()} | {"covariance_loss": reduced(covariance)}


def elements(terms: Tensor) -> dict[str, Any]:
    """Return an entry of a loss dictionary that holds one loss per element."""
    return {"losses": terms, "indices": torch.arange(len(terms), device=terms.device), "reduction_type": "element"}


class DynamicSoftMarginLoss(BaseMetricLossFunction):
    """Weight each triplet by the fraction of easier triplets in a running histogram.

    The formula is that of `nearfar.losses.dynamic_soft_margin`. Without labels, `embeddings` and `ref_emb` are two
    views of the same samples, and the negative of a pair is the closest view of another sample. With labels, the loss
    uses the triplets of a miner, or else all triplets, as in pytorch-metric-learning.
    """

    only_distance = True

    def __init__(
        self, min_val: float = -2.0, num_bins: int = 10, momentum: float = 0.01, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(**options)
        self.min_val, self.num_bins, self.momentum = min_val, int(num_bins), momentum
        self.delta = 2 * abs(min_val) / num_bins
        self.hist_ = torch.zeros(self.num_bins)

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: Indices | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, Any]:
        distances = self.distance(embeddings, None if ref_emb is embeddings else ref_emb)
        if labels is None:
            gaps = closest_gaps(distances)
        else:
            a, p, n = convert_to_triplets(indices_tuple, labels, ref_labels, t_per_anchor="all")
            gaps = distances[a, p] - distances[a, n]
        if len(gaps) == 0:
            return self.zero_losses()
        position = (gaps.detach() - self.min_val) / self.delta
        self.hist_ = update_histogram(self.hist_.to(gaps), position, self.momentum)
        return {"loss": reduced((cumulative_share(self.hist_, position) * gaps).mean())}


class ManifoldLoss(BaseMetricLossFunction):
    """A loss with the formula of `nearfar.losses.manifold`, with trainable proxies. It is called without labels.

    Each call assigns a random proxy to each sample, such that every proxy has at least one sample. To choose the
    proxies yourself, pass the index of the proxy of each sample, [B], as `indices_tuple`.

    Args:
        l: The dimension of the embeddings.
        K: The number of proxies.
        lambdaC: The weight of the context loss. With 0, only the intrinsic loss is used; with infinity, only the
            context loss.
        alpha: The probability that the random walk continues instead of restarting.
        margin: The margin.
        options: The arguments that all losses share.
    """

    def __init__(
        self,
        l: int,  # noqa: E741 - the name of the argument in pytorch-metric-learning
        K: int = 50,
        lambdaC: float = 1.0,
        alpha: float = 0.8,
        margin: float = 5e-4,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        if lambdaC < 0:
            raise ValueError(f"lambdaC must not be negative, got {lambdaC}")
        self.l, self.K, self.lambdaC, self.alpha, self.margin = l, K, lambdaC, alpha, margin
        self.proxies = nn.Parameter(torch.randn(K, l))

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: Any,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, Any]:
        if labels is not None or ref_emb is not embeddings:
            raise ValueError("ManifoldLoss takes neither labels nor ref_emb: pass embeddings only")
        if embeddings.shape[1] != self.l:
            raise InvalidInputError(f"embeddings must have {self.l} columns, got shape {list(embeddings.shape)}")
        chosen = indices_tuple
        if chosen is None:  # use each proxy at least once, then random proxies, in random order
            drawn = torch.randint(self.K, (len(embeddings) - self.K,))
            chosen = torch.cat([torch.arange(self.K), drawn])[torch.randperm(len(embeddings))]
        proxies = self.proxies.to(embeddings)
        sim = self.distance(torch.cat([embeddings, proxies]))
        intrinsic, context = manifold(sim, chosen.to(embeddings.device), self.alpha, self.margin)
        if math.isinf(self.lambdaC):
            return {"loss": reduced(context)}
        return {"loss": reduced(intrinsic + self.lambdaC * context)}
