"""Batches: who meets whom. Samplers of data set indices with a seed and a state."""

from nearfar.batches.pk import PK
from nearfar.batches.plan import PlannedBatches
from nearfar.batches.shuffled import Shuffled

__all__ = ["PK", "PlannedBatches", "Shuffled"]
