"""The learning rate schedule, a pure function of the position in the run."""

from __future__ import annotations

import math

from nearfar.config.schema import Schedule


def lr_factor(schedule: Schedule, *, step: int, steps: int, epoch: int) -> float:
    """Return the learning rate of a step as a fraction of the peak learning rate.

    Args:
        schedule: The settings.
        step: Current step, counted from 0.
        steps: Number of steps of the run.
        epoch: Current epoch, counted from 0.

    >>> cosine = Schedule(name="cosine", warm_up=0.1)
    >>> [round(lr_factor(cosine, step=step, steps=100, epoch=0), 2) for step in (0, 9, 10, 55, 99)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    >>> lr_factor(Schedule(name="step", every=10, factor=0.5, warm_up=0.0), step=0, steps=100, epoch=20)
    0.25
    """
    warm_up_steps = round(schedule.warm_up * steps)
    if step < warm_up_steps:
        return (step + 1) / warm_up_steps
    if schedule.name == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (step - warm_up_steps) / max(steps - warm_up_steps, 1)))
    if schedule.name == "step" and schedule.every is not None:
        return float(schedule.factor ** (epoch // schedule.every))
    return 1.0
