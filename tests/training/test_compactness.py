"""The logged compactness is the mean cosine over all pairs of different vectors."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from nearfar.losses import create
from nearfar.losses.proxies.sharded import ShardedProxies
from nearfar.training.compactness import mean_cosine, measure_compactness


def by_pairs(x: Tensor) -> float:
    """The mean over pairs, one at a time."""
    cosines = [torch.nn.functional.cosine_similarity(x[i], x[j], dim=0) for i, j in permutations(range(len(x)), 2)]
    return float(torch.stack(cosines).mean())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_is_the_mean_over_pairs(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x = (torch.randn(9, 4, generator=generator) + 0.5).mul(torch.logspace(-3, 3, 9)[:, None]).to(dtype)
    assert mean_cosine(x) == pytest.approx(by_pairs(x.double()), abs=1e-6)


def test_limits() -> None:
    assert mean_cosine(torch.ones(1000, 3)) == pytest.approx(1, abs=1e-6)
    assert mean_cosine(torch.eye(50)) == pytest.approx(0, abs=1e-7)
    simplex = torch.eye(6) - 1 / 6  # the most dispersed six vectors
    assert mean_cosine(simplex) == pytest.approx(-1 / 5, abs=1e-6)
    assert mean_cosine(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])) == pytest.approx(1 / 3)
    assert mean_cosine(torch.ones(1, 3)) is None
    assert mean_cosine(torch.ones(0, 3)) is None


def test_proxies_of_every_shape_and_losses_without() -> None:
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    for name, options in (("proxy-anchor", {}), ("mpa", {"proxies_per_class": 2})):
        loss = create(name, classes=4, dim=3, **options)
        found = measure_compactness(x, loss)
        assert found == {
            "samples": pytest.approx(by_pairs(x), abs=1e-6),
            "proxies": pytest.approx(by_pairs(loss.proxies.detach().reshape(-1, 3)), abs=1e-6),
        }
        assert measure_compactness(x, ShardedProxies(loss)) == found  # the only process has all proxies
    assert set(measure_compactness(x, create("triplet"))) == {"samples"}
