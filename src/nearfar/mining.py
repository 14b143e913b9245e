"""Miners: functions that take a `Pairs` object and return one whose masks contain only the selected pairs.

Pairs are selected by their similarities; no gradient flows through the selection. Of two pairs of an anchor with equal
similarity, the one with the lower column index is preferred.

    pairs = Pairs(cosine_matrix(x), *pair_masks(labels))
    hard = hardest(pairs, k=2)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nearfar.host_reads import is_on_host, should_check_values
from nearfar.ops.pairs import Pairs, row_count
from nearfar.spelling import suggest
from nearfar.validation import check_choice, check_positive


def hardest(pairs: Pairs, *, k: int = 1) -> Pairs:
    """Keep the k farthest positives and the k closest negatives of each anchor, or all if there are fewer than k."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    sim = pairs.sim.detach()
    return replace(pairs, same=_first(-sim, pairs.same, k), diff=_first(sim, pairs.diff, k))


def closest_negatives(pairs: Pairs) -> Pairs:
    """Keep all positives of each anchor and the same number of its closest negatives, or all if there are fewer.

    This is the selection of the "-Hard" baselines in the PROFS paper (arXiv 1907.07585).
    """
    return replace(pairs, diff=_first(pairs.sim.detach(), pairs.diff, row_count(pairs.same)))


def semi_hard(pairs: Pairs, *, margin: float = 0.2, threshold: float | None = None) -> Pairs:
    """Keep all positives, and the negatives that are less similar than some positive, but by less than the margin.

    A negative n of anchor a is kept if S_ap - margin < S_an < S_ap for at least one positive p of a, where S is the
    similarity. Schroff et al. (CVPR 2015) define the same condition on distances.

    Args:
        pairs: Pairs to select from.
        margin: Maximum difference in similarity.
        threshold: If given, S_an is compared with this fixed similarity instead of S_ap. Each anchor then keeps all its
            positives and the same number of semi-hard negatives, or all of them if there are fewer. This is the
            baseline in the DRO paper (arXiv 1912.11194, section 4.2.3, Figs. 1 and 5). The paper specifies only the
            number of negatives; we keep the closest ones.
    """
    check_positive("margin", margin)
    sim = pairs.sim.detach()
    if threshold is not None:
        near = pairs.diff & (sim > threshold - margin) & (sim < threshold)
        return replace(pairs, diff=_first(sim, near, row_count(pairs.same)))
    # It suffices to check the smallest S_ap above S_an: if it is not within the margin, no larger S_ap is.
    above = torch.where(pairs.same, sim, torch.inf).sort(1).values
    index = torch.searchsorted(above, sim, right=True).clamp_max(sim.shape[1] - 1)
    next_positive = above.gather(1, index)
    return replace(pairs, diff=pairs.diff & (next_positive > sim) & (next_positive - margin < sim))


def multi_similarity(pairs: Pairs, *, epsilon: float = 0.1) -> Pairs:
    """Keep positives with S_ip < max_n S_in + epsilon and negatives with S_in > min_p S_ip - epsilon.

    S_ip and S_in are the similarities of anchor i to a positive p and a negative n (Wang et al., CVPR 2019, Eqs. 6 and
    7). An anchor without positives or without negatives keeps no pair.
    """
    sim = pairs.sim.detach()
    nearest_negative = torch.where(pairs.diff, sim, -torch.inf).amax(1, keepdim=True)
    farthest_positive = torch.where(pairs.same, sim, torch.inf).amin(1, keepdim=True)
    return replace(
        pairs,
        same=pairs.same & (sim < nearest_negative + epsilon),
        diff=pairs.diff & (sim > farthest_positive - epsilon),
    )


def distance_weighted(
    pairs: Pairs,
    *,
    dim: int,
    distances: Tensor | None = None,
    cutoff: float = 0.5,
    nonzero_loss_cutoff: float = 1.4,
    generator: torch.Generator | None = None,
) -> Pairs:
    """Keep all positives of each anchor, and draw the same number of negatives at random, weighted by distance.

    A negative at distance D has weight w = 1/q(D), where q is the density of the distance between random points on the
    unit sphere: log w = (2 - d) log D - (d - 3)/2 log(1 - D^2/4) (Wu et al., ICCV 2017, Eq. 5). To draw negatives
    without replacement, Gumbel noise is added to log w, and the negatives with the largest sums are drawn. The
    weight w itself is never computed, so high dimensions cause no underflow or overflow. If an anchor has too few
    negatives closer than `nonzero_loss_cutoff`, the missing ones are drawn uniformly from the other negatives.

    Args:
        pairs: Pairs to select from.
        dim: The dimension d of the embeddings.
        distances: The distances [A, R] between the unit vectors of A anchors and R references. By default, they are
            computed from `pairs.sim`, which must then contain cosines.
        cutoff: Distances below this value are replaced with it.
        nonzero_loss_cutoff: Negatives at this distance or beyond are drawn only if there are too few closer ones.
        generator: Random generator. The default is torch's global generator.
    """
    if distances is None:
        if should_check_values(pairs.sim) and not bool((pairs.sim.detach().abs() < 1.01).all()):
            raise ValueError(
                "pairs.sim must contain cosines if distances is None, got NaN or values outside [-1, 1]: use a loss on "
                "cosines, or call distance_weighted with distances of shape [A, R]"
            )
        d2 = 2 - 2 * pairs.sim.detach()
    else:
        d2 = distances.detach().square()
    d2 = d2.clamp_min(cutoff**2)
    log_w = log_inverse_density(d2, dim)
    beyond = d2 >= nonzero_loss_cutoff**2
    noise = torch.empty_like(d2).exponential_(generator=generator).log_().neg_()
    # Negatives beyond `nonzero_loss_cutoff` get equal weights far below all other weights, so they are drawn last.
    score = torch.where(beyond, log_w.amin() - 1e4 + noise, log_w + noise)
    return replace(pairs, diff=_first(score, pairs.diff, row_count(pairs.same)))


def log_inverse_density(squared_distances: Tensor, dim: int) -> Tensor:
    """Compute log(1/q(D)) from D^2, elementwise, for the density q of the distance between random points on a sphere.

    `distance_weighted` states the formula. D^2 is clamped to a range inside (0, 4), so the result is finite.
    """
    d2 = squared_distances.clamp(torch.finfo(squared_distances.dtype).tiny, 3.999)
    return (2 - dim) / 2 * d2.log() - (dim - 3) / 2 * torch.log1p(-d2 / 4)


# The miners that `create_miner` can create. The default options of the last three are meant for cosine similarities.
MINERS: dict[str, Callable[..., Pairs]] = {
    "hardest": hardest,
    "closest-negatives": closest_negatives,
    "semi-hard": semi_hard,
    "multi-similarity": multi_similarity,
    "distance-weighted": distance_weighted,
}


def create_miner(mine: str | Mapping[str, Any]) -> Callable[[Pairs], Pairs]:
    """Create a miner from its name, or from a mapping with its name and options.

    `nearfar.losses.create` passes its argument `mine` to this function.

    >>> from nearfar.ops.pairs import pair_masks
    >>> create_miner({"name": "hardest", "k": 2})(Pairs(torch.eye(3), *pair_masks(torch.tensor([0, 0, 1])))).diff.sum()
    tensor(4)
    >>> create_miner({"name": "hardest", "count": 2})
    Traceback (most recent call last):
    ...
    ValueError: miner 'hardest' has no option 'count'. Options: k
    """
    options = {"name": mine} if isinstance(mine, str) else dict(mine)
    name = check_choice("mine", str(options.pop("name", None)), MINERS)
    parameters = inspect.signature(MINERS[name]).parameters
    accepted = [option for option in parameters if option not in ("pairs", "distances", "generator")]
    for option in options:
        if option not in accepted:
            listed = f"Options: {', '.join(accepted)}" if accepted else "It has no options"
            raise ValueError(f"miner {name!r} has no option {option!r}{suggest(option, accepted)} {listed}")
    required = [option for option in accepted if parameters[option].default is inspect.Parameter.empty]
    missing = [option for option in required if option not in options]
    if missing:
        raise ValueError(f"miner {name!r} needs {missing[0]}: pass mine={{'name': {name!r}, {missing[0]!r}: ...}}")
    return partial(MINERS[name], **options) if options else MINERS[name]


def _first(score: Tensor, mask: Tensor, k: int | Tensor) -> Tensor:
    """Keep only the k true entries with the largest scores in each row of a mask. If k is a tensor, row i keeps k[i].

    Among entries with equal scores, those with the lower column index are kept.
    """
    if isinstance(k, int) and k == 1:
        best = torch.where(mask, score, -torch.inf).argmax(1, keepdim=True)
        return torch.zeros_like(mask).scatter_(1, best, True) & mask
    masked = torch.where(mask, score, -torch.inf)
    k = score.new_full((), k, dtype=torch.int64).expand(len(mask)) if isinstance(k, int) else k
    # topk breaks ties arbitrarily, so use it only to find the k-th largest score. Keep all scores above it, then fill
    # up to k with scores equal to it, lowest column first.
    most = max(1, min(int(k.max()), mask.shape[1])) if is_on_host(mask) else mask.shape[1]
    kth = masked.topk(most, dim=1).values.gather(1, (k.clamp(1, most) - 1)[:, None])
    above, equal = masked > kth, masked == kth
    left = k - row_count(above)
    return (above | (equal & (equal.cumsum(1, dtype=torch.int32) <= left[:, None]))) & mask & (k > 0)[:, None]
