"""The cosines between embeddings and proxies, with hand-written gradients.

The forward pass divides the dot products by the norms of the proxies instead of normalizing the proxies first. The
backward pass removes the component of the gradient along each proxy in one pass over the proxies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearfar.ops.custom_grad import first_derivative_only
from nearfar.ops.geometry import reciprocal_norms
from nearfar.ops.precision import without_autocast


def cosines(embeddings: Tensor, proxies: Tensor, *, normalize: bool = False) -> Tensor:
    """Compute the cosines p_c . x_i / (||p_c|| ||x_i||) of embeddings x and proxies p.

    The proxies need not be normalized. A zero proxy or a zero embedding has cosine 0 with everything, and gradient 0.

    Args:
        embeddings: The embeddings [B, d].
        proxies: Proxies [C, d], or [C, K, d] for K proxies per class.
        normalize: Whether to divide the embeddings by their norms. If False, the embeddings must be unit vectors.

    Returns:
        The cosines [C, B] or [C, K, B].

    >>> cosines(torch.eye(2), torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    sim: Tensor
    if proxies.ndim == 2:
        sim = _ClassCosines.apply(embeddings, proxies, normalize)  # type: ignore[no-untyped-call]
    else:
        sim = _Cosines.apply(embeddings, proxies, normalize, False)[0]  # type: ignore[no-untyped-call]
    return sim


def cosines_and_gram(embeddings: Tensor, proxies: Tensor, *, normalize: bool = False) -> tuple[Tensor, Tensor]:
    """Compute the cosines [C, K, B] as in `cosines`, and the cosines between the proxies of each class [C, K, K]."""
    sim, gram = _Cosines.apply(embeddings, proxies, normalize, True)  # type: ignore[no-untyped-call]
    return sim, gram


def _are_short(g: Tensor, by_proxies: Tensor, by_rows: Tensor) -> bool:
    """Return whether the gradients of the vectors have fewer elements than the gradient `g` of the cosines.

    The component of the gradient along a vector is a dot product with that vector, and also the sum of the cosines of
    the vector, each times its gradient. For short vectors, the dot products are faster.
    """
    return g.numel() > by_proxies.numel() + by_rows.numel()


def _row_dots(x: Tensor, y: Tensor) -> Tensor:
    """Compute the dot products of the vectors in x and y, which are in the last dimension. It is kept with size 1."""
    return (x * y).sum(-1, keepdim=True)


def _by_embeddings(by_rows: Tensor, rows: Tensor, inverse: Tensor | None, along: Tensor | None) -> Tensor:
    """Compute the gradient with respect to the embeddings, [B, d].

    `by_rows` is the gradient with respect to their unit vectors `rows`, and is overwritten. `inverse` [B, 1] are the
    reciprocal norms of the embeddings, or None if they were not normalized. `along` [B] is the component of the
    gradient along each unit vector; it is needed only if they were normalized.
    """
    if inverse is None or along is None:
        return by_rows
    return by_rows.addcmul_(rows, along[:, None], value=-1).mul_(inverse)


class _ClassCosines(torch.autograd.Function):
    """`_Cosines` for proxies [C, d]. For small batches, it is noticeably faster than `_Cosines` with [C, 1, d]."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, proxies: Tensor, normalize: bool) -> Tensor:
        scale = reciprocal_norms(embeddings) if normalize else None
        rows = embeddings if scale is None else embeddings * scale
        inverse = reciprocal_norms(proxies)
        sim = (proxies @ rows.T).mul_(inverse)
        ctx.save_for_backward(rows, scale, proxies, inverse, sim)
        return sim

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, scale, proxies, inverse, sim = ctx.saved_tensors
        # backward() may be called under autocast, even though the forward pass disables it.
        with without_autocast(g.device.type):
            scaled = g * inverse
            by_proxies, by_rows = scaled @ rows, scaled.T @ proxies
            if _are_short(g, by_proxies, by_rows):
                by_proxies.addcmul_(proxies, _row_dots(by_proxies, proxies).mul_(inverse.square()), value=-1)
                along = None if scale is None else _row_dots(by_rows, rows)[:, 0]
            else:
                product = g * sim
                # This part is computed with the same rounding as in `_Cosines.gradients`.
                by_proxies.addcmul_(proxies, product.sum(1, keepdim=True).mul_(inverse.square()), value=-1)
                along = None if scale is None else product.sum(0)
            return _by_embeddings(by_rows, rows, scale, along), by_proxies, None


class _Cosines(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, embeddings: Tensor, proxies: Tensor, normalize: bool, with_gram: bool
    ) -> tuple[Tensor, Tensor]:
        c, k, d = proxies.shape
        scale = reciprocal_norms(embeddings) if normalize else None
        rows = embeddings if scale is None else embeddings * scale
        inverse = reciprocal_norms(proxies)
        sim = (proxies.reshape(c * k, d) @ rows.T).view(c, k, len(rows)).mul_(inverse)
        gram = torch.bmm(proxies, proxies.mT).mul_(inverse).mul_(inverse.mT) if with_gram else proxies.new_empty(0)
        ctx.with_gram = with_gram
        ctx.save_for_backward(rows, scale, proxies, inverse, sim, gram)
        return sim, gram

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor, None, None]:
        with without_autocast(g.device.type):
            return (*_Cosines.gradients(ctx.with_gram, g, h, *ctx.saved_tensors), None, None)

    @staticmethod
    def gradients(
        with_gram: bool,
        g: Tensor,
        h: Tensor,
        rows: Tensor,
        scale: Tensor | None,
        proxies: Tensor,
        inverse: Tensor,
        sim: Tensor,
        gram: Tensor,
    ) -> tuple[Tensor, Tensor]:
        c, k, d = proxies.shape
        flat = (g * inverse).view(c * k, len(rows))
        by_rows, by_proxies = flat.T @ proxies.reshape(c * k, d), (flat @ rows).view(c, k, d)
        if not with_gram and _are_short(g, by_proxies, by_rows):
            by_proxies.addcmul_(proxies, _row_dots(by_proxies, proxies).mul_(inverse.square()), value=-1)
            along_rows = None if scale is None else _row_dots(by_rows, rows)[:, 0]
            return _by_embeddings(by_rows, rows, scale, along_rows), by_proxies
        # d cos / d p = (x - cos * p / ||p||) / ||p||. `along` is the component along p, summed over the samples.
        product = g * sim
        along = product.sum(2, keepdim=True)
        by_embeddings = _by_embeddings(by_rows, rows, scale, product.view(c * k, len(rows)).sum(0))
        if not with_gram:
            return by_embeddings, by_proxies.addcmul_(proxies, along * inverse.square(), value=-1)
        h = h + h.mT
        along = along + (h * gram).sum(2, keepdim=True)
        mix = h * inverse * inverse.mT
        mix.diagonal(dim1=1, dim2=2).sub_((along * inverse.square())[:, :, 0])
        return by_embeddings, by_proxies.baddbmm_(mix, proxies)
