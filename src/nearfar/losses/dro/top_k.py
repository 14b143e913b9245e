"""Top-k uncertainty sets: the mean of the K largest losses of all pairs, or of K/2 positive and K/2 negative pairs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.host_reads import is_on_host, should_check_values
from nearfar.losses.dro.uncertainty import (
    TWICE_BATCH,
    SparseSet,
    check_pair_count,
    count_pairs,
    inverse,
    keep_upper_triangle,
    register,
)
from nearfar.ops.pairs import Pairs


@register("topk")
@dataclass(frozen=True)
class TopK(SparseSet):
    """Equal weights for the K pairs with the largest losses (Qi et al., arXiv 1912.11194, section 3.2, DRO-TopK).

    The uncertainty set is 0 <= p <= 1/K. The divisor is K even if fewer than K losses are above 0. If the batch has
    fewer than K pairs, the mean is over all of them. If several losses are equal to the K-th largest, the choice among
    their pairs is arbitrary and does not change the value.

    If pairs have weights w_ij, the set is 0 <= p_ij <= w_ij / K. Pairs are taken in order of decreasing loss until
    their weights add up to K, and the last pair counts only with the remaining weight. A sample with weight 0 then has
    no effect. If `ref_emb` is passed, a sample with weight 2 is equivalent to two copies of it with weight 1.

    Args:
        k: K, a number of unordered pairs, or "2B" for twice the number of anchors (from the paper, sections 4.2.2 and
            4.2.4). With sample weights, "2B" is twice the sum of the weights of the anchors.

    >>> pairs = Pairs(torch.zeros(1, 2), torch.tensor([[True, False]]), torch.tensor([[False, True]]))
    >>> TopK(k=1)(torch.tensor([[3.0, 1.0]]), pairs)
    tensor([[1., 0.]])
    """

    k: int | str = TWICE_BATCH

    def __post_init__(self) -> None:
        check_pair_count("k", self.k, 1)

    def select(self, losses: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        budget = count_pairs(self.k, pairs)
        index, taken = largest_losses(losses, pairs, (pairs.same | pairs.diff)[None], budget)
        total = taken.sum()
        if should_check_values(total):
            _warn_if_short(self.k, float(budget), float(total))
        return index[0], taken[0] * inverse(total)


@register("topk-pn")
@dataclass(frozen=True)
class TopKPN(SparseSet):
    """Equal weights for the K/2 positive and the K/2 negative pairs with the largest losses (DRO-TopK-PN).

    See Qi et al., arXiv 1912.11194, section 3.2. The same number of positive and negative pairs is taken:
    kk = min(K/2, number of positive pairs, number of negative pairs) of each kind. Each pair gets weight 1 / (2 kk). If
    the batch has no positive or no negative pairs, all weights are 0. Sample weights work as in `TopK`.

    Args:
        k: K as in `TopK`, but at least 2. An odd K is rounded down to an even number.

    >>> pairs = Pairs(torch.zeros(1, 3), torch.tensor([[True, False, False]]), torch.tensor([[False, True, True]]))
    >>> TopKPN(k=2)(torch.tensor([[3.0, 1.0, 2.0]]), pairs)
    tensor([[0.5000, 0.0000, 0.5000]])
    """

    k: int | str = TWICE_BATCH

    def __post_init__(self) -> None:
        check_pair_count("k", self.k, 2)

    def select(self, losses: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        k = count_pairs(self.k, pairs)
        half = k // 2 if isinstance(k, int) else k / 2
        index, taken = largest_losses(losses, pairs, torch.stack([pairs.same, pairs.diff]), half)
        kk = taken.sum(1).amin()
        return index.flatten(), (take_first(taken, kk) * inverse(2 * kk)).flatten()


def largest_losses(losses: Tensor, pairs: Pairs, masks: Tensor, budget: int | Tensor) -> tuple[Tensor, Tensor]:
    """Take pairs in order of decreasing loss until their weights reach a budget.

    Args:
        losses: The losses [A, R].
        pairs: The pairs.
        masks: M sets of pairs [M, A, R].
        budget: The total weight to take from each set.

    Returns:
        The indices of the pairs in the flattened matrix, and the weight taken from each pair, both [M, n]. Without
        sample weights, n is the budget or the number of entries A R, whichever is smaller. With sample weights, n is
        increased until the budget is reached. Under torch.compile and on a GPU, n must not depend on the weights, so n
        is then the number of entries A R.
    """
    values = torch.where(masks, keep_upper_triangle(losses, pairs), -torch.inf).flatten(1)
    size = values.shape[1]
    if pairs.weights is None or pairs.ref_weights is None:
        values, index = values.topk(min(int(budget), size))
        return index, (values > -torch.inf).to(losses.dtype)
    n = size
    if is_on_host(losses):
        mean_weight = float(pairs.weights.mean() * pairs.ref_weights.mean())
        n = min(size, int(2 * budget / mean_weight) + 16) if mean_weight > 0 else 1
    while True:
        top, index = values.topk(n) if n < size // 4 else values.sort(descending=True, stable=True)
        mass = pairs.weights[index // losses.shape[1]] * pairs.ref_weights[index % losses.shape[1]]
        mass = torch.where(top > -torch.inf, mass, 0.0)
        if index.shape[1] == size or bool(((mass.sum(1) >= budget) | (top[:, -1] == -torch.inf)).all()):
            return index, take_first(mass, budget)
        n = 4 * n


def take_first(mass: Tensor, budget: int | Tensor) -> Tensor:
    """Take the weights of each row from the left until they add up to the budget, and set the rest to 0.

    The last weight that is taken is reduced so that the sum is equal to the budget.
    """
    return torch.minimum((budget - (mass.cumsum(1) - mass)).clamp_min(0), mass)


def _warn_if_short(k: int | str, budget: float, total: float) -> None:
    if 0 < total < budget * (1 - 1e-6):
        warnings.warn(
            f"k={k!r} needs {budget:g} pairs but the batch has {total:g}: the mean is over all of them", stacklevel=3
        )
