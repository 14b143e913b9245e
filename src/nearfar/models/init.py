"""Initialization from good features: the head from their half-whitened PCA, proxies from class means.

Both are ours. A random head discards most of the information in good features before training begins: on CUB with
vectors of EfficientNet-Lite0, every loss ends below the untrained vectors (docs/models.md has the numbers).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from nearfar.metrics.kmeans import kmeans
from nearfar.models.embedder import Embedder
from nearfar.models.heads import Head
from nearfar.ops.geometry import unit
from nearfar.validation import check_embeddings, check_labels

ROWS = 16_384


class ProxyTable(Protocol):
    """The part of a proxy loss that initialization needs: `proxies` is [classes, dim] or [classes, K, dim]."""

    classes: int
    dim: int
    proxies: nn.Parameter


@torch.no_grad()
def compute_half_whitened_pca(features: Tensor, dim: int, *, power: float = 0.25) -> tuple[Tensor, Tensor]:
    """Compute W [dim, D] and b [dim] of y = W x + b = diag(v^-power) U^T (x - mean).

    v and U are the largest `dim` eigenvalues of the covariance and their eigenvectors. With power 1/4, the standard
    deviation of a direction becomes its square root, so directions of small variance count more than in PCA and less
    than after whitening. Directions without variance are set to 0. The largest entry of each eigenvector is positive,
    so the result does not depend on the solver. The computation is in float64.

    Args:
        features: Feature vectors [N, D].
        dim: Number of directions to keep, at most D.
        power: 0 is PCA, 1/2 is whitening.

    >>> x = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> weight, bias = compute_half_whitened_pca(x, 2, power=0.5)
    >>> (x @ weight.T + bias).var(0, correction=0)
    tensor([1.0000, 1.0000])
    """
    check_embeddings("features", features)
    count, width = features.shape
    if dim > width:
        raise ValueError(f"dim must be at most {width}, the number of columns of the features, got {dim}")
    parts = torch.split(features, ROWS)  # a float64 copy of all features would take twice their memory
    mean = sum((part.double().sum(0) for part in parts), features.new_zeros(width, dtype=torch.float64)) / count
    squares = torch.zeros(width, width, dtype=torch.float64, device=features.device)
    for part in parts:
        centered = part.double() - mean
        squares.addmm_(centered.T, centered)
    values, vectors = torch.linalg.eigh(squares / count)
    values, vectors = values.flip(0)[:dim], vectors.flip(1)[:, :dim]
    vectors = vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
    has_variance = values > values[0].clamp_min(0) * width * torch.finfo(torch.float32).eps
    scale = torch.where(has_variance, values.clamp_min(torch.finfo(torch.float64).tiny) ** -power, 0.0)
    weight = vectors.T * scale[:, None]
    return weight.to(features.dtype), -(weight @ mean).to(features.dtype)


@torch.no_grad()
def init_head_from_pca(
    embedder: Embedder, inputs: Tensor | Iterable[Tensor], *, power: float = 0.25, batch: int = 256
) -> Tensor:
    """Set the linear layer of the head to the half-whitened PCA of its inputs on the training set.

    The embeddings are scaled so that their mean squared length is `dim`, as with a random head, so the same learning
    rates apply. Any backbone works; images take one forward pass over the training set.

    Args:
        embedder: The embedder, with a linear or MLP head.
        inputs: The inputs of the embedder, or batches of them.
        power: See `compute_half_whitened_pca`.
        batch: Batch size, if `inputs` is one tensor.

    Returns:
        The embeddings of the inputs.
    """
    head = embedder.head
    if not isinstance(head, Head):
        raise ValueError("head='identity' has no weights to initialize: use head='linear' or 'mlp'")
    mode = embedder.training
    embedder.eval()
    parts = torch.split(inputs, batch) if isinstance(inputs, Tensor) else inputs
    features = torch.cat([head.norm(embedder.pool(part)) for part in parts])
    embedder.train(mode)
    weight, bias = compute_half_whitened_pca(features, embedder.dim, power=power)
    length = (features @ weight.T + bias).square().mean().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    head.linear.weight.copy_(weight / length)
    head.linear.bias.copy_(bias / length)
    return torch.cat([head(part) for part in torch.split(features, 4096)])


@torch.no_grad()
def init_proxies_from_class_means(loss: ProxyTable, embeddings: Tensor, labels: Tensor, *, seed: int = 0) -> None:
    """Set the proxy of each class to the mean of its unit embeddings, or its K proxies to their K k-means centers.

    The lengths of the proxies are kept, because an optimizer step rotates a long proxy less than a short one. A class
    without embeddings keeps its proxies. If a class has fewer distinct embeddings than proxies, the remaining proxies
    are its mean plus small random noise, because identical proxies would receive identical gradients.

    Args:
        loss: A proxy loss.
        embeddings: Embeddings [N, dim] of the training set.
        labels: Class of each embedding [N].
        seed: Seed of k-means and of the noise.

    >>> from nearfar.losses import create
    >>> loss = create("proxy-anchor", classes=2, dim=2)
    >>> init_proxies_from_class_means(loss, torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 1.0]]), torch.tensor([0, 1, 1]))
    >>> torch.nn.functional.normalize(loss.proxies)
    tensor([[1., 0.],
            [0., 1.]], grad_fn=<DivBackward0>)
    """
    check_embeddings("embeddings", embeddings, dim=loss.dim)
    check_labels("labels", labels, rows=len(embeddings), rows_name="embeddings")
    rows, proxies = unit(embeddings.float()), loss.proxies
    generator = torch.Generator().manual_seed(seed)
    for label in torch.unique(labels).tolist():
        if not 0 <= label < loss.classes:
            raise ValueError(f"labels must be in 0..{loss.classes - 1} because classes={loss.classes}, got {label}")
        members = rows[labels == label]
        old = proxies[label].reshape(-1, loss.dim)
        centers = compute_class_centers(members.cpu(), len(old), seed=seed, generator=generator).to(old)
        proxies[label] = (centers * torch.linalg.vector_norm(old, dim=1, keepdim=True)).reshape(proxies[label].shape)


def compute_class_centers(
    rows: Tensor, count: int, *, seed: int, generator: torch.Generator, jitter: float = 0.1
) -> Tensor:
    """Compute `count` unit vectors for unit vectors [N, d]: their mean, or k-means centers and noisy means."""
    mean = unit(rows.mean(0, keepdim=True))
    if count == 1:
        return mean
    distinct = torch.unique(rows, dim=0)
    groups = torch.from_numpy(kmeans(distinct.numpy(), min(count, len(distinct)), seed=seed))
    centers = torch.stack([distinct[groups == group].mean(0) for group in torch.unique(groups)])
    noise = torch.randn(count - len(centers), rows.shape[1], generator=generator) * jitter / rows.shape[1] ** 0.5
    return unit(torch.cat([centers, mean + noise]))
