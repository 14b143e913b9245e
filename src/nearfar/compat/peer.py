"""pytorch-metric-learning's loss in the place of one of ours, with the same options: for comparisons (extra `peers`).

The way back of `nearfar.compat.losses`: `peer_loss(create("multi-similarity", beta=40))` calls that library's
MultiSimilarityLoss(beta=40) on the pairs of its MultiSimilarityMiner.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn, random

from nearfar.errors import NearfarError
from nearfar.losses import (
    AngularLoss,
    ArcFaceLoss,
    CircleLoss,
    ContrastiveLoss,
    CosFaceLoss,
    FastAPLoss,
    LiftedStructureLoss,
    Loss,
    MarginLoss,
    MultiSimilarityLoss,
    NormalizedSoftmaxLoss,
    NPairsLoss,
    NTXentLoss,
    PairLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    ProxyNCALoss,
    SignalToNoiseRatioContrastiveLoss,
    SmoothAPLoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
    SupConLoss,
    TripletMarginLoss,
)
from nearfar.losses.base import full_precision
from nearfar.training.components import register_loss_adapter
from nearfar.validation import Labels

NAME = "pytorch-metric-learning"
PARTS = ("distances", "losses", "miners", "reducers", "regularizers")


class Peer(Loss):
    """Called as our losses are; sample weights, references and representatives are an error.

    differs: where the formula there is not ours, in words; else empty.
    """

    def __init__(self, loss: nn.Module, miner: nn.Module | None, differs: str) -> None:
        nn.Module.__init__(self)  # a proxy loss of ours would make proxies
        self.loss, self.miner, self.differs = loss, miner, differs

    def forward(self, embeddings: Tensor, labels: Labels, **others: Any) -> Tensor:
        for name, given in others.items():
            if given is not None:
                raise ValueError(f"{name} was given to a loss of {NAME}, which has no such thing: leave it out")
        rows = full_precision(embeddings)
        value: Tensor = self.loss(rows, labels, None if self.miner is None else self.miner(rows, labels))
        return value


class ProxyPeer(Peer, ProxyLoss):
    """A peer with proxies, which start as ours; `proxies` shows its parameter as [C, d] or [C, K, d]."""

    def __init__(self, ours: ProxyLoss, loss: nn.Module, differs: str) -> None:
        Peer.__init__(self, loss, None, differs)
        self.classes, self.dim, self._shape = ours.classes, ours.dim, ours.proxies.shape
        self.proxies.data.copy_(ours.proxies.data)

    @property
    def proxies(self) -> Any:  # type: ignore[override]
        """The parameter in our layout, the same memory."""
        own = dict(self.loss.named_parameters())
        rows = own["proxies"] if "proxies" in own else own["W" if "W" in own else "fc"].t()
        return rows.reshape(self._shape)  # several a class lie side by side, so this copies nothing


Made = tuple[Any, Any, str]  # the loss, its miner or None, and how it differs


def _angular(p: Any, z: AngularLoss) -> Made:
    _same(z, "batch", "full")
    return p.losses.AngularLoss(alpha=z.angle), None, "negatives are not normalized there"


def _contrastive(p: Any, z: ContrastiveLoss) -> Made:
    distance = {"distance": p.distances.LpDistance(), "cosine": p.distances.CosineSimilarity()}.get(z.form)
    if distance is None:
        raise _no(z, "form")
    return p.losses.ContrastiveLoss(z.pos_margin, z.neg_margin, distance=distance), None, ""


def _lifted(p: Any, z: LiftedStructureLoss) -> Made:
    _same(z, "form", "song")
    distance = p.distances.LpDistance(normalize_embeddings=z.normalize)
    return p.losses.LiftedStructureLoss(neg_margin=z.alpha, pos_margin=0, distance=distance), None, ""


def _margin(p: Any, z: MarginLoss) -> Made:
    loss = p.losses.MarginLoss(
        margin=z.delta, nu=z.nu, beta=z.beta_option, learn_beta=z.trainable, num_classes=z.classes
    )
    return loss, None, "a pair counts once for each triplet that it is in, and non-zero terms alone"


def _multi_similarity(p: Any, z: MultiSimilarityLoss) -> Made:
    _same(z, "weighting", "inside")
    if z.neg_threshold not in (None, z.threshold):
        raise _no(z, "neg_threshold")
    miner = None if z.epsilon is None else p.miners.MultiSimilarityMiner(z.epsilon)
    return p.losses.MultiSimilarityLoss(z.alpha, z.beta, z.threshold), miner, ""


def _n_pair(p: Any, z: NPairsLoss) -> Made:
    _same(z, "all_pairs", False)
    distance = p.distances.DotProductSimilarity(normalize_embeddings=z.normalize)
    return p.losses.NPairsLoss(distance=distance), None, f"there is no l2_reg={z.l2_reg:g}" if z.l2_reg else ""


def _proxy_nca(p: Any, z: ProxyNCALoss) -> Made:
    distance = p.distances.LpDistance(power=2) if z.form == "distance" else p.distances.CosineSimilarity()
    loss = p.losses.ProxyNCALoss(z.classes, z.dim, softmax_scale=z.scale, distance=distance)
    return loss, None, "" if z.positive_in_denominator else "the own class is in the denominator"


def _smooth_ap(p: Any, z: SmoothAPLoss) -> Made:
    differs = "the anchor is its own positive, and ranks mix up unless there are as many classes as samples a class"
    return p.losses.SmoothAPLoss(temperature=z.temperature), None, differs


def _snr(p: Any, z: SignalToNoiseRatioContrastiveLoss) -> Made:
    _same(z, "reg", 0.0)
    distance = p.distances.SNRDistance(normalize_embeddings=z.normalize)
    loss = p.losses.SignalToNoiseRatioContrastiveLoss(
        pos_margin=z.pos_margin, neg_margin=z.neg_margin, distance=distance
    )
    return loss, None, ""


def _soft_triple(p: Any, z: SoftTripleLoss) -> Made:
    _same(z, "similarity", "softmax")
    regularized: dict[str, Any] = {}
    if z.tau and z.proxies_per_class > 1:
        merge = p.regularizers.SparseCentersRegularizer(z.classes, z.proxies_per_class)
        regularized = {"weight_regularizer": merge, "weight_reg_weight": z.tau}
    loss = p.losses.SoftTripleLoss(
        z.classes, z.dim, z.proxies_per_class, la=z.scale, gamma=z.gamma, margin=z.delta, **regularized
    )
    return loss, None, f"there is no reg_eps={z.reg_eps:g}" if regularized and z.reg_eps else ""


def _triplet(p: Any, z: TripletMarginLoss) -> Made:
    if z.mining == "semi-hard":
        raise _no(z, "mining")
    distance = p.distances.LpDistance(power=2 if z.squared else 1)
    reducer = p.reducers.MeanReducer() if z.average == "all" else p.reducers.AvgNonZeroReducer()
    loss = p.losses.TripletMarginLoss(z.margin, smooth_loss=z.smooth, distance=distance, reducer=reducer)
    return loss, p.miners.BatchHardMiner() if z.mining == "hard" else None, ""


PEERS: dict[type[Loss], Callable[[Any, Any], Made]] = {
    AngularLoss: _angular,
    ArcFaceLoss: lambda p, z: (p.losses.ArcFaceLoss(z.classes, z.dim, margin=z.angle, scale=z.scale), None, ""),
    CircleLoss: lambda p, z: (p.losses.CircleLoss(m=z.m, gamma=z.gamma), None, ""),
    ContrastiveLoss: _contrastive,
    CosFaceLoss: lambda p, z: (p.losses.CosFaceLoss(z.classes, z.dim, margin=z.margin, scale=z.scale), None, ""),
    FastAPLoss: lambda p, z: (p.losses.FastAPLoss(num_bins=z.bins), None, ""),
    LiftedStructureLoss: _lifted,
    MarginLoss: _margin,
    MultiSimilarityLoss: _multi_similarity,
    NPairsLoss: _n_pair,
    NTXentLoss: lambda p, z: (p.losses.NTXentLoss(temperature=z.temperature), None, ""),
    NormalizedSoftmaxLoss: lambda p, z: (
        p.losses.NormalizedSoftmaxLoss(z.classes, z.dim, temperature=z.temperature),
        None,
        "",
    ),
    ProxyAnchorLoss: lambda p, z: (p.losses.ProxyAnchorLoss(z.classes, z.dim, margin=z.delta, alpha=z.alpha), None, ""),
    ProxyNCALoss: _proxy_nca,
    SignalToNoiseRatioContrastiveLoss: _snr,
    SmoothAPLoss: _smooth_ap,
    SoftTripleLoss: _soft_triple,
    SubCenterArcFaceLoss: lambda p, z: (
        p.losses.SubCenterArcFaceLoss(
            num_classes=z.classes,
            embedding_size=z.dim,
            margin=z.angle,
            scale=z.scale,
            sub_centers=z.proxies_per_class,
        ),
        None,
        "",
    ),
    SupConLoss: lambda p, z: (p.losses.SupConLoss(temperature=z.temperature), None, ""),
    TripletMarginLoss: _triplet,
}


def peer_loss(loss: Loss) -> Peer:
    """Its counterpart; an error where there is none. Proxies start as those of ours, and no random number is drawn."""
    make = PEERS.get(type(loss))
    if make is None:
        raise ValueError(f"{NAME} has no loss for {type(loss).__name__}: leave peer out")
    if isinstance(loss, PairLoss) and loss.mine is not None:
        raise ValueError(f"{NAME} has no counterpart for mine={loss.mine!r} of {type(loss).__name__}: leave one out")
    with random.fork_rng(devices=[]):
        found, miner, differs = make(_parts(), loss)
    return ProxyPeer(loss, found, differs) if isinstance(loss, ProxyLoss) else Peer(found, miner, differs)


def _parts() -> SimpleNamespace:
    try:
        return SimpleNamespace(**{part: import_module(f"pytorch_metric_learning.{part}") for part in PARTS})
    except ImportError as error:
        raise NearfarError(f"loss.peer needs {NAME}: pip install 'nearfar[peers]' ({error})") from None


def _same(loss: Loss, option: str, value: object) -> None:
    if getattr(loss, option) != value:
        raise _no(loss, option)


def _no(loss: Loss, option: str) -> ValueError:
    return ValueError(f"{NAME} has no {type(loss).__name__} with {option}={getattr(loss, option)!r}: leave peer out")


register_loss_adapter("peer", peer_loss)
