"""Exact t-SNE: points of a plane whose neighborhoods are those of the rows, for at most a few thousand rows.

    P_ij = (p_j|i + p_i|j) / 2N,   p_j|i ~ exp(-beta_i ||x_i - x_j||^2),   beta_i so that exp(entropy) = perplexity
    Q_ij ~ 1 / (1 + ||y_i - y_j||^2)
    dKL(P || Q) / dy_i = 4 sum_j (P_ij - Q_ij) (y_i - y_j) / (1 + ||y_i - y_j||^2)

van der Maaten and Hinton, JMLR 2008 (momentum, gains and early exaggeration as in their code); the start from PCA is
Kobak and Berens', Nature Communications 2019, the step size N / exaggeration Belkina et al.'s, same volume.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.validation import check_embeddings, check_positive

EXAGGERATION, EARLY = 12.0, 0.25
START = 1e-4
# bounds of log(beta times the row's mean squared distance), and halvings: 80 / 2^40 is far below what matters
LOG_BETA, HALVINGS = 40.0, 40


def tsne(x: Tensor, *, perplexity: float = 30.0, steps: int = 500, seed: int = 0) -> Tensor:
    """[N, 2] float32, centered, for rows x [N, d]; the same for the same input and seed.

    The perplexity is at most (N - 1) / 3, so that few rows work too. A quarter of the steps is exaggerated. The seed
    moves the start by a hundredth of its size, which parts rows that PCA puts onto one line.

    >>> tsne(torch.eye(6)).shape
    torch.Size([6, 2])
    """
    check_embeddings("x", x)
    check_positive("perplexity", perplexity)
    x = x.detach().float().cpu()
    n = len(x)
    if n == 1:
        return torch.zeros(1, 2)
    near = neighborhoods(torch.cdist(x, x).square_(), min(perplexity, max(1.0, (n - 1) / 3)))
    p = ((near + near.T) / (2 * n)).clamp_min_(1e-12)
    y = _start(x, seed)
    rate = max(n / EXAGGERATION, 10.0)
    move, gains = torch.zeros_like(y), torch.ones_like(y)
    early = int(EARLY * steps)
    kernel, pull = torch.empty_like(p), torch.empty_like(p)
    p *= EXAGGERATION
    for step in range(steps):
        if step == early:
            p /= EXAGGERATION
        gradient = kl_gradient(p, y, kernel, pull)
        gains = torch.where((gradient > 0) == (move > 0), gains * 0.8, gains + 0.2).clamp_min_(0.01)
        move = (0.5 if step < early else 0.8) * move - rate * gains * gradient
        y = y + move
        y -= y.mean(0)
    return y


def kl_gradient(p: Tensor, y: Tensor, kernel: Tensor, pull: Tensor) -> Tensor:
    """dKL(P || Q) / dy [N, 2]; `kernel` and `pull` are [N, N] to work in (new ones cost half as much again)."""
    square = y.square().sum(1)
    torch.addmm(square + 1, y, y.T, alpha=-2, out=kernel)
    kernel.add_(square[:, None]).clamp_min_(1.0).reciprocal_().fill_diagonal_(0)
    torch.sub(p, kernel, alpha=1 / float(kernel.sum()), out=pull).mul_(kernel)
    return 4 * (pull.sum(1, keepdim=True) * y - pull @ y)


def neighborhoods(square: Tensor, perplexity: float) -> Tensor:
    """p_j|i [N, N] with rows of this perplexity, exp(entropy), from squared distances; zero on the diagonal.

    beta is found for all rows at once by bisection of its logarithm. A row whose neighbors are equally far has the
    same p whatever beta is.
    """
    n = len(square)
    far = square.double().masked_fill(torch.eye(n, dtype=torch.bool), torch.inf)
    far -= far.amin(1, keepdim=True)
    scale = far.nan_to_num(posinf=0).sum(1, keepdim=True).div_(n - 1)
    far /= torch.where(scale > 0, scale, 1.0)
    low, high = torch.full((n, 1), -LOG_BETA).double(), torch.full((n, 1), LOG_BETA).double()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        p = torch.softmax(-middle.exp() * far, dim=1)
        wide = -torch.special.xlogy(p, p).sum(1, keepdim=True) > torch.log(torch.tensor(perplexity))
        low, high = torch.where(wide, middle, low), torch.where(wide, high, middle)
    return torch.softmax(-((low + high) / 2).exp() * far, dim=1).to(square.dtype)


def _start(x: Tensor, seed: int) -> Tensor:
    """The first two principal components, the first with standard deviation 1e-4, a column's largest entry positive."""
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
    return (START * (y + 0.01 * noise)).float()
