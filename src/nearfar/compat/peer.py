"""Replace a nearfar loss with its counterpart in pytorch-metric-learning, with the same options, for comparisons.

This is the inverse of `nearfar.compat.losses`: `peer_loss(create("multi-similarity", beta=40))` returns a loss
that calls pytorch-metric-learning's MultiSimilarityLoss(beta=40) on the pairs that MultiSimilarityMiner selects. The
module needs the optional dependencies `nearfar[peers]`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn, random

from nearfar.errors import NearfarError, install_hint
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
    """A loss of pytorch-metric-learning with the interface of nearfar's losses.

    It takes only embeddings and labels. Other arguments of nearfar's losses, such as sample weights, raise an error.

    Args:
        loss: The loss of pytorch-metric-learning.
        miner: The miner of pytorch-metric-learning that selects pairs for the loss, or None.
        differs: A description of how the formula differs from nearfar's, or an empty string if it does not differ.
    """

    def __init__(self, loss: nn.Module, miner: nn.Module | None, differs: str) -> None:
        nn.Module.__init__(self)  # not super(): for ProxyPeer, ProxyLoss.__init__ would create another set of proxies
        self.loss, self.miner, self.differs = loss, miner, differs

    def forward(self, embeddings: Tensor, labels: Labels, **others: Any) -> Tensor:
        for name, value in others.items():
            if value is not None:
                raise ValueError(f"{name} was given to a loss of {NAME}, which does not support it: remove {name}")
        x = full_precision(embeddings)
        result: Tensor = self.loss(x, labels, None if self.miner is None else self.miner(x, labels))
        return result


class ProxyPeer(Peer, ProxyLoss):
    """A proxy loss of pytorch-metric-learning. Its proxies are initialized with those of `ours`, a nearfar loss.

    With C classes and K proxies per class, `proxies` has shape [C, d] or [C, K, d].
    """

    def __init__(self, ours: ProxyLoss, loss: nn.Module, differs: str) -> None:
        Peer.__init__(self, loss, None, differs)
        self.classes, self.dim, self._shape = ours.classes, ours.dim, ours.proxies.shape
        self.proxies.data.copy_(ours.proxies.data)

    @property
    def proxies(self) -> Any:  # type: ignore[override]
        """Return the proxies in the shape that nearfar uses, as a view of the parameter of the loss."""
        own = dict(self.loss.named_parameters())
        rows = own["proxies"] if "proxies" in own else own["W" if "W" in own else "fc"].t()
        return rows.reshape(self._shape)  # a view, because only the first dimension is split


Made = tuple[Any, Any, str]  # the loss, its miner or None, and how its formula differs from nearfar's


def _angular(p: Any, z: AngularLoss) -> Made:
    _require(z, "batch", "full")
    return p.losses.AngularLoss(alpha=z.angle), None, "negatives are not normalized"


def _contrastive(p: Any, z: ContrastiveLoss) -> Made:
    distance = {"distance": p.distances.LpDistance(), "cosine": p.distances.CosineSimilarity()}.get(z.form)
    if distance is None:
        raise _unsupported(z, "form")
    return p.losses.ContrastiveLoss(z.pos_margin, z.neg_margin, distance=distance), None, ""


def _lifted(p: Any, z: LiftedStructureLoss) -> Made:
    _require(z, "form", "song")
    distance = p.distances.LpDistance(normalize_embeddings=z.normalize)
    return p.losses.LiftedStructureLoss(neg_margin=z.alpha, pos_margin=0, distance=distance), None, ""


def _margin(p: Any, z: MarginLoss) -> Made:
    loss = p.losses.MarginLoss(
        margin=z.delta, nu=z.nu, beta=z.beta_option, learn_beta=z.trainable, num_classes=z.classes
    )
    return loss, None, "a pair counts once per triplet, and only non-zero terms count"


def _multi_similarity(p: Any, z: MultiSimilarityLoss) -> Made:
    _require(z, "weighting", "inside")
    if z.neg_threshold not in (None, z.threshold):
        raise _unsupported(z, "neg_threshold")
    miner = None if z.epsilon is None else p.miners.MultiSimilarityMiner(z.epsilon)
    return p.losses.MultiSimilarityLoss(z.alpha, z.beta, z.threshold), miner, ""


def _n_pair(p: Any, z: NPairsLoss) -> Made:
    _require(z, "all_pairs", False)
    distance = p.distances.DotProductSimilarity(normalize_embeddings=z.normalize)
    return p.losses.NPairsLoss(distance=distance), None, f"there is no l2_reg={z.l2_reg:g}" if z.l2_reg else ""


def _proxy_nca(p: Any, z: ProxyNCALoss) -> Made:
    distance = p.distances.LpDistance(power=2) if z.form == "distance" else p.distances.CosineSimilarity()
    loss = p.losses.ProxyNCALoss(z.classes, z.dim, softmax_scale=z.scale, distance=distance)
    return loss, None, "" if z.positive_in_denominator else "the sample's own class is in the denominator"


def _smooth_ap(p: Any, z: SmoothAPLoss) -> Made:
    differs = (
        "the anchor is its own positive, and ranks are wrong unless there are as many classes as samples per class"
    )
    return p.losses.SmoothAPLoss(temperature=z.temperature), None, differs


def _snr(p: Any, z: SignalToNoiseRatioContrastiveLoss) -> Made:
    _require(z, "reg", 0.0)
    distance = p.distances.SNRDistance(normalize_embeddings=z.normalize)
    loss = p.losses.SignalToNoiseRatioContrastiveLoss(
        pos_margin=z.pos_margin, neg_margin=z.neg_margin, distance=distance
    )
    return loss, None, ""


def _soft_triple(p: Any, z: SoftTripleLoss) -> Made:
    _require(z, "similarity", "softmax")
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
        raise _unsupported(z, "mining")
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
    """Return the counterpart of a loss in pytorch-metric-learning. Raise a ValueError if it has none.

    If the loss has proxies, they are copied. The state of torch's random number generator does not change.
    """
    make = PEERS.get(type(loss))
    if make is None:
        raise ValueError(f"{NAME} has no counterpart of {type(loss).__name__}: remove loss.peer")
    if isinstance(loss, PairLoss) and loss.mine is not None:
        raise ValueError(f"{NAME} has no counterpart of mine={loss.mine!r} of {type(loss).__name__}: remove mine")
    with random.fork_rng(devices=[]):
        theirs, miner, differs = make(peer_modules(), loss)
    return ProxyPeer(loss, theirs, differs) if isinstance(loss, ProxyLoss) else Peer(theirs, miner, differs)


def peer_modules() -> SimpleNamespace:
    """Import the modules of pytorch-metric-learning. If it is missing, the error says how to install it."""
    try:
        return SimpleNamespace(**{part: import_module(f"pytorch_metric_learning.{part}") for part in PARTS})
    except ImportError as error:
        raise NearfarError(f"loss.peer needs {NAME} ({error}): {install_hint('peers')}") from None


def _require(loss: Loss, option: str, value: object) -> None:
    if getattr(loss, option) != value:
        raise _unsupported(loss, option)


def _unsupported(loss: Loss, option: str) -> ValueError:
    return ValueError(f"{NAME} has no {type(loss).__name__} with {option}={getattr(loss, option)!r}: remove loss.peer")


register_loss_adapter("peer", peer_loss)
