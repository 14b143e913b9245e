"""One trial: train a recipe for a number of steps and score it on held-out classes."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nearfar.advise.candidate import Candidate
from nearfar.advise.data import IMAGE_SIZE, TrialData
from nearfar.config.merge import resolve
from nearfar.config.schema import Config
from nearfar.config.tree import apply_settings, merge_trees
from nearfar.errors import NearfarError
from nearfar.training.components import make_sampler
from nearfar.training.trainer import Trainer

METRIC = "map@r"
PREFIX = "nearfar-advise-"
Clock = Callable[[], float]


class StepTimer:
    """Timer for the mean time of a training step. The first step is slow, so it counts only if there is no other."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.steps = clock, 0
        self.start = self.end = clock()

    def on_step_end(self, *_: object) -> None:
        """Record the end of a step."""
        self.end = self.clock()
        self.steps += 1
        if self.steps == 1:
            self.first_step = self.end - self.start
            self.start = self.end

    @property
    def step_seconds(self) -> float:
        """The mean time of a step in seconds."""
        return (self.end - self.start) / (self.steps - 1) if self.steps > 1 else self.first_step


def trial_config(
    candidate: Candidate, data: TrialData, *, steps: int | None, split: int, cache: Path | None = None
) -> Config:
    """Return the configuration of a trial.

    It is merged from the defaults, the recipe, the candidate's settings and the trial's settings, where later settings
    override earlier ones.

    Args:
        candidate: The recipe and its settings.
        data: The samples.
        steps: Number of steps of the trial, or None for the number that `nearfar train` uses.
        split: Number of the class split; it also seeds the initial weights.
        cache: Directory where decoded images are cached.
    """
    data_settings: dict[str, Any] = {"source": data.source, "validation": data.held_out, "validation_seed": split}
    settings: dict[str, Any] = {
        "seed": split,
        "select": {"by": "validation", "metric": METRIC, "every": 10**9, "untrained": False},  # score once, at the end
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
    """Return the number of steps that `nearfar train` would run for a candidate on this data.

    The largest such number over the candidates limits the steps of all trials.
    """
    config = trial_config(candidate, data, steps=None, split=0)
    return config.steps or (config.epochs or 1) * len(make_sampler(config, data.manifest))


def run_trial(
    candidate: Candidate,
    data: TrialData,
    *,
    steps: int,
    split: int,
    cache: Path | None = None,
    clock: Clock = time.monotonic,
) -> dict[str, Any]:
    """Train a candidate and return a line of `trials.jsonl`.

    The line has the score on held-out classes and the times, or the error message if the trial failed.

    Args:
        candidate: The recipe and its settings.
        data: The samples.
        steps: Number of steps.
        split: Number of the class split; it also seeds the initial weights.
        cache: Directory where decoded images are cached.
        clock: Returns the current time in seconds.
    """
    started = clock()
    record = {"kind": "trial", "candidate": candidate.name, "steps": steps, "split": split}
    try:
        config = trial_config(candidate, data, steps=steps, split=split, cache=cache)
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            out = Path(folder) / "run"
            timer = StepTimer(clock)
            trainer = Trainer(config, data.manifest, out, say=lambda _: None, on_step_end=timer.on_step_end)
            timer.start = clock()
            trainer.fit(progress=False)
    except (NearfarError, ValueError, RuntimeError) as error:  # one failing recipe must not stop the others
        # remove paths in the temporary directory from the message, because the directory no longer exists
        message = re.sub(rf" \([^()]*{PREFIX}[^()]*\)", "", " ".join(str(error).split()))
        return {**record, "message": message, "seconds": clock() - started}
    score, seconds = float(trainer.state.selection.best["value"]), clock() - started
    return {**record, "score": score, "seconds": seconds, "step_seconds": timer.step_seconds}
