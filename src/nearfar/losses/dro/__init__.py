"""DRO: a pair loss under the worst-case weights of an uncertainty set."""

from nearfar.losses.dro.loss import DRO

__all__ = ["DRO"]
