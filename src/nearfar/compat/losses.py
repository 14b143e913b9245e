"""The losses of pytorch-metric-learning that nearfar supports, with the same arguments and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearfar.compat.arguments import absent
from nearfar.compat.pair_losses import (
    AngularLoss,
    CircleLoss,
    ContrastiveLoss,
    FastAPLoss,
    LiftedStructureLoss,
    MultiSimilarityLoss,
    NPairsLoss,
    NTXentLoss,
    SignalToNoiseRatioContrastiveLoss,
    SmoothAPLoss,
    SupConLoss,
)
from nearfar.compat.proxy_losses import (
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
)
from nearfar.compat.triplet_losses import MarginLoss, TripletMarginLoss

__all__ = [
    "AngularLoss",
    "ArcFaceLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "CosFaceLoss",
    "FastAPLoss",
    "LiftedStructureLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NPairsLoss",
    "NTXentLoss",
    "NormalizedSoftmaxLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "SignalToNoiseRatioContrastiveLoss",
    "SmoothAPLoss",
    "SoftTripleLoss",
    "SubCenterArcFaceLoss",
    "SupConLoss",
    "TripletMarginLoss",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("losses", name, __all__)
