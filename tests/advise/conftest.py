from __future__ import annotations

import pytest

from training_cases import saved_vectors


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """24 classes of 10 vectors in 16 dimensions, half of the classes for training."""
    return saved_vectors(tmp_path_factory.mktemp("data") / "many.npz", classes=24, per_class=10, noise=0.9)
