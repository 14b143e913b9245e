from __future__ import annotations

import pytest
import torch
from torch import nn

from nearfar.models import create_embedder
from nearfar.training.evaluate import default_batch_size


@pytest.mark.parametrize(("side", "size"), [(28, 256), (112, 256), (224, 64), (448, 16), (10_000, 1)])
def test_batches_of_large_images_are_smaller(side: int, size: int) -> None:
    with torch.device("meta"):
        assert default_batch_size(create_embedder("small", input_size=side)) == size


def test_a_network_without_an_image_size_has_the_largest_batch() -> None:
    assert default_batch_size(nn.Linear(2, 2)) == 256


@pytest.mark.parametrize(("side", "size"), [(28, 256), (112, 16), (224, 4), (448, 1)])
def test_batches_on_a_cpu_are_small_enough_for_its_cache(side: int, size: int) -> None:
    assert default_batch_size(create_embedder("small", input_size=side)) == size
