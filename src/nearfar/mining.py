"""Which pairs to keep: functions from Pairs to Pairs with narrower masks.

Selection is by the similarities as they are, and constant in the gradient. Of two equal similarities the earlier
reference is taken first.

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
from nearfar.validation import check_choice, check_positive, nearest


def hardest(pairs: Pairs, *, k: int = 1) -> Pairs:
    """Per anchor the k farthest positives and the k closest negatives (all of a group that has fewer)."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    sim = pairs.sim.detach()
    return replace(pairs, same=_first(-sim, pairs.same, k), diff=_first(sim, pairs.diff, k))


def closest_negatives(pairs: Pairs) -> Pairs:
    """All positives, and per anchor as many of its closest negatives as it has positives (PROFS, "-Hard" baselines)."""
    return replace(pairs, diff=_first(pairs.sim.detach(), pairs.diff, row_count(pairs.same)))


def semi_hard(pairs: Pairs, *, margin: float = 0.2, threshold: float | None = None) -> Pairs:
    """Negatives that are farther than a positive of their anchor, by less than the margin; all positives.

    n is kept if S_ap - margin < S_an < S_ap for some positive p of a (Schroff et al., CVPR 2015, on similarities). With
    `threshold` the number takes the place of S_ap, as for pairs in DRO's Fig. 1; positives are then kept if
    threshold < S_ap < threshold + margin likewise.
    """
    check_positive("margin", margin)
    sim = pairs.sim.detach()
    if threshold is not None:
        near = (sim > threshold - margin) & (sim < threshold)
        far = (sim > threshold) & (sim < threshold + margin)
        return replace(pairs, same=pairs.same & far, diff=pairs.diff & near)
    # the closest positive above each negative decides: S_an < S_ap is wanted with the smallest such S_ap
    above = torch.where(pairs.same, sim, torch.inf).sort(1).values
    index = torch.searchsorted(above, sim, right=True).clamp_max(sim.shape[1] - 1)
    next_positive = above.gather(1, index)
    return replace(pairs, diff=pairs.diff & (next_positive > sim) & (next_positive - margin < sim))


def multi_similarity(pairs: Pairs, *, epsilon: float = 0.1) -> Pairs:
    """Positives with S_ip < max_n S_in + epsilon, negatives with S_in > min_p S_ip - epsilon (Wang et al., CVPR 2019,
    Eqs. 6, 7).

    An anchor without positives or without negatives keeps nothing; kept positives and negatives are empty together.
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
    """Per anchor as many negatives as it has positives, drawn with weight 1/q(D) (Wu et al., ICCV 2017, Eq. 5).

    log w = (2 - d) log D - (d - 3)/2 log(1 - D^2/4) with D clipped below at `cutoff`, only D <
    `nonzero_loss_cutoff`; all positives are kept. `dim` is d. Drawn without replacement (they are a mask), by adding
    Gumbel noise to log w and taking the largest, anchor by anchor: no exponential is taken, so nothing under- or
    overflows in high dimension and no anchor is lost. Where fewer negatives than wanted lie below the cut-off, the
    rest are drawn uniformly from those above.
    """
    if distances is None:
        if not torch.compiler.is_compiling() and not bool((pairs.sim.detach().abs() < 1.01).all()):
            raise ValueError("pairs.sim must be cosines to get distances from: pass distances= [A, R] of unit rows")
        d2 = 2 - 2 * pairs.sim.detach()
    else:
        d2 = distances.detach().square()
    d2 = d2.clamp(cutoff**2, 3.999)
    log_w = (2 - dim) / 2 * d2.log() - (dim - 3) / 2 * torch.log1p(-d2 / 4)
    beyond = d2 >= nonzero_loss_cutoff**2
    noise = torch.empty_like(d2).exponential_(generator=generator).log_().neg_()
    # uniform weights for those beyond, below every weight of those within
    score = torch.where(beyond, log_w.amin() - 1e4 + noise, log_w + noise)
    return replace(pairs, diff=_first(score, pairs.diff, row_count(pairs.same)))


# by name, for `named_miner`; the last three read sim as cosines
MINERS: dict[str, Callable[..., Pairs]] = {
    "hardest": hardest,
    "closest-negatives": closest_negatives,
    "semi-hard": semi_hard,
    "multi-similarity": multi_similarity,
    "distance-weighted": distance_weighted,
}


def named_miner(mine: str | Mapping[str, Any]) -> Callable[[Pairs], Pairs]:
    """A miner by its name, or by {name, ...options}, for `nearfar.losses.create(..., mine=)` and recipes.

    >>> from nearfar.ops.pairs import pair_masks
    >>> named_miner({"name": "hardest", "k": 2})(Pairs(torch.eye(3), *pair_masks(torch.tensor([0, 0, 1])))).diff.sum()
    tensor(4)
    >>> named_miner({"name": "hardest", "count": 2})
    Traceback (most recent call last):
    ...
    ValueError: mine 'hardest' has no option 'count'. Options: k
    """
    options = {"name": mine} if isinstance(mine, str) else dict(mine)
    name = check_choice("mine", str(options.pop("name", None)), MINERS)
    taken = inspect.signature(MINERS[name]).parameters
    known = [each for each in taken if each not in ("pairs", "distances", "generator")]
    for option in options:
        if option not in known:
            listed = f"Options: {', '.join(known)}" if known else "It has none"
            raise ValueError(f"mine {name!r} has no option {option!r}{nearest(option, known)} {listed}")
    missing = [each for each in known if taken[each].default is inspect.Parameter.empty and each not in options]
    if missing:
        raise ValueError(f"mine {name!r} needs {missing[0]}: pass mine={{'name': {name!r}, {missing[0]!r}: ...}}")
    return partial(MINERS[name], **options) if options else MINERS[name]


def _first(score: Tensor, mask: Tensor, k: int | Tensor) -> Tensor:
    """The part of a mask [A, R] with the k (or k[i]) largest scores of each row, ties by index."""
    if isinstance(k, int) and k == 1:
        best = torch.where(mask, score, -torch.inf).argmax(1, keepdim=True)
        return torch.zeros_like(mask).scatter_(1, best, True) & mask
    masked = torch.where(mask, score, -torch.inf)
    k = torch.as_tensor(k, device=mask.device).expand(len(mask))
    # what is above the k-th largest is kept, and of what equals it, the first ones; topk alone would break ties anyhow
    most = mask.shape[1] if torch.compiler.is_compiling() else max(1, min(int(k.max()), mask.shape[1]))
    kth = masked.topk(most, dim=1).values.gather(1, (k.clamp(1, most) - 1)[:, None])
    above, equal = masked > kth, masked == kth
    left = k - row_count(above)
    return (above | (equal & (equal.cumsum(1, dtype=torch.int32) <= left[:, None]))) & mask & (k > 0)[:, None]
