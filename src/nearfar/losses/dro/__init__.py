"""DRO: a pair loss under the worst-case weights of an uncertainty set."""

from nearfar.losses.dro.loss import DROLoss

__all__ = ["DROLoss"]
