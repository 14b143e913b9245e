"""The counterparts of nearfar's losses in pytorch-metric-learning, and how their formulas differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nearfar.losses import (
    AngularLoss,
    ArcFaceLoss,
    CircleLoss,
    ContrastiveLoss,
    CosFaceLoss,
    FastAPLoss,
    GeneralizedLiftedStructureLoss,
    HistogramLoss,
    IntraPairVarianceLoss,
    LargeMarginSoftmaxLoss,
    LiftedStructureLoss,
    Loss,
    MarginLoss,
    MultiSimilarityLoss,
    NCALoss,
    NormalizedSoftmaxLoss,
    NPairsLoss,
    NTXentLoss,
    P2SGradLoss,
    PNPLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    RankedListLoss,
    SignalToNoiseRatioContrastiveLoss,
    SmoothAPLoss,
    SoftTripleLoss,
    SphereFaceLoss,
    SubCenterArcFaceLoss,
    SupConLoss,
    ThresholdConsistentMarginLoss,
    TripletMarginLoss,
    TupletMarginLoss,
)

NAME = "pytorch-metric-learning"
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


def _histogram(p: Any, z: HistogramLoss) -> Made:
    return p.losses.HistogramLoss(n_bins=z.bins), None, "parts are computed in float32"


def _pnp(p: Any, z: PNPLoss) -> Made:
    loss = p.losses.PNPLoss(b=z.b, alpha=z.alpha, anneal=z.temperature, variant=z.variant)
    return loss, None, "the anchor is its own positive"


def _ranked_list(p: Any, z: RankedListLoss) -> Made:
    loss = p.losses.RankedListLoss(
        margin=z.margin, Tn=z.temperature_neg, imbalance=z.balance, alpha=z.alpha, Tp=z.temperature_pos
    )
    return loss, None, "1e-5 is added to the weights"


def _threshold_consistent(p: Any, z: ThresholdConsistentMarginLoss) -> Made:
    loss = p.losses.ThresholdConsistentMarginLoss(
        lambda_plus=z.weight_pos, lambda_minus=z.weight_neg, margin_plus=z.pos_margin, margin_minus=z.neg_margin
    )
    return loss, None, ""


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
    GeneralizedLiftedStructureLoss: lambda p, z: (
        p.losses.GeneralizedLiftedStructureLoss(neg_margin=z.neg_margin, pos_margin=z.pos_margin),
        None,
        "",
    ),
    HistogramLoss: _histogram,
    IntraPairVarianceLoss: lambda p, z: (
        p.losses.IntraPairVarianceLoss(pos_eps=z.eps_pos, neg_eps=z.eps_neg),
        None,
        "",
    ),
    LargeMarginSoftmaxLoss: lambda p, z: (
        p.losses.LargeMarginSoftmaxLoss(z.classes, z.dim, margin=z.margin, scale=z.scale),
        None,
        "",
    ),
    LiftedStructureLoss: _lifted,
    MarginLoss: _margin,
    MultiSimilarityLoss: _multi_similarity,
    NCALoss: lambda p, z: (p.losses.NCALoss(softmax_scale=z.scale), None, ""),
    NPairsLoss: _n_pair,
    NTXentLoss: lambda p, z: (p.losses.NTXentLoss(temperature=z.temperature), None, ""),
    NormalizedSoftmaxLoss: lambda p, z: (
        p.losses.NormalizedSoftmaxLoss(z.classes, z.dim, temperature=z.temperature),
        None,
        "",
    ),
    P2SGradLoss: lambda p, z: (
        p.losses.P2SGradLoss(z.dim, z.classes),
        None,
        "proxies are normalized in place, so their gradient has a component along them",
    ),
    PNPLoss: _pnp,
    ProxyAnchorLoss: lambda p, z: (p.losses.ProxyAnchorLoss(z.classes, z.dim, margin=z.delta, alpha=z.alpha), None, ""),
    ProxyNCALoss: _proxy_nca,
    RankedListLoss: _ranked_list,
    SignalToNoiseRatioContrastiveLoss: _snr,
    SmoothAPLoss: _smooth_ap,
    SoftTripleLoss: _soft_triple,
    SphereFaceLoss: lambda p, z: (p.losses.SphereFaceLoss(z.classes, z.dim, margin=z.margin, scale=z.scale), None, ""),
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
    ThresholdConsistentMarginLoss: _threshold_consistent,
    TripletMarginLoss: _triplet,
    TupletMarginLoss: lambda p, z: (p.losses.TupletMarginLoss(margin=z.angle, scale=z.scale), None, ""),
}


def _require(loss: Loss, option: str, value: object) -> None:
    if getattr(loss, option) != value:
        raise _unsupported(loss, option)


def _unsupported(loss: Loss, option: str) -> ValueError:
    return ValueError(f"{NAME} has no {type(loss).__name__} with {option}={getattr(loss, option)!r}: remove loss.peer")
