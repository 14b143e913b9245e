from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearfar.data import Manifest, save


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """24 classes of 10 vectors in 16 dimensions, half of the classes for training."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 10)
    features = (rng.normal(size=(24, 16))[labels] + 0.9 * rng.normal(size=(240, 16))).astype(np.float32)
    classes = tuple(f"kind {i:02d}" for i in range(24))
    manifest = Manifest(labels=labels, classes=classes, split=["train"] * 240, features=features)
    path: Path = tmp_path_factory.mktemp("data") / "many.npz"
    save(manifest.by_class_order_split(), path)
    return str(path)
