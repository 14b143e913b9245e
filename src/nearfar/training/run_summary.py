"""What a run is about to do, in a line, with a hint where that is too little to learn from."""

from __future__ import annotations

import math

from nearfar.formatting import counted

# ours: below this a fine-tuning has hardly begun
FEW_STEPS = 50
# ours: Proxy-ISA for runs of a few epochs
AT_ONCE = "--set loss.memory_epoch=0 --set loss.filter_epoch=1"


def summarize_run(*, samples: int, batch: int, steps: int, epoch: int, by_epochs: bool, waits: int = 0) -> str:
    """batch: rows of one. epoch: the batches of one. by_epochs: its length is in epochs: small data makes it short.
    waits: epochs that Proxy-ISA trains with next to no weight on negatives, before its memory starts.

    >>> summarize_run(samples=8000, batch=128, steps=189, epoch=63, by_epochs=True)
    '8,000 training samples, 189 steps of 128, 3 epochs'
    >>> summarize_run(samples=80, batch=80, steps=5, epoch=1, by_epochs=True)
    '80 training samples, 5 steps of 80, 5 epochs: that is little, try --set epochs=100'
    """
    epochs = math.ceil(steps / max(1, epoch))
    text = f"{counted(samples, 'training sample')}, {counted(steps, 'step')} of {batch:,}, {counted(epochs, 'epoch')}"
    if by_epochs and steps < FEW_STEPS:
        text += f": that is little, try --set epochs={math.ceil(2 * FEW_STEPS / max(1, epoch))}"
    if epochs <= waits:
        late = f"the loss has its memory after {counted(waits, 'epoch')}, and till then few negatives count"
        text += f"; {late}, try {AT_ONCE}"
    return text
