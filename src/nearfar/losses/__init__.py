"""Losses on pairs, triplets and proxies. `create` creates a loss by its name.

>>> create("multi-similarity", alpha=2, beta=40)
MultiSimilarityLoss(alpha=2, beta=40, threshold=0.5, neg_threshold=None, epsilon=0.1, weighting='inside')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nearfar.losses.angular import AngularLoss
from nearfar.losses.arcface import ArcFaceLoss
from nearfar.losses.base import LOSSES, Loss, register
from nearfar.losses.binomial import BinomialDevianceLoss
from nearfar.losses.circle import CircleLoss
from nearfar.losses.combined import CombinedLoss
from nearfar.losses.contrastive import ContrastiveLoss
from nearfar.losses.cosface import CosFaceLoss
from nearfar.losses.cross_batch_memory import CrossBatchMemory
from nearfar.losses.dro.loss import DROLoss
from nearfar.losses.fastap import FastAPLoss
from nearfar.losses.generalized_lifted import GeneralizedLiftedStructureLoss
from nearfar.losses.hap import HAPLoss
from nearfar.losses.hap2s import HAP2SLoss
from nearfar.losses.histogram import HistogramLoss
from nearfar.losses.intra_pair_variance import IntraPairVarianceLoss
from nearfar.losses.large_margin_softmax import LargeMarginSoftmaxLoss, SphereFaceLoss
from nearfar.losses.lifted import LiftedStructureLoss
from nearfar.losses.margin import MarginLoss
from nearfar.losses.matryoshka import MatryoshkaLoss
from nearfar.losses.mpa import MPALoss
from nearfar.losses.mpa_ap import MPAAPLoss
from nearfar.losses.mpa_dw import MPADWLoss
from nearfar.losses.multi_similarity import MultiSimilarityLoss
from nearfar.losses.n_pair import NPairsLoss
from nearfar.losses.nca import NCALoss
from nearfar.losses.normalized_softmax import NormalizedSoftmaxLoss
from nearfar.losses.nt_xent import NTXentLoss
from nearfar.losses.p2sgrad import P2SGradLoss
from nearfar.losses.pair_loss import PairLoss
from nearfar.losses.pair_margin import PairMarginLoss
from nearfar.losses.pnp import PNPLoss
from nearfar.losses.proxies.proxy_loss import ProxyLoss
from nearfar.losses.proxy_anchor import ProxyAnchorLoss
from nearfar.losses.proxy_isa import ProxyISALoss
from nearfar.losses.proxy_nca import ProxyNCALoss
from nearfar.losses.ranked_list import RankedListLoss
from nearfar.losses.rdml import RDMLLoss
from nearfar.losses.relations import RelationLoss
from nearfar.losses.smooth_ap import SmoothAPLoss
from nearfar.losses.snr import SignalToNoiseRatioContrastiveLoss
from nearfar.losses.soft_triple import SoftTripleLoss
from nearfar.losses.subcenter_arcface import SubCenterArcFaceLoss
from nearfar.losses.supcon import SupConLoss
from nearfar.losses.threshold_consistent_margin import ThresholdConsistentMarginLoss
from nearfar.losses.triplet import TripletMarginLoss
from nearfar.losses.tuplet_margin import TupletMarginLoss
from nearfar.mining import create_miner


def names() -> list[str]:
    """Return the names of all losses, sorted."""
    return LOSSES.names()


def loss_class(name: str) -> type[Loss]:
    """Return the class of a loss. An unknown name raises a ValueError that suggests a similar name."""
    return LOSSES.get(name)


def create(
    name: str | Sequence[Mapping[str, Any]],
    *,
    mine: str | Mapping[str, Any] | None = None,
    matryoshka: Sequence[int] | None = None,
    validate: bool = False,
    **options: Any,
) -> Loss:
    """Create a loss by its name, or the weighted sum of several losses.

    Args:
        name: The name of a loss, one of `names()`. To combine several losses, pass a list with one mapping per loss.
            Each mapping has the key "name", and optionally "weight" (default 1), "mine", "matryoshka" and the options
            of the loss. See `CombinedLoss`.
        mine: The miner that selects the pairs of a pair loss: one of the names in `nearfar.mining.MINERS`, or a mapping
            with the key "name" and the options of the miner. None applies no miner.
        matryoshka: Embedding sizes in ascending order. If given, the result is a `MatryoshkaLoss`. For each size m, it
            computes the loss on the first m dimensions of the embeddings, and returns the sum of these losses.
        validate: If True, also check the values of tensors on a GPU; see `Loss`.
        options: The arguments of the loss class. If `name` is a list, only `classes` and `dim` are allowed. They are
            passed to every proxy loss in the list.

    Raises:
        ValueError: If the name or an option is unknown (the message suggests a similar one), or if `mine` is given for
            a loss that does not use pairs.

    >>> create("triplet", margn=0.1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: loss 'triplet' has no option 'margn'; did you mean 'margin'? Options: margin, ...
    """
    if not isinstance(name, str):
        if matryoshka is not None:
            raise ValueError("matryoshka does not apply to a list of losses: move it into the mapping of one loss")
        if mine is not None:
            raise ValueError("mine does not apply to a list of losses: move it into the mapping of one loss")
        return _create_combined(name, validate=validate, **options)
    if matryoshka is not None:
        has_dim = issubclass(loss_class(name), ProxyLoss)  # proxies must have as many dimensions as the embeddings
        return MatryoshkaLoss(
            lambda size: create(
                name, mine=mine, validate=validate, **(options | {"dim": size} if has_dim else options)
            ),
            matryoshka,
        )
    for option, place in loss_class(name).moved_options.items():
        if option in options:
            value, (outer, _, inner) = options[option], place.partition(".")
            raise ValueError(
                f"option {option!r} of loss {name!r} is now {place!r}: set loss.{place}={value} (with --set or in a "
                f"recipe), or in Python pass {outer}={{'name': ..., {inner!r}: {value!r}}}"
            )
    loss: Loss = LOSSES.create(name, **options)
    loss.validate = validate
    if mine is not None:
        if not isinstance(loss, PairLoss):
            raise ValueError(f"mine={mine!r} selects pairs, but loss {name!r} does not use pairs: remove mine")
        loss.mine = create_miner(mine)
    return loss


def _create_combined(
    parts: Sequence[Mapping[str, Any]], *, validate: bool, classes: Any = None, dim: int | None = None
) -> CombinedLoss:
    losses, weights = [], []
    for part in parts:
        if not isinstance(part, Mapping) or "name" not in part:
            raise ValueError(f"each loss in the list must be a mapping with the key 'name', got {part!r}")
        options = {key: value for key, value in part.items() if key not in ("name", "weight")}
        if issubclass(loss_class(part["name"]), ProxyLoss):
            sizes = {"classes": classes, "dim": dim}
            options = {key: value for key, value in sizes.items() if value is not None} | options
        losses.append(create(part["name"], validate=validate, **options))
        weights.append(part.get("weight", 1.0))
    return CombinedLoss(losses, weights=weights, names=[str(part["name"]) for part in parts])


__all__ = [
    "AngularLoss",
    "ArcFaceLoss",
    "BinomialDevianceLoss",
    "CircleLoss",
    "CombinedLoss",
    "ContrastiveLoss",
    "CosFaceLoss",
    "CrossBatchMemory",
    "DROLoss",
    "FastAPLoss",
    "GeneralizedLiftedStructureLoss",
    "HAP2SLoss",
    "HAPLoss",
    "HistogramLoss",
    "IntraPairVarianceLoss",
    "LargeMarginSoftmaxLoss",
    "LiftedStructureLoss",
    "Loss",
    "MPAAPLoss",
    "MPADWLoss",
    "MPALoss",
    "MarginLoss",
    "MatryoshkaLoss",
    "MultiSimilarityLoss",
    "NCALoss",
    "NPairsLoss",
    "NTXentLoss",
    "NormalizedSoftmaxLoss",
    "P2SGradLoss",
    "PNPLoss",
    "PairLoss",
    "PairMarginLoss",
    "ProxyAnchorLoss",
    "ProxyISALoss",
    "ProxyLoss",
    "ProxyNCALoss",
    "RDMLLoss",
    "RankedListLoss",
    "RelationLoss",
    "SignalToNoiseRatioContrastiveLoss",
    "SmoothAPLoss",
    "SoftTripleLoss",
    "SphereFaceLoss",
    "SubCenterArcFaceLoss",
    "SupConLoss",
    "ThresholdConsistentMarginLoss",
    "TripletMarginLoss",
    "TupletMarginLoss",
    "create",
    "loss_class",
    "names",
    "register",
]
