"""Look up settings by their dotted keys."""

from __future__ import annotations

from nearfar.config.schema import Config
from nearfar.config.setting import Setting, walk

# Short names of frequently used settings, as options for `nearfar train` and arguments for `nearfar.fit`.
SHORT_KEYS = {
    "lr": "optimizer.lr",
    "batch_size": "batches.size",
    "backbone": "model.backbone",
    "size": "images.crop",
    "dim": "model.dim",
}


def all_settings() -> dict[str, Setting]:
    """Return a dict that maps the dotted key of every setting and section to its description.

    >>> all_settings()["optimizer.lr"].help
    'Learning rate of the backbone.'
    """
    return {key: each.metadata["setting"] for key, each, _ in walk(Config)}


def neutral_settings() -> tuple[str, ...]:
    """Return the keys of the settings that do not change the trained weights or their scores (except for rounding)."""
    return tuple(key for key, each in all_settings().items() if each.neutral)
