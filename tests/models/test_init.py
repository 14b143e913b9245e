"""Initialization: PCA vs the direct computation, proxies vs class means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from nearfar.losses import create
from nearfar.models import compute_half_whitened_pca, create_embedder, init_head_from_pca, init_proxies_from_class_means


def correlated(count: int = 200, width: int = 12) -> torch.Tensor:
    return torch.randn(count, width) @ torch.randn(width, width) + torch.arange(width)


@pytest.mark.parametrize("rows", [16_384, 70])
@pytest.mark.parametrize("power", [0.0, 0.25, 0.5])
def test_pca_equals_the_direct_computation(power: float, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.models.init.ROWS", rows)  # several blocks
    x = correlated().double()
    weight, bias = compute_half_whitened_pca(x, 7, power=power)
    centered = x.numpy() - x.numpy().mean(0)
    _, singular, rows = np.linalg.svd(centered, full_matrices=False)
    values = singular[:7] ** 2 / len(x)
    expected = centered @ rows[:7].T * values**-power
    result = (x @ weight.T + bias).numpy()
    signs = np.sign((result * expected).sum(0))
    np.testing.assert_allclose(result, expected * signs, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(result.var(0), values ** (1 - 2 * power), rtol=1e-8)


def test_pca_ignores_directions_without_variance() -> None:
    x = correlated()
    x = torch.cat([x, x[:, :3]], 1)
    weight, bias = compute_half_whitened_pca(x, 15)
    assert torch.isfinite(weight).all()
    assert torch.isfinite(bias).all()
    assert not weight[12:].any()
    with pytest.raises(ValueError, match="at most 15, the number of columns"):
        compute_half_whitened_pca(x, 16)


def test_pca_of_equal_vectors_is_zero_not_nan() -> None:
    weight, bias = compute_half_whitened_pca(torch.ones(5, 3), 2)
    assert not weight.any()
    assert not bias.any()


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_init_head_from_pca_sets_the_head(head: str, layer_norm: bool) -> None:
    x = correlated()
    embedder = create_embedder("features", channels=12, dim=5, head=head, layer_norm=layer_norm)
    init_head_from_pca(embedder, x)
    seen = torch.nn.functional.layer_norm(x, (12,)) if layer_norm else x
    weight, bias = compute_half_whitened_pca(seen, 5)
    result = embedder(x)
    torch.testing.assert_close(normalize(result), normalize(seen @ weight.T + bias), rtol=1e-4, atol=1e-4)
    assert result.square().mean().item() == pytest.approx(1.0, rel=1e-4)
    assert embedder.training


def test_init_head_from_pca_works_on_images() -> None:
    embedder = create_embedder("small-conv", dim=5, pooling="gem")
    x = torch.rand(40, 1, 28, 28)
    init_head_from_pca(embedder, x, batch=16)
    y = embedder.eval()(x)
    off = torch.corrcoef(y.T) - torch.eye(5)
    assert off.abs().max() < 1e-2
    with pytest.raises(ValueError, match="head='identity'"):
        init_head_from_pca(create_embedder("small-conv", head="identity"), x)


def test_init_head_from_pca_accepts_batches_and_returns_the_embeddings() -> None:
    x = torch.rand(40, 1, 28, 28)
    whole, parts = (create_embedder("small-conv", dim=5, head="mlp") for _ in range(2))
    parts.load_state_dict(whole.state_dict())
    rows = init_head_from_pca(whole, x, batch=16)
    again = init_head_from_pca(parts, iter(torch.split(x, 16)))
    assert torch.equal(rows, again)
    torch.testing.assert_close(rows, whole.eval()(x), rtol=1e-4, atol=1e-4)


def test_one_proxy_per_class_is_the_mean_of_unit_embeddings() -> None:
    loss = create("proxy-anchor", classes=4, dim=6)
    before = loss.proxies.detach().clone()  # type: ignore[union-attr]
    embeddings, labels = torch.randn(30, 6) * torch.rand(30, 1), torch.arange(30) % 3
    init_proxies_from_class_means(loss, embeddings, labels)  # type: ignore[arg-type]
    proxies = loss.proxies.detach()  # type: ignore[union-attr]
    for label in range(3):
        mean = normalize(embeddings)[labels == label].mean(0)
        torch.testing.assert_close(normalize(proxies[label], dim=0), normalize(mean, dim=0))
    torch.testing.assert_close(proxies.norm(dim=1), before.norm(dim=1))
    assert torch.equal(proxies[3], before[3])
    assert loss.proxies.requires_grad  # type: ignore[union-attr]


def test_several_proxies_find_the_groups_of_a_class() -> None:
    loss = create("mpa", classes=2, dim=6, proxies_per_class=3)
    centers = torch.eye(6).reshape(2, 3, 6)
    labels, group = torch.arange(60) % 2, torch.arange(60) // 2 % 3
    embeddings = centers[labels, group] + 0.01 * torch.randn(60, 6)
    init_proxies_from_class_means(loss, embeddings, labels)  # type: ignore[arg-type]
    cosines = torch.einsum("ckd,cjd->ckj", normalize(loss.proxies.detach(), dim=2), centers)  # type: ignore[union-attr]
    torch.testing.assert_close(cosines.amax(1), torch.ones(2, 3), rtol=0, atol=1e-3)


def test_more_proxies_than_samples_do_not_coincide() -> None:
    loss = create("soft-triple", classes=2, dim=6, proxies_per_class=4)
    init_proxies_from_class_means(loss, torch.randn(2, 6).repeat(3, 1), torch.arange(6) % 2)  # type: ignore[arg-type]
    proxies = normalize(loss.proxies.detach(), dim=2)  # type: ignore[union-attr]
    for own in proxies:
        gaps = torch.cdist(own, own)[~torch.eye(4, dtype=torch.bool)]
        assert gaps.min() > 1e-3
        assert gaps.max() < 1


def test_proxies_refuse_embeddings_that_do_not_fit() -> None:
    loss = create("proxy-anchor", classes=2, dim=6)
    with pytest.raises(ValueError, match="6 columns"):
        init_proxies_from_class_means(loss, torch.randn(4, 5), torch.arange(4) % 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="because classes=2"):
        init_proxies_from_class_means(loss, torch.randn(4, 6), torch.arange(4))  # type: ignore[arg-type]
