"""Batches: who meets whom. Samplers of data set indices with a seed and a state."""

from nearfar.batches.hncm import HNCM
from nearfar.batches.pk import PK
from nearfar.batches.plan import PlannedBatches
from nearfar.batches.profs import Profs, steps_per_cycle
from nearfar.batches.shuffled import Shuffled

__all__ = ["HNCM", "PK", "PlannedBatches", "Profs", "Shuffled", "steps_per_cycle"]
