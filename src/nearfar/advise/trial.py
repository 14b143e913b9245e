"""One trial: train a recipe for a number of steps and score it on held-out classes."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from nearfar.advise.candidate import Candidate
from nearfar.advise.data import IMAGE_SIZE, TrialData
from nearfar.config.merge import resolve
from nearfar.config.schema import Config
from nearfar.config.tree import apply_settings, merge_trees
from nearfar.data import Batch
from nearfar.errors import NearfarError
from nearfar.training.prepare import make_batches
from nearfar.training.trainer import Training

METRIC = "map@r"
PREFIX = "nearfar-advise-"
Clock = Callable[[], float]


class Timed(Training):
    """Training that knows how long a step takes; the first, which is slower, does not count where there are more."""

    clock: Clock = staticmethod(time.monotonic)
    began = ended = 0.0

    def train_on(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.step <= 1:
            self.began = self.clock()
        found = super().train_on(batch)
        self.ended = self.clock()
        return found

    @property
    def step_seconds(self) -> float:
        """The mean."""
        return (self.ended - self.began) / max(1, self.step - 1)


def trial_config(
    candidate: Candidate, data: TrialData, *, steps: int | None, split: int, cache: Path | None = None
) -> Config:
    """Return the configuration of a trial: defaults, then the recipe, then the candidate's settings.

    Args:
        candidate: the recipe and its settings.
        data: the samples.
        steps: length of the trial; None for the length that `nearfar train` uses.
        split: number of the class split; it also seeds the initial weights.
        cache: directory of decoded images.
    """
    data_settings: dict[str, Any] = {"source": data.source, "validation": data.held_out, "validation_seed": split}
    settings: dict[str, Any] = {
        "seed": split,
        "select": {"by": "validation", "metric": METRIC, "every": 10**9},  # score once, at the end
        "metrics": [METRIC, "recall@1"],
        "untrained": False,
        "save_every": 1e9,
        **({} if steps is None else {"steps": steps}),
    }
    if data.manifest.kind == "files":
        data_settings |= {"cache": None if cache is None else str(cache), "workers": 0}
        settings["images"] = {"crop": IMAGE_SIZE}
    tree = merge_trees(apply_settings({}, candidate.settings), {**settings, "data": data_settings})
    return resolve(data.manifest.kind, width=data.width, recipe=candidate.recipe, file=tree)


def count_full_steps(candidate: Candidate, data: TrialData) -> int:
    """Return the number of steps that `nearfar train` would run; no trial is longer."""
    config = trial_config(candidate, data, steps=None, split=0)
    return config.steps or (config.epochs or 1) * len(make_batches(config, data.manifest))


def run_trial(
    candidate: Candidate,
    data: TrialData,
    *,
    steps: int,
    split: int,
    cache: Path | None = None,
    clock: Clock = time.monotonic,
) -> dict[str, Any]:
    """Train a candidate and return its score on held-out classes and its times, or the error message if it failed."""
    started = clock()
    record = {"kind": "trial", "candidate": candidate.name, "steps": steps, "split": split}
    try:
        config = trial_config(candidate, data, steps=steps, split=split, cache=cache)
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            training = Timed(config, data.manifest, Path(folder) / "run", say=lambda _: None)
            training.clock = clock
            training.run(progress=False)
    except (NearfarError, ValueError, RuntimeError) as error:  # one failing recipe must not stop the others
        # drop references to files in the temporary directory, which no longer exists
        message = re.sub(rf" \([^()]*{PREFIX}[^()]*\)", "", " ".join(str(error).split()))
        return {**record, "message": message, "seconds": clock() - started}
    score, seconds = float(training.select.best["value"]), clock() - started
    return {**record, "score": score, "seconds": seconds, "step_seconds": training.step_seconds}
