"""Mining: functions from Pairs to Pairs that keep fewer pairs.

Pairs are selected by their similarities, which are constants in the gradient. Of equal similarities, the one with the
earlier reference comes first.

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

from nearfar.ops.pairs import Pairs, row_count
from nearfar.spelling import suggest
from nearfar.validation import check_choice, check_positive


def hardest(pairs: Pairs, *, k: int = 1) -> Pairs:
    """Keep the k farthest positives and the k closest negatives of each anchor, or all if there are fewer."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    sim = pairs.sim.detach()
    return replace(pairs, same=_first(-sim, pairs.same, k), diff=_first(sim, pairs.diff, k))


def closest_negatives(pairs: Pairs) -> Pairs:
    """Keep all positives of each anchor and the same number of its closest negatives (PROFS, "-Hard" baselines)."""
    return replace(pairs, diff=_first(pairs.sim.detach(), pairs.diff, row_count(pairs.same)))


def semi_hard(pairs: Pairs, *, margin: float = 0.2, threshold: float | None = None) -> Pairs:
    """Keep all positives and the semi-hard negatives: those farther than some positive, but by less than the margin.

    A negative n is kept if S_ap - margin < S_an < S_ap for some positive p of a (Schroff et al., CVPR 2015, on
    similarities).

    Args:
        pairs: Pairs to select from.
        margin: Maximum difference in similarity.
        threshold: If given, compare with this fixed similarity instead of S_ap (DRO, Fig. 1). Positives are then kept
            only if threshold < S_ap < threshold + margin.
    """
    check_positive("margin", margin)
    sim = pairs.sim.detach()
    if threshold is not None:
        near = (sim > threshold - margin) & (sim < threshold)
        far = (sim > threshold) & (sim < threshold + margin)
        return replace(pairs, same=pairs.same & far, diff=pairs.diff & near)
    # Only the smallest S_ap above S_an matters.
    above = torch.where(pairs.same, sim, torch.inf).sort(1).values
    index = torch.searchsorted(above, sim, right=True).clamp_max(sim.shape[1] - 1)
    next_positive = above.gather(1, index)
    return replace(pairs, diff=pairs.diff & (next_positive > sim) & (next_positive - margin < sim))


def multi_similarity(pairs: Pairs, *, epsilon: float = 0.1) -> Pairs:
    """Keep positives with S_ip < max_n S_in + epsilon and negatives with S_in > min_p S_ip - epsilon.

    These are Eqs. 6 and 7 of Wang et al., CVPR 2019. An anchor without positives or without negatives keeps no pair.
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
    """Keep all positives of each anchor and draw the same number of negatives, with weight 1/q(D).

    This is Eq. 5 of Wu et al., ICCV 2017: log w = (2 - d) log D - (d - 3)/2 log(1 - D^2/4). Negatives are
    drawn without replacement, by adding Gumbel noise to log w and taking the largest values of each anchor. No
    exponential is computed, so nothing underflows or overflows in high dimensions and no anchor is lost. If too few
    negatives are below `nonzero_loss_cutoff`, the rest are drawn uniformly from those above.

    Args:
        pairs: Pairs to select from.
        dim: The dimension d of the embeddings.
        distances: The distances [A, R] of unit vectors; by default computed from `pairs.sim`, which must be cosines.
        cutoff: Smaller distances are clipped to this value.
        nonzero_loss_cutoff: Only distances below this value are weighted.
        generator: Random generator; default: torch's global one.
    """
    if distances is None:
        if not torch.compiler.is_compiling() and not bool((pairs.sim.detach().abs() < 1.01).all()):
            raise ValueError(
                "pairs.sim must be cosines, got values outside [-1, 1] or NaN: pass the distances [A, R] as distances="
            )
        d2 = 2 - 2 * pairs.sim.detach()
    else:
        d2 = distances.detach().square()
    d2 = d2.clamp(cutoff**2, 3.999)
    log_w = (2 - dim) / 2 * d2.log() - (dim - 3) / 2 * torch.log1p(-d2 / 4)
    beyond = d2 >= nonzero_loss_cutoff**2
    noise = torch.empty_like(d2).exponential_(generator=generator).log_().neg_()
    # Negatives beyond the cutoff have uniform weights, below all others.
    score = torch.where(beyond, log_w.amin() - 1e4 + noise, log_w + noise)
    return replace(pairs, diff=_first(score, pairs.diff, row_count(pairs.same)))


# By name, for `create_miner`; the last three expect cosines.
MINERS: dict[str, Callable[..., Pairs]] = {
    "hardest": hardest,
    "closest-negatives": closest_negatives,
    "semi-hard": semi_hard,
    "multi-similarity": multi_similarity,
    "distance-weighted": distance_weighted,
}


def create_miner(mine: str | Mapping[str, Any]) -> Callable[[Pairs], Pairs]:
    """Create a miner from its name or {name, ...options}, for `nearfar.losses.create(..., mine=)` and recipes.

    >>> from nearfar.ops.pairs import pair_masks
    >>> create_miner({"name": "hardest", "k": 2})(Pairs(torch.eye(3), *pair_masks(torch.tensor([0, 0, 1])))).diff.sum()
    tensor(4)
    >>> create_miner({"name": "hardest", "count": 2})
    Traceback (most recent call last):
    ...
    ValueError: mine 'hardest' has no option 'count'. Options: k
    """
    options = {"name": mine} if isinstance(mine, str) else dict(mine)
    name = check_choice("mine", str(options.pop("name", None)), MINERS)
    parameters = inspect.signature(MINERS[name]).parameters
    accepted = [option for option in parameters if option not in ("pairs", "distances", "generator")]
    for option in options:
        if option not in accepted:
            listed = f"Options: {', '.join(accepted)}" if accepted else "It has no options"
            raise ValueError(f"mine {name!r} has no option {option!r}{suggest(option, accepted)} {listed}")
    required = [option for option in accepted if parameters[option].default is inspect.Parameter.empty]
    missing = [option for option in required if option not in options]
    if missing:
        raise ValueError(f"mine {name!r} needs {missing[0]}: pass mine={{'name': {name!r}, {missing[0]!r}: ...}}")
    return partial(MINERS[name], **options) if options else MINERS[name]


def _first(score: Tensor, mask: Tensor, k: int | Tensor) -> Tensor:
    """Keep the k (or k[i]) entries of a mask [A, R] with the largest scores in each row; ties keep the first."""
    if isinstance(k, int) and k == 1:
        best = torch.where(mask, score, -torch.inf).argmax(1, keepdim=True)
        return torch.zeros_like(mask).scatter_(1, best, True) & mask
    masked = torch.where(mask, score, -torch.inf)
    k = torch.as_tensor(k, device=mask.device).expand(len(mask))
    # Keep scores above the k-th largest, and the first of those equal to it; topk alone breaks ties arbitrarily.
    most = mask.shape[1] if torch.compiler.is_compiling() else max(1, min(int(k.max()), mask.shape[1]))
    kth = masked.topk(most, dim=1).values.gather(1, (k.clamp(1, most) - 1)[:, None])
    above, equal = masked > kth, masked == kth
    left = k - row_count(above)
    return (above | (equal & (equal.cumsum(1, dtype=torch.int32) <= left[:, None]))) & mask & (k > 0)[:, None]
