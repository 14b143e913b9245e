from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nearfar.data import Manifest
from nearfar.models import create_embedder
from nearfar.training.evaluate import can_be_scored, default_batch_size


@pytest.mark.parametrize(("side", "size"), [(28, 256), (112, 256), (224, 64), (448, 16), (10_000, 1)])
def test_batches_of_large_images_are_smaller(side: int, size: int) -> None:
    with torch.device("meta"):
        assert default_batch_size(create_embedder("small", input_size=side)) == size


def test_a_network_without_an_image_size_has_the_largest_batch() -> None:
    assert default_batch_size(nn.Linear(2, 2)) == 256


@pytest.mark.parametrize(("side", "size"), [(28, 256), (112, 16), (224, 4), (448, 1)])
def test_batches_on_a_cpu_are_small_enough_for_its_cache(side: int, size: int) -> None:
    assert default_batch_size(create_embedder("small", input_size=side)) == size


@pytest.mark.parametrize(
    ("labels", "role", "reason"),
    [
        ([0, 1, 2, 3], None, "no two test samples have the same class"),
        ([0, 0, 1, 1], ["query", "query", "gallery", "gallery"], "no test query has the class of a gallery sample"),
        ([0, 0, 1, 1], ["query", "gallery", "gallery", "gallery"], None),
        ([0, 0, 1, 2], None, None),
    ],
)
def test_samples_that_cannot_be_scored_are_explained(
    labels: list[int], role: list[str] | None, reason: str | None
) -> None:
    manifest = Manifest(
        labels=np.array(labels),
        classes=("a", "b", "c", "d"),
        split=np.array(["test"] * 4),
        features=np.eye(4, dtype=np.float32),
        role=None if role is None else np.array(role),
    )
    said: list[str] = []
    assert can_be_scored(manifest, "test", said.append) == (reason is None)
    assert said == ([] if reason is None else [f"warning: there will be no test scores, because {reason}"])
