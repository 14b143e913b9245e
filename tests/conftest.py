from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.data import Manifest, save_manifest
from training_cases import saved_vectors

# Assertions in the modules that tests/test_golden.py uses show their values, as in test modules.
pytest.register_assert_rewrite(
    *(f"golden_{part}" for part in ("bspml", "cases", "dro", "identities", "metrics", "profs", "proxy"))
)

# One thread, because the batches are tiny, and so that sums have the same order on every machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    """12 classes of 20 vectors in 16 dimensions, half of the classes for training."""
    return saved_vectors(tmp_path_factory.mktemp("data") / "vectors.npz", classes=12, per_class=20, noise=0.8)


@pytest.fixture(scope="session")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """8 classes of 12 images of 12 x 12 pixels."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(8), 12)
    kinds = rng.integers(0, 2, (8, 12, 12)) * 200
    pixels = np.clip(kinds[labels] + rng.normal(0, 20, (96, 12, 12)), 0, 255).astype(np.uint8)
    classes = tuple(f"kind {i}" for i in range(8))
    manifest = Manifest(labels=labels, classes=classes, split=["train"] * 96, pixels=pixels)
    path: Path = tmp_path_factory.mktemp("data") / "drawings.npz"
    save_manifest(manifest.split_by_class_order(), path)
    return str(path)
