"""Losses: what a pair, a triplet or a sample-proxy tie costs. One file a loss; `create` makes one by its name.

>>> create("multi-similarity", alpha=2, beta=40)
MultiSimilarity(alpha=2, beta=40, threshold=0.5, neg_threshold=None, epsilon=0.1, weighting='inside')
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from nearfar.losses.angular import Angular
from nearfar.losses.arcface import ArcFace
from nearfar.losses.binomial import Binomial
from nearfar.losses.circle import Circle
from nearfar.losses.contrastive import Contrastive
from nearfar.losses.cosface import CosFace
from nearfar.losses.dro.loss import DRO
from nearfar.losses.fastap import FastAP
from nearfar.losses.hap2s import HAP2S
from nearfar.losses.lifted import Lifted
from nearfar.losses.margin import Margin
from nearfar.losses.mpa import MPA
from nearfar.losses.mpa_ap import MPAAP
from nearfar.losses.mpa_dw import MPADW
from nearfar.losses.multi_similarity import MultiSimilarity
from nearfar.losses.n_pair import NPair
from nearfar.losses.normalized_softmax import NormalizedSoftmax
from nearfar.losses.nt_xent import NTXent
from nearfar.losses.pair_loss import Loss, PairLoss
from nearfar.losses.pair_margin import PairMargin
from nearfar.losses.proxies.proxy_loss import ProxyLoss
from nearfar.losses.proxy_anchor import ProxyAnchor
from nearfar.losses.proxy_isa import ProxyISA
from nearfar.losses.proxy_nca import ProxyNCA
from nearfar.losses.rdml import RDML
from nearfar.losses.smooth_ap import SmoothAP
from nearfar.losses.snr import SNR
from nearfar.losses.soft_triple import SoftTriple
from nearfar.losses.subcenter_arcface import SubcenterArcFace
from nearfar.losses.supcon import SupCon
from nearfar.losses.triplet import Triplet
from nearfar.mining import named_miner
from nearfar.validation import nearest

_LOSSES: dict[str, type[Loss]] = {
    "angular": Angular,
    "arcface": ArcFace,
    "binomial": Binomial,
    "circle": Circle,
    "contrastive": Contrastive,
    "cosface": CosFace,
    "dro": DRO,
    "fastap": FastAP,
    "hap2s": HAP2S,
    "lifted": Lifted,
    "margin": Margin,
    "mpa": MPA,
    "mpa-ap": MPAAP,
    "mpa-dw": MPADW,
    "multi-similarity": MultiSimilarity,
    "n-pair": NPair,
    "normalized-softmax": NormalizedSoftmax,
    "nt-xent": NTXent,
    "pair-margin": PairMargin,
    "proxy-anchor": ProxyAnchor,
    "proxy-isa": ProxyISA,
    "proxy-nca": ProxyNCA,
    "rdml": RDML,
    "smooth-ap": SmoothAP,
    "snr": SNR,
    "soft-triple": SoftTriple,
    "subcenter-arcface": SubcenterArcFace,
    "supcon": SupCon,
    "triplet": Triplet,
}


def names() -> list[str]:
    """The names that `create` knows."""
    return sorted(_LOSSES)


def register(name: str, loss: type[Loss]) -> None:
    """Make a loss of your own known to `create`, recipes and `nearfar train` by a new name."""
    if name in _LOSSES:
        raise ValueError(f"loss {name!r} is there already, it is {_LOSSES[name].__name__}: choose another name")
    _LOSSES[name] = loss


def loss_class(name: str) -> type[Loss]:
    """The class behind a name; an unknown name is a ValueError that suggests the nearest."""
    if name not in _LOSSES:
        raise ValueError(f"unknown loss {name!r}{nearest(name, _LOSSES)} Known: {', '.join(names())}")
    return _LOSSES[name]


def create(name: str, *, mine: str | Mapping[str, Any] | None = None, **options: Any) -> Loss:
    """Make a loss by its name; an unknown name or option is a ValueError that suggests the nearest.

    `mine` lets a pair loss choose among its pairs first: a name of `nearfar.mining.MINERS`, or {name, ...options}.

    >>> create("triplet", margn=0.1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: loss 'triplet' has no option 'margn'; did you mean 'margin'? Options: margin, ...
    """
    make = loss_class(name)
    known = list(inspect.signature(make).parameters)
    for option in options:
        if option not in known:
            raise ValueError(
                f"loss {name!r} has no option {option!r}{nearest(option, known)} Options: {', '.join(known)}"
            )
    required = [p.name for p in inspect.signature(make).parameters.values() if p.default is p.empty]
    missing = [option for option in required if option not in options]
    if missing:
        raise ValueError(f"loss {name!r} needs {' and '.join(missing)}: pass {missing[0]}=...")
    loss = make(**options)
    if mine is not None:
        if not isinstance(loss, PairLoss):
            raise ValueError(f"mine={mine!r} chooses among pairs of samples, and loss {name!r} has none: leave it out")
        loss.mine = named_miner(mine)
    return loss


__all__ = [
    "DRO",
    "HAP2S",
    "MPA",
    "MPAAP",
    "MPADW",
    "RDML",
    "SNR",
    "Angular",
    "ArcFace",
    "Binomial",
    "Circle",
    "Contrastive",
    "CosFace",
    "FastAP",
    "Lifted",
    "Loss",
    "Margin",
    "MultiSimilarity",
    "NPair",
    "NTXent",
    "NormalizedSoftmax",
    "PairLoss",
    "PairMargin",
    "ProxyAnchor",
    "ProxyISA",
    "ProxyLoss",
    "ProxyNCA",
    "SmoothAP",
    "SoftTriple",
    "SubcenterArcFace",
    "SupCon",
    "Triplet",
    "create",
    "loss_class",
    "names",
    "register",
]
