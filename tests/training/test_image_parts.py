"""A batch of large images is computed in parts on a CPU, with the same result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nearfar.models import create_embedder
from nearfar.training.image_parts import embed_in_parts, training_part_size


def make_embedder(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return create_embedder("efficientnet-lite0", dim=8, input_size=64, **options).double().train()


def test_embeddings_and_gradients_do_not_depend_on_the_parts() -> None:
    embedder = make_embedder(freeze_bn=True)
    x = torch.rand(10, 3, 64, 64, dtype=torch.float64)
    results = []
    for size in (None, 4):
        embedder.zero_grad()
        y = embed_in_parts(embedder, x, size=size)
        (y @ y.T).exp().mean().log().backward()
        results.append([y.detach(), *(p.grad for p in embedder.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-12)


def test_the_network_sees_parts_of_the_given_size() -> None:
    sizes: list[int] = []

    def network(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return x

    x = torch.arange(10.0)[:, None]
    torch.testing.assert_close(embed_in_parts(network, x, size=4), x)
    assert sizes == [4, 4, 2]


@pytest.mark.parametrize(("side", "expected"), [(384, 16), (224, 16), (112, 64), (28, 1024)])
def test_larger_images_have_smaller_parts(side: int, expected: int) -> None:
    embedder = make_embedder(freeze_bn=True)
    embedder.input_size = side
    assert training_part_size(embedder, torch.empty(1, 3, side, side)) == expected


def test_a_batch_is_not_split_if_samples_depend_on_each_other() -> None:
    x = torch.empty(1, 3, 64, 64)
    assert training_part_size(make_embedder(freeze_bn=False), x) is None
    embedder = make_embedder(freeze_bn=True)
    assert training_part_size(nn.Sequential(embedder, nn.Dropout(0.1)).train(), x) is None
    assert training_part_size(embedder, torch.empty(1, 100)) is None
