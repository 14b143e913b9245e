"""Settings of runs that take a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearfar.config.merge import resolve
from nearfar.data import Manifest, save_manifest
from nearfar.training import Config


def saved_vectors(path: Path, *, classes: int, per_class: int, noise: float) -> str:
    """Classes of vectors in 16 dimensions around their centers, half of the classes for training."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), per_class)
    features = (rng.normal(size=(classes, 16))[labels] + noise * rng.normal(size=(len(labels), 16))).astype(np.float32)
    names = tuple(f"kind {i:02d}" for i in range(classes))
    manifest = Manifest(labels=labels, classes=names, split=["train"] * len(labels), features=features)
    save_manifest(manifest.split_by_class_order(), path)
    return str(path)


def configured(kind: str, source: str, recipe: str, *settings: str) -> Config:
    small = ["model.dim=8", "steps=12", "log_every=4", "batches.size=24", "threads=1"]
    return resolve(kind, recipe=recipe, settings=[f"data.source={source}", *small, *settings])
