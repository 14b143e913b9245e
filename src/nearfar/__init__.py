"""nearfar: deep metric learning on PyTorch.

Train embeddings in which similar things are near and different things are far, and search with them. Subpackages load
on first use, so `import nearfar` does not import torch:

>>> import nearfar
>>> nearfar.losses.create("triplet").margin
0.2
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearfar import advise as advise
    from nearfar import audit as audit
    from nearfar import calibration as calibration
    from nearfar import compat as compat
    from nearfar import config as config
    from nearfar import data as data
    from nearfar import losses as losses
    from nearfar import metrics as metrics
    from nearfar import mining as mining
    from nearfar import models as models
    from nearfar import ops as ops
    from nearfar import pacing as pacing
    from nearfar import report as report
    from nearfar import runs as runs
    from nearfar import samplers as samplers
    from nearfar import search as search
    from nearfar import serve as serve
    from nearfar import suites as suites
    from nearfar import training as training
    from nearfar.estimator import MetricLearner as MetricLearner
    from nearfar.metrics import Scores as Scores
    from nearfar.metrics import evaluate as evaluate
    from nearfar.search import load as load
    from nearfar.training import Trainer as Trainer
    from nearfar.training import fit as fit

__version__ = "0.1.0"

_SUBMODULES = (
    *("advise", "audit", "calibration", "compat", "config", "data", "losses", "metrics", "mining", "models", "ops"),
    *("pacing", "report", "runs", "samplers", "search", "serve", "suites", "training"),
)
_MODULES = {
    "MetricLearner": "nearfar.estimator",
    "Scores": "nearfar.metrics",
    "Trainer": "nearfar.training",
    "evaluate": "nearfar.metrics",
    "fit": "nearfar.training",
    "load": "nearfar.search",
}
__all__ = ["MetricLearner", "Scores", "Trainer", "__version__", "evaluate", "fit", "load"]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"nearfar.{name}")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'nearfar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES])
