"""nearfar: deep metric learning on PyTorch.

Learns embeddings in which the same kind of thing is near and a different kind is far, and turns them into search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearfar.metrics import Scores as Scores
    from nearfar.metrics import evaluate as evaluate

__version__ = "0.1.0"
__all__ = ["Scores", "__version__", "evaluate"]


def __getattr__(name: str) -> Any:
    # torch is imported only when something needs it, so that `nearfar --help` answers at once
    if name in ("Scores", "evaluate"):
        from nearfar import metrics

        return getattr(metrics, name)
    raise AttributeError(f"module 'nearfar' has no attribute {name!r}")
