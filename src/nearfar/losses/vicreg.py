"""VICReg: make two views of each sample agree, keep every dimension varying, and decorrelate the dimensions.

VICReg (Bardes et al., ICLR 2022, arXiv 2105.04906) needs no labels. For views X and Y [B, d], the loss is
invariance * mean ||x_i - y_i||^2 / d + variance * (v(X) + v(Y)) / 2 + covariance * (c(X) + c(Y)), as in the released
code. v is the mean over dimensions of [1 - sqrt(var + eps)]_+. c is the sum of the squared covariances of different
dimensions, divided by d. Embeddings are not normalized.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import full_precision
from nearfar.validation import check_embeddings


def vicreg(
    x: Tensor,
    y: Tensor,
    *,
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 1.0,
    eps: float = 1e-4,
) -> Tensor:
    """Compute the loss of two views [B, d] of the same samples, a scalar.

    See the top of this file for the formula. The default weights are those of pytorch-metric-learning.

    >>> vicreg(torch.eye(2) * 9, torch.eye(2) * 9)  # only the covariance of -40.5 contributes
    tensor(3280.5000)
    """
    check_embeddings("x", x)
    check_embeddings("y", y, dim=x.shape[1])
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(f"x and y must have the same number of rows, at least 2, got {len(x)} and {len(y)}")
    x, y = full_precision(x), full_precision(y)
    spread = variance_terms(x, eps).mean() + variance_terms(y, eps).mean()
    return (
        invariance * invariance_terms(x, y).mean()
        + variance / 2 * spread
        + covariance * (covariance_term(x) + covariance_term(y))
    )


def invariance_terms(x: Tensor, y: Tensor) -> Tensor:
    """Compute ||x_i - y_i||^2 / d for each sample. The result has shape [B]."""
    return (x - y).square().mean(1)


def variance_terms(x: Tensor, eps: float) -> Tensor:
    """Compute [1 - sqrt(var + eps)]_+ for each dimension, [d], with the unbiased variance over the batch."""
    return (1 - (x.var(0) + eps).sqrt()).relu()


def covariance_term(x: Tensor) -> Tensor:
    """Compute the sum of the squared covariances of different dimensions, divided by d."""
    centered = x - x.mean(0)
    covariances = centered.T @ centered / (len(x) - 1)
    own = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
    return covariances.masked_fill(own, 0.0).square().sum() / x.shape[1]
