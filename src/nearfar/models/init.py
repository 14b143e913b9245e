"""Initialization from pretrained features: the head from their half-whitened PCA, the proxies from class means.

Both methods are our own. A random head discards much of the information in good features before training begins. On CUB
with feature vectors of EfficientNet-Lite0 and PyTorch's default initialization of the head, the Recall@1 after training
is lower than that of the input vectors. docs/models.md has the numbers.
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
    """Attributes of a proxy loss that initialization needs.

    `proxies` has the shape [classes, dim], or [classes, K, dim] for K proxies per class.
    """

    classes: int
    dim: int
    proxies: nn.Parameter


@torch.no_grad()
def compute_half_whitened_pca(features: Tensor, dim: int, *, power: float = 0.25) -> tuple[Tensor, Tensor]:
    """Compute W [dim, D] and b [dim] of the map y = W x + b = diag(v^-power) U^T (x - mean).

    v are the `dim` largest eigenvalues of the covariance of the features, and U their eigenvectors. With power 1/4, the
    standard deviation of each direction is replaced by its square root: directions of small variance have more weight
    than in PCA and less than after whitening. Directions without variance are set to 0. The sign of each eigenvector is
    chosen so that its component with the largest absolute value is positive, because the sign otherwise depends on the
    solver. The computation is in float64.

    Args:
        features: Feature vectors [N, D].
        dim: Number of directions to keep, at most D.
        power: Exponent of the scaling: 0 is PCA without scaling, 1/2 is whitening.

    >>> x = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> weight, bias = compute_half_whitened_pca(x, 2, power=0.5)
    >>> (x @ weight.T + bias).var(0, correction=0)
    tensor([1.0000, 1.0000])
    """
    check_embeddings("features", features)
    count, width = features.shape
    if dim > width:
        raise ValueError(f"dim must be at most {width}, the number of columns of features, got {dim}")
    parts = torch.split(features, ROWS)  # a float64 copy of all features at once would take too much memory
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
    embedder: Embedder,
    inputs: Tensor | Iterable[Tensor],
    *,
    power: float = 0.25,
    batch: int = 256,
    are_activations: bool = False,
) -> Tensor:
    """Set the linear layer of the head to the half-whitened PCA of its inputs on the training set.

    The layer is scaled so that the mean squared norm of the embeddings equals their number of dimensions. Any
    backbone can be used. The inputs are passed through the backbone once.

    Args:
        embedder: An embedder with a linear or MLP head. Its head is changed in place.
        inputs: All training inputs of the embedder as one tensor, or an iterable of batches.
        power: See `compute_half_whitened_pca`.
        batch: Batch size, if `inputs` is one tensor.
        are_activations: If True, `inputs` are activations of the frozen part (see `Embedder.lower`) instead of inputs
            of the whole embedder.

    Returns:
        The embeddings of the inputs.
    """
    head = embedder.head
    if not isinstance(head, Head):
        raise ValueError("head='identity' has no weights to initialize: use head='linear' or 'mlp'")
    mode = embedder.training
    embedder.eval()
    parts = torch.split(inputs, batch) if isinstance(inputs, Tensor) else inputs
    pool = embedder.pool_activations if are_activations else embedder.pool
    features = torch.cat([head.norm(pool(part)) for part in parts])
    embedder.train(mode)
    weight, bias = compute_half_whitened_pca(features, embedder.dim, power=power)
    length = (features @ weight.T + bias).square().mean().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    head.linear.weight.copy_(weight / length)
    head.linear.bias.copy_(bias / length)
    return torch.cat([head(part) for part in torch.split(features, 4096)])


@torch.no_grad()
def init_proxies_from_class_means(loss: ProxyTable, embeddings: Tensor, labels: Tensor, *, seed: int = 0) -> None:
    """Set the proxy of each class to the direction of the mean of its normalized embeddings.

    If a class has K proxies, they are set to the directions of K k-means centers. The norms of the proxies do not
    change, because the norm determines how far an optimizer step rotates a proxy. A class without embeddings keeps
    its proxies. If a class has fewer distinct embeddings than proxies, the remaining proxies are set to its mean plus
    small random noise, because identical proxies would receive identical gradients.

    Args:
        loss: A proxy loss. Its proxies are changed in place.
        embeddings: Embeddings [N, dim] of the training set.
        labels: Class number of each embedding [N], or multi-hot labels [N, C].
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
    is_multi_hot = labels.ndim == 2
    present = labels.any(0).nonzero()[:, 0] if is_multi_hot else torch.unique(labels)
    for label in present.tolist():
        if not 0 <= label < loss.classes:
            raise ValueError(f"labels must be in 0..{loss.classes - 1} because classes={loss.classes}, got {label}")
        members = rows[labels[:, label].bool() if is_multi_hot else labels == label]
        old = proxies[label].reshape(-1, loss.dim)
        centers = compute_class_centers(members.cpu(), len(old), seed=seed, generator=generator).to(old)
        proxies[label] = (centers * torch.linalg.vector_norm(old, dim=1, keepdim=True)).reshape(proxies[label].shape)


def compute_class_centers(
    rows: Tensor, count: int, *, seed: int, generator: torch.Generator, jitter: float = 0.1
) -> Tensor:
    """Compute `count` unit vectors that represent the unit vectors `rows` [N, d] of a class.

    If `count` is 1, the result is the normalized mean. Otherwise it consists of normalized k-means centers. If there
    are fewer distinct vectors than `count`, each remaining row is the normalized sum of the mean and random noise. The
    norm of the noise is about `jitter`.
    """
    mean = unit(rows.mean(0, keepdim=True))
    if count == 1:
        return mean
    distinct = torch.unique(rows, dim=0)
    groups = torch.from_numpy(kmeans(distinct.numpy(), min(count, len(distinct)), seed=seed))
    centers = torch.stack([distinct[groups == group].mean(0) for group in torch.unique(groups)])
    noise = torch.randn(count - len(centers), rows.shape[1], generator=generator) * jitter / rows.shape[1] ** 0.5
    return unit(torch.cat([centers, mean + noise]))
