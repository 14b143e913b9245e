"""Exact t-SNE for up to a few thousand vectors.

    P_ij = (p_j|i + p_i|j) / 2N,   p_j|i ~ exp(-beta_i ||x_i - x_j||^2),   beta_i such that exp(entropy) = perplexity
    Q_ij ~ 1 / (1 + ||y_i - y_j||^2)
    dKL(P || Q) / dy_i = 4 sum_j (P_ij - Q_ij) (y_i - y_j) / (1 + ||y_i - y_j||^2)

Here x_i are the N vectors, y_i their positions in the plane, and "~" means proportional to. The method is that of van
der Maaten and Hinton, JMLR 2008; momentum, gains and early exaggeration are as in their code. The initialization with
PCA follows Kobak and Berens, Nature Communications 2019; the step size N / exaggeration follows Belkina et al., Nature
Communications 2019.

The table compares this module with openTSNE 1.0.4, on one thread with default options. The numbers are CPU seconds,
trustworthiness, and the preserved fraction of the 10 nearest neighbors. The data are pixels of drawings, and samples of
30 Gaussian classes in 64 dimensions:

    data              this module              openTSNE
    600 drawings      0.7 s, 0.845, 0.293      2.0 s, 0.854, 0.292
    600 Gaussian      0.7 s, 0.993, 0.688      1.4 s, 0.993, 0.700
    1000 drawings     2.7 s, 0.842, 0.239      3.6 s, 0.867, 0.252
    1000 Gaussian     2.2 s, 0.993, 0.573      3.6 s, 0.994, 0.584
    2000 drawings     12.0 s, 0.890, 0.264     8.9 s, 0.901, 0.271

nearfar does not use openTSNE for three reasons. Its maps are only slightly better. It is slower for the 600 to 1,000
points of a report, though faster for the 2,000 points of the map that `nearfar serve` shows. It adds 177 MB to an
installation, including SciPy and scikit-learn, which nearfar does not need otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.validation import check_embeddings, check_positive

EXAGGERATION, EXAGGERATED_SHARE = 12.0, 0.25
INITIAL_DEVIATION = 1e-4
# log(beta * s) is found by bisection in [-MAX_LOG_BETA, MAX_LOG_BETA], where s is the mean of a row's squared distances
# after subtracting the smallest. After 40 bisections, the interval is far smaller than necessary: 80 / 2^40.
MAX_LOG_BETA, BISECTIONS = 40.0, 40


def tsne(x: Tensor, *, perplexity: float = 30.0, steps: int = 500, seed: int = 0) -> Tensor:
    """Place vectors in the plane with t-SNE. The same input and seed give the same result.

    Args:
        x: Vectors, [N, d].
        perplexity: Effective number of neighbors. It is reduced to (N - 1) / 3 if it is larger, but not below 1.
        steps: Number of gradient steps; the first quarter of them uses early exaggeration.
        seed: Seed of the noise that is added to the initial positions. The noise separates vectors that PCA maps to the
            same point or line. Its standard deviation is 1% of that of the first principal component.

    Returns:
        Centered positions, [N, 2], float32.

    >>> tsne(torch.eye(6)).shape
    torch.Size([6, 2])
    """
    check_embeddings("x", x)
    check_positive("perplexity", perplexity)
    x = x.detach().float().cpu()
    n = len(x)
    if n == 1:
        return torch.zeros(1, 2)
    neighbors = neighbor_probabilities(torch.cdist(x, x).square_(), min(perplexity, max(1.0, (n - 1) / 3)))
    p = ((neighbors + neighbors.T) / (2 * n)).clamp_min_(1e-12)
    y = _initialize(x, seed)
    rate = max(n / EXAGGERATION, 10.0)
    velocity, gains = torch.zeros_like(y), torch.ones_like(y)
    early = int(EXAGGERATED_SHARE * steps)
    kernel, pull = torch.empty_like(p), torch.empty_like(p)
    p *= EXAGGERATION
    for step in range(steps):
        if step == early:
            p /= EXAGGERATION
        gradient = kl_gradient(p, y, kernel, pull)
        gains = torch.where((gradient > 0) == (velocity > 0), gains * 0.8, gains + 0.2).clamp_min_(0.01)
        velocity = (0.5 if step < early else 0.8) * velocity - rate * gains * gradient
        y = y + velocity
        y -= y.mean(0)
    return y


def kl_gradient(p: Tensor, y: Tensor, kernel: Tensor, pull: Tensor) -> Tensor:
    """Return dKL(P || Q) / dy [N, 2].

    Args:
        p: Joint probabilities P, [N, N].
        y: Positions, [N, 2].
        kernel: Buffer [N, N] that is overwritten. Allocating new buffers in every step would take 50% longer.
        pull: Second buffer [N, N] that is overwritten.
    """
    square = y.square().sum(1)
    torch.addmm(square + 1, y, y.T, alpha=-2, out=kernel)
    kernel.add_(square[:, None]).clamp_min_(1.0).reciprocal_().fill_diagonal_(0)
    torch.sub(p, kernel, alpha=1 / float(kernel.sum()), out=pull).mul_(kernel)
    return 4 * (pull.sum(1, keepdim=True) * y - pull @ y)


def neighbor_probabilities(square: Tensor, perplexity: float) -> Tensor:
    """Return the probabilities p_j|i (see above), [N, N], for squared distances [N, N]. The diagonal is 0.

    Each beta_i is found by bisection of its logarithm, so that each row gets the given perplexity. If all
    neighbors of a vector are equally far away, its row does not depend on beta_i and may have a different perplexity.
    """
    n = len(square)
    distance = square.double().masked_fill(torch.eye(n, dtype=torch.bool), torch.inf)
    distance -= distance.amin(1, keepdim=True)
    scale = distance.nan_to_num(posinf=0).sum(1, keepdim=True).div_(n - 1)
    distance /= torch.where(scale > 0, scale, 1.0)
    low, high = torch.full((n, 1), -MAX_LOG_BETA).double(), torch.full((n, 1), MAX_LOG_BETA).double()
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        p = torch.softmax(-middle.exp() * distance, dim=1)
        is_wide = -torch.special.xlogy(p, p).sum(1, keepdim=True) > torch.log(torch.tensor(perplexity))
        low, high = torch.where(is_wide, middle, low), torch.where(is_wide, high, middle)
    return torch.softmax(-((low + high) / 2).exp() * distance, dim=1).to(square.dtype)


def _initialize(x: Tensor, seed: int) -> Tensor:
    """Return the initial positions: the first two principal components plus noise.

    Both components are scaled by the same factor, which gives the first a standard deviation of 1e-4. The sign of each
    component is chosen so that its element of largest magnitude is positive.
    """
    centered = x.double() - x.double().mean(0)
    if x.shape[1] <= len(x):
        y = centered @ torch.linalg.eigh(centered.T @ centered)[1].flip(1)[:, :2]
    else:
        values, vectors = torch.linalg.eigh(centered @ centered.T)
        y = vectors.flip(1)[:, :2] * values.flip(0)[:2].clamp_min(0).sqrt()
    y = torch.nn.functional.pad(y, (0, 2 - y.shape[1]))
    y = y * torch.where(y.gather(0, y.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0)
    y = y / y[:, 0].std().clamp_min(1e-30)
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (INITIAL_DEVIATION * (y + 0.01 * noise)).float()
