"""Names of metrics, including short names that stand for several cutoffs.

recall@10, precision@10, map@10, ndcg@10    one cutoff
recall, precision, ndcg, map@k              the metric at each cutoff in `ks`
map@r, r-precision                          cutoff R, the number of positives of the query
map, mrr                                    the full ranking
graded-ndcg@10, graded-ndcg                 ndcg of grades, see `nearfar.metrics.graded`
h-ap                                        hierarchical average precision, see `nearfar.metrics.graded`
nmi, ami, f1                                agreement of k-means clusters with the labels
silhouette                                  separation of the classes (the labels are the clusters)
"""

import re
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from nearfar.spelling import suggest

CUT = ("recall", "precision", "map", "ndcg", "graded-ndcg")
WHOLE = ("map@r", "r-precision", "map", "mrr", "h-ap")
GRADED = ("graded-ndcg", "h-ap")
CLUSTERING = ("nmi", "ami", "f1", "silhouette")
RETRIEVAL = ("recall", "map@r", "r-precision", "ndcg", "mrr")


def expand_names(metrics: str | Iterable[str], ks: Iterable[int]) -> tuple[str, ...]:
    """Return the full names of the requested metrics, in the given order and without duplicates.

    >>> expand_names(("recall", "map@r", "ndcg@10"), ks=(1, 2))
    ('recall@1', 'recall@2', 'map@r', 'ndcg@10')
    """
    requested = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    cuts = check_ks(ks)
    if not requested:
        raise ValueError("metrics is empty: name at least one, for example metrics=[recall@1, map@r]")
    names: list[str] = []
    for name in requested:
        family, _, cut = name.lower().partition("@") if isinstance(name, str) else ("", "", "")
        if family in CUT and (cut == "k" or (not cut and family != "map")):
            names += [f"{family}@{k}" for k in cuts]
        elif f"{family}@{cut}".rstrip("@") in (*WHOLE, *CLUSTERING):
            names.append(f"{family}@{cut}".rstrip("@"))
        elif family in CUT and re.fullmatch("[1-9][0-9]*", cut):
            names.append(f"{family}@{cut}")
        else:
            raise ValueError(_unknown(str(name)))
    return tuple(dict.fromkeys(names))


def check_ks(ks: Iterable[int]) -> tuple[int, ...]:
    """Check that the cutoffs are positive integers, and return them as a tuple."""
    cuts: tuple[Any, ...] = (ks,) if isinstance(ks, Integral) else tuple(ks)
    if not cuts or not all(isinstance(k, Integral) and not isinstance(k, bool) and int(k) > 0 for k in cuts):
        raise ValueError(f"ks must be one or more positive integers, got {cuts!r}")
    return tuple(int(k) for k in cuts)


def parse_cutoff(name: str) -> int | None:
    """Return the number K of a name like recall@K, or None if the name has no number."""
    cut = name.partition("@")[2]
    return int(cut) if cut.isdigit() else None


def is_graded(name: str) -> bool:
    """Return whether a metric uses grades instead of only positives and negatives."""
    return name.partition("@")[0] in GRADED


def required_depth(names: Sequence[str], max_positives: int, gallery: int) -> int:
    """Return the number of leading positions of a ranking that must be computed for these metrics.

    The number is 1 for recall and mrr, because the position of the best positive is computed in any case.

    Args:
        names: Names of the metrics.
        max_positives: Largest number of positives of a query.
        gallery: Number of samples in the gallery.
    """
    if "map" in names:
        return gallery
    cuts = [parse_cutoff(name) or 1 for name in names if not name.startswith("recall")]
    by_r = max_positives if {"map@r", "r-precision"} & set(names) else 1
    return min(max([by_r, *cuts]), gallery)


def _unknown(name: str) -> str:
    known = sorted({*CUT, *(f"{family}@10" for family in CUT), *WHOLE, *CLUSTERING})
    _, at, cut = name.lower().partition("@")
    # keep the cutoff of the unknown name in the suggestion
    candidates = [*known, *(f"{each}@{cut}" for each in CUT if at and re.fullmatch("[1-9][0-9]*", cut))]
    return (
        f"metrics has an unknown name {name!r}{suggest(name.lower(), candidates)} Known: {', '.join(known)} (any "
        "positive integer may replace the 10)"
    )
