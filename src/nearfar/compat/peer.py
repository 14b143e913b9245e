"""Replace a nearfar loss with its counterpart in pytorch-metric-learning, with the same options, for comparisons.

This is the inverse of `nearfar.compat.losses`: `peer_loss(create("multi-similarity", beta=40))` returns a loss
that calls pytorch-metric-learning's MultiSimilarityLoss(beta=40) on the pairs that MultiSimilarityMiner selects. The
module needs the optional dependencies `nearfar[peers]`.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn, random

from nearfar.compat.peer_table import NAME, PEERS
from nearfar.errors import NearfarError, install_hint
from nearfar.losses import Loss, PairLoss, ProxyLoss
from nearfar.losses.base import full_precision
from nearfar.training.components import register_loss_adapter
from nearfar.validation import Labels

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

    def forward(self, embeddings: Tensor, labels: Labels | None = None, **others: Any) -> Tensor:
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
        rows = (
            own["proxies"] if "proxies" in own else next(own[name] for name in ("W", "fc", "weight") if name in own).t()
        )
        return rows.reshape(self._shape)  # a view, because only the first dimension is split


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


register_loss_adapter("peer", peer_loss)
