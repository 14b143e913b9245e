import time

import pytest
import torch

from nearfar.report.tsne import kl_gradient, neighbor_probabilities, tsne


def blobs(each: int = 30, dim: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    centers = 6 * torch.eye(dim)[:3]
    return torch.randn(3 * each, dim) + centers.repeat_interleave(each, 0), torch.arange(3).repeat_interleave(each)


def test_clusters_are_separated():
    x, labels = blobs()
    y = tsne(x)
    distance = torch.cdist(y, y).fill_diagonal_(torch.inf)
    assert (labels[distance.argmin(1)] == labels).all()
    same = labels[:, None] == labels
    within = distance.masked_fill(~same | torch.eye(len(y), dtype=torch.bool), 0).max()
    centers = torch.stack([y[labels == c].mean(0) for c in range(3)])
    assert torch.pdist(centers).min() > within


def test_neighbors_stay_neighbors_as_well_as_in_scikit_learn():
    manifold = pytest.importorskip("sklearn.manifold")
    x = torch.randn(150, 5).cumsum(0)
    theirs = manifold.TSNE(method="exact", init="pca", max_iter=500, random_state=0).fit_transform(x.numpy())
    ours = tsne(x).numpy()
    assert manifold.trustworthiness(x.numpy(), ours) > manifold.trustworthiness(x.numpy(), theirs) - 0.005


def test_the_seed_determines_the_map():
    x, _ = blobs(12)
    before = torch.get_rng_state()
    y = tsne(x, steps=60, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(y, tsne(x, steps=60, seed=3))
    assert not torch.equal(y, tsne(x, steps=60, seed=4))


@pytest.mark.parametrize("perplexity", [2.0, 15.0, 30.0])
def test_every_row_has_the_perplexity(perplexity):
    x = torch.randn(100, 8) * torch.linspace(0.01, 100, 100)[:, None]
    p = neighbor_probabilities(torch.cdist(x.double(), x.double()).square(), perplexity)
    assert torch.allclose(p.sum(1), torch.ones(100).double())
    assert (p.diagonal() == 0).all()
    entropy = -torch.special.xlogy(p, p).sum(1)
    assert torch.allclose(entropy.exp(), torch.full((100,), perplexity).double(), rtol=1e-6)


def test_neighbor_probabilities_by_a_slow_loop():
    x = torch.randn(6, 3).double()
    p = neighbor_probabilities(torch.cdist(x, x).square(), 2.5)
    for i in range(6):
        low, high = 1e-9, 1e9
        for _ in range(200):
            beta = (low * high) ** 0.5
            e = [float(torch.exp(-beta * (x[i] - x[j]).square().sum())) if j != i else 0.0 for j in range(6)]
            row = torch.tensor(e).double() / max(sum(e), 1e-300)
            if (-torch.special.xlogy(row, row).sum()).exp() > 2.5:
                low = beta
            else:
                high = beta
        assert torch.allclose(row, p[i], atol=1e-6)


def test_gradient_by_autograd():
    p = torch.rand(7, 7).double().fill_diagonal_(0)
    p = (p + p.T) / (2 * p.sum())
    y = torch.randn(7, 2).double().requires_grad_()
    kernel = 1 / (1 + (y[:, None] - y[None, :]).square().sum(2))
    q = kernel / (kernel.sum() - 7)
    off = ~torch.eye(7, dtype=torch.bool)
    (p[off] * (p[off] / q[off]).log()).sum().backward()
    ours = kl_gradient(p, y.detach(), torch.empty(7, 7).double(), torch.empty(7, 7).double())
    assert torch.allclose(ours, y.grad, atol=1e-12)


@pytest.mark.parametrize("rows", range(1, 8))
def test_few_rows(rows):
    y = tsne(torch.randn(rows, 3))
    assert y.shape == (rows, 2)
    assert torch.isfinite(y).all()
    assert y.mean(0).abs().max() < 1e-3
    assert rows == 1 or torch.pdist(y).min() > 1e-3


@pytest.mark.parametrize("x", [torch.ones(20, 4), torch.arange(20.0)[:, None], torch.zeros(9, 2), torch.randn(8, 90)])
def test_equal_rows_one_column_and_more_columns_than_rows(x):
    y = tsne(x, steps=100)
    assert torch.isfinite(y).all()
    assert (y.std(0) > 1e-3).all()


def test_bad_input():
    with pytest.raises(ValueError, match=r"x has NaN"):
        tsne(torch.tensor([[0.0], [torch.nan]]))
    with pytest.raises(ValueError, match="perplexity must be"):
        tsne(torch.randn(4, 2), perplexity=0.0)


@pytest.mark.slow
def test_a_thousand_points_in_eight_seconds():
    start = time.thread_time()  # of this thread, whatever else the machine is doing
    tsne(torch.randn(1000, 128))
    assert time.thread_time() - start < 8
