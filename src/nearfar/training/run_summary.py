"""Describe the size of a run in one line, with a hint if it is too short."""

from __future__ import annotations

import math

from nearfar.formatting import counted, memory_size

# A run with fewer steps than this gets the hint that it is short, because fine-tuning has hardly begun by then.
FEW_STEPS = 50
# The settings of Proxy-ISA that we recommend for runs of a few epochs.
NO_WARMUP = "--set loss.memory_epoch=0 --set loss.filter_epoch=1"


def summarize_run(
    *,
    samples: int,
    batch_size: int,
    steps: int,
    steps_per_epoch: int,
    by_epochs: bool,
    warmup_epochs: int = 0,
    memory: int | None = None,
) -> str:
    """Describe the size of a run in one line.

    Args:
        samples: Number of training samples.
        batch_size: Number of samples per batch.
        steps: Number of steps of the run.
        steps_per_epoch: Number of batches of an epoch.
        by_epochs: If True, the setting `epochs` determines the number of steps, so a small dataset gives few steps.
        warmup_epochs: Number of epochs after which Proxy-ISA starts to use its memory. Until then, negatives have
            little weight.
        memory: Estimated number of bytes that a step needs, if it is known.

    >>> summarize_run(samples=80, batch_size=80, steps=90, steps_per_epoch=1, by_epochs=True, memory=3 * 2**29)
    '80 training samples, 90 steps of 80, 90 epochs; a step needs about 1.5 GB of memory'
    >>> summarize_run(samples=8000, batch_size=128, steps=189, steps_per_epoch=63, by_epochs=True)
    '8,000 training samples, 189 steps of 128, 3 epochs'
    >>> summarize_run(samples=80, batch_size=80, steps=5, steps_per_epoch=1, by_epochs=True)
    '80 training samples, 5 steps of 80, 5 epochs: this is short, try --set epochs=100'
    """
    epochs = math.ceil(steps / max(1, steps_per_epoch))
    size = f"{counted(samples, 'training sample')}, {counted(steps, 'step')} of {batch_size:,}"
    text = f"{size}, {counted(epochs, 'epoch')}"
    if by_epochs and steps < FEW_STEPS:
        text += f": this is short, try --set epochs={math.ceil(2 * FEW_STEPS / max(1, steps_per_epoch))}"
    if epochs <= warmup_epochs:
        reason = (
            f"the memory of the loss starts after {counted(warmup_epochs, 'epoch')}; "
            "until then, negatives have little weight"
        )
        text += f"; {reason}, try {NO_WARMUP}"
    return text if memory is None else f"{text}; a step needs about {memory_size(memory)} of memory"
