"""Matryoshka: train embeddings that can be truncated to their first dimensions, with any loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from nearfar.losses.base import Loss
from nearfar.validation import Labels, check_count


class MatryoshkaLoss(Loss):
    """Matryoshka representation learning (Kusupati et al., NeurIPS 2022, arXiv 2205.13147, Eq. 1) around any loss.

        value = sum over sizes m of c_m * loss_m(embeddings[:, :m], labels)

    Each size has its own loss. A proxy loss therefore has separate proxies for each size, like the separate classifiers
    of the paper's MRL. The paper's variant MRL-E, which shares one classifier between the sizes, is not implemented.
    Losses that normalize embeddings do so after truncation. At test time, also truncate first and then normalize.

    Each size needs its own similarity matrix. With the sizes 64, 128, 256 and 512, the matrix products cost 1.9 times
    as much as with 512 dimensions alone, and the rest of the loss is computed four times. The network runs only once.

    Args:
        make: A function that creates the loss of a size, for example `lambda size: create("supcon")`.
        sizes: The sizes m in ascending order. The last one should be the dimension of the embeddings, because the
            dimensions after it are not trained.
        factors: The weights c_m. The default is 1 for each size, as in the paper.

    >>> import torch
    >>> from nearfar.losses import create
    >>> loss, plain = create("supcon", matryoshka=[1, 2]), create("supcon")
    >>> x, y = torch.tensor([[1.0, 0.2], [0.9, 0.1], [-1.0, 0.3]]), torch.tensor([0, 0, 1])
    >>> bool(loss(x, y) == plain(x[:, :1], y) + plain(x, y))
    True
    """

    def __init__(
        self, make: Callable[[int], Loss], sizes: Sequence[int], *, factors: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        self.sizes = check_sizes(sizes)
        self.factors = (1.0,) * len(self.sizes) if factors is None else tuple(float(factor) for factor in factors)
        if len(self.factors) != len(self.sizes) or not all(factor > 0 for factor in self.factors):
            raise ValueError(f"factors must be {len(self.sizes)} numbers above 0, one for each size, got {factors}")
        self.losses = nn.ModuleList([make(size) for size in self.sizes])

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the loss for the largest size, plus `matryoshka`, the list of sizes."""
        inner = self.losses[-1]
        assert isinstance(inner, Loss)
        return {**inner.options, "matryoshka": list(self.sizes)}

    @property
    def warmup_epochs(self) -> int:
        """Return the number of epochs before all losses work as intended."""
        return max(loss.warmup_epochs for loss in self._losses)

    def start_epoch(self, n: int) -> None:
        """Prepare the loss of each size for epoch `n`."""
        for loss in self._losses:
            loss.start_epoch(n)

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels | None = None,
        *,
        relation: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Labels | None = None,
        weights: Tensor | None = None,
        ref_weights: Tensor | None = None,
        representatives: int | None = None,
    ) -> Tensor:
        """Compute the weighted sum of the losses. The arguments are those of the losses; `ref_emb` is truncated too."""
        for name, x in (("embeddings", embeddings), ("ref_emb", ref_emb)):
            if x is not None and x.ndim == 2 and x.shape[1] < self.sizes[-1]:
                raise ValueError(
                    f"{name} must have at least {self.sizes[-1]} columns for matryoshka={list(self.sizes)}, "
                    f"got shape {list(x.shape)}"
                )
        values: dict[str, Any] = {
            "relation": relation,
            "ref_labels": ref_labels,
            "weights": weights,
            "ref_weights": ref_weights,
            "representatives": representatives,
        }
        options = {name: value for name, value in values.items() if value is not None}
        terms = []
        for size, factor, loss in zip(self.sizes, self.factors, self._losses, strict=True):
            references: dict[str, Any] = {} if ref_emb is None else {"ref_emb": ref_emb[:, :size]}
            terms.append(factor * loss(embeddings[:, :size], labels, **references, **options))
        total: Tensor = sum(terms[1:], terms[0])
        return total

    @property
    def _losses(self) -> list[Loss]:
        return [loss for loss in self.losses if isinstance(loss, Loss)]


def check_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Check that the sizes of a Matryoshka loss are in ascending order, and return them as a tuple."""
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not sizes:
        raise ValueError(f"matryoshka must be a list of sizes such as [64, 128, 256, 512], got {sizes!r}")
    checked = tuple(check_count("a size of matryoshka", size) for size in sizes)
    if any(first >= second for first, second in pairwise(checked)):
        raise ValueError(f"matryoshka must be in ascending order, such as [64, 128, 256, 512], got {list(sizes)}")
    return checked
