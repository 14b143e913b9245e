"""Batches: who meets whom. Samplers of data set indices with a seed and a state."""

from nearfar.samplers.batch_sampler import PlannedBatches
from nearfar.samplers.hncm import HNCM
from nearfar.samplers.pk import PK
from nearfar.samplers.profs import Profs, steps_per_cycle
from nearfar.samplers.shuffled import Shuffled

__all__ = ["HNCM", "PK", "PlannedBatches", "Profs", "Shuffled", "steps_per_cycle"]
