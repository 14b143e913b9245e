"""Settings of runs that take a second."""

from __future__ import annotations

from nearfar.training import Config, resolve


def configured(kind: str, source: str, recipe: str, *settings: str) -> Config:
    small = ["model.dim=8", "steps=12", "log_every=4", "batches.size=24", "threads=1"]
    return resolve(kind, recipe=recipe, settings=[f"data.source={source}", *small, *settings])
