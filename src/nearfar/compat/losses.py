"""The losses of pytorch-metric-learning that nearfar supports, with the same arguments and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearfar.compat.arguments import absent
from nearfar.compat.average_precision_losses import FastAPLoss, PNPLoss, SmoothAPLoss
from nearfar.compat.metric_loss import BaseMetricLossFunction
from nearfar.compat.more_pair_losses import (
    GeneralizedLiftedStructureLoss,
    HistogramLoss,
    InstanceLoss,
    IntraPairVarianceLoss,
    NCALoss,
    RankedListLoss,
    ThresholdConsistentMarginLoss,
    TupletMarginLoss,
)
from nearfar.compat.pair_losses import (
    AngularLoss,
    CircleLoss,
    ContrastiveLoss,
    LiftedStructureLoss,
    MultiSimilarityLoss,
    NPairsLoss,
    NTXentLoss,
    SignalToNoiseRatioContrastiveLoss,
    SupConLoss,
)
from nearfar.compat.proxy_losses import ProxyAnchorLoss, ProxyNCALoss, SoftTripleLoss
from nearfar.compat.softmax_losses import (
    ArcFaceLoss,
    CosFaceLoss,
    LargeMarginSoftmaxLoss,
    NormalizedSoftmaxLoss,
    P2SGradLoss,
    SphereFaceLoss,
    SubCenterArcFaceLoss,
)
from nearfar.compat.stateful_losses import DynamicSoftMarginLoss, ManifoldLoss, VICRegLoss
from nearfar.compat.triplet_losses import MarginLoss, TripletMarginLoss
from nearfar.compat.wrappers import BaseLossWrapper, CrossBatchMemory, MultipleLosses, SelfSupervisedLoss

__all__ = [
    "AngularLoss",
    "ArcFaceLoss",
    "BaseLossWrapper",
    "BaseMetricLossFunction",
    "CircleLoss",
    "ContrastiveLoss",
    "CosFaceLoss",
    "CrossBatchMemory",
    "DynamicSoftMarginLoss",
    "FastAPLoss",
    "GeneralizedLiftedStructureLoss",
    "HistogramLoss",
    "InstanceLoss",
    "IntraPairVarianceLoss",
    "LargeMarginSoftmaxLoss",
    "LiftedStructureLoss",
    "ManifoldLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "MultipleLosses",
    "NCALoss",
    "NPairsLoss",
    "NTXentLoss",
    "NormalizedSoftmaxLoss",
    "P2SGradLoss",
    "PNPLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "RankedListLoss",
    "SelfSupervisedLoss",
    "SignalToNoiseRatioContrastiveLoss",
    "SmoothAPLoss",
    "SoftTripleLoss",
    "SphereFaceLoss",
    "SubCenterArcFaceLoss",
    "SupConLoss",
    "ThresholdConsistentMarginLoss",
    "TripletMarginLoss",
    "TupletMarginLoss",
    "VICRegLoss",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("losses", name, __all__)
