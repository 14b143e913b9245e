"""The learning rate over a run, as a factor of each group's own: a pure function of where the run stands."""

from __future__ import annotations

import math

from nearfar.config.schema import Schedule


def factor(schedule: Schedule, *, step: int, steps: int, epoch: int) -> float:
    """The factor for this step (from 0) of `steps`, in this epoch (from 0).

    >>> cosine = Schedule(name="cosine", warm_up=0.1)
    >>> [round(factor(cosine, step=step, steps=100, epoch=0), 2) for step in (0, 9, 10, 55, 99)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    >>> factor(Schedule(name="step", every=10, factor=0.5, warm_up=0.0), step=0, steps=100, epoch=20)
    0.25
    """
    rising = round(schedule.warm_up * steps)
    if step < rising:
        return (step + 1) / rising
    if schedule.name == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(steps - rising, 1)))
    if schedule.name == "step" and schedule.every is not None:
        return float(schedule.factor ** (epoch // schedule.every))
    return 1.0
