"""Batch samplers, which choose the samples of each batch. `create` creates a sampler by its name.

Every sampler is reproducible from its seed and can save and restore its state.

>>> sampler = create("pk", labels=[0, 0, 1, 1, 2, 2], classes=2, per_class=2)
>>> len(next(iter(sampler)))
4
>>> sorted(options("shuffled"))
['drop_last', 'size']
"""

from __future__ import annotations

import inspect
from typing import Any

from nearfar.samplers.batch_sampler import SAMPLERS, SUPPLIED, BatchSampler, register
from nearfar.samplers.class_index import Indices
from nearfar.samplers.hncm import HNCM
from nearfar.samplers.pairs import PairBatches
from nearfar.samplers.pk import PK
from nearfar.samplers.profs import Profs, steps_per_cycle
from nearfar.samplers.shuffled import Shuffled
from nearfar.validation import Labels


def names() -> list[str]:
    """Return the names of all registered samplers."""
    return SAMPLERS.names()


def options(name: str) -> dict[str, inspect.Parameter]:
    """Return a dict that maps the names of a sampler's options to parameters of its constructor.

    The options are the settings under `batches` in a configuration that the sampler reads.
    """
    return SAMPLERS.options(name, supplied=SUPPLIED)


def create(
    name: str,
    *,
    labels: Labels,
    pairs: Indices | None = None,
    seed: int = 0,
    rank: int = 0,
    world: int = 1,
    **options: Any,
) -> BatchSampler:
    """Create a sampler by its name.

    Args:
        name: A registered name; see `names`.
        labels: The class of every sample [N].
        pairs: The indices of the two samples of each pair [P, 2]. Only samplers of pairs use them.
        seed: Seed of all random choices of the sampler.
        rank: Rank of this process.
        world: Number of processes that split each batch.
        options: Options of the sampler; see the function `options`.

    Raises:
        ValueError: If the name or an option is unknown. The message suggests a similar one.
    """
    supplied: dict[str, Any] = {"labels": labels, "seed": seed, "rank": rank, "world": world}
    if "pairs" in SAMPLERS.options(name):
        supplied["pairs"] = pairs
    sampler: BatchSampler = SAMPLERS.create(name, supplied=supplied, **options)
    return sampler


__all__ = [
    "HNCM",
    "PK",
    "BatchSampler",
    "PairBatches",
    "Profs",
    "Shuffled",
    "create",
    "names",
    "options",
    "register",
    "steps_per_cycle",
]
