"""Training: `train` runs a configuration and returns the finished `Run`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearfar.config.merge import resolve
    from nearfar.config.schema import Config
    from nearfar.runs import Run, load_embedder, save_embedder
    from nearfar.training.fitting import configure, fit
    from nearfar.training.launch import train
    from nearfar.training.trainer import Trainer

__all__ = ["Config", "Run", "Trainer", "configure", "fit", "load_embedder", "resolve", "save_embedder", "train"]

_MODULES = {
    "Config": "nearfar.config.schema",
    "Run": "nearfar.runs",
    "Trainer": "nearfar.training.trainer",
    "configure": "nearfar.training.fitting",
    "fit": "nearfar.training.fitting",
    "load_embedder": "nearfar.runs",
    "resolve": "nearfar.config.merge",
    "save_embedder": "nearfar.runs",
    "train": "nearfar.training.launch",
}


def __getattr__(name: str) -> Any:
    # nearfar.runs imports modules of this package, so importing it at the top would be a circular import
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
