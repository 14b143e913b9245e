"""One race: a recipe trains for so many steps on a split of the classes and is judged on those held out."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from nearfar.advise.data import SIDE, Course
from nearfar.advise.entrant import Entrant
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


def config_of(entrant: Entrant, course: Course, *, steps: int | None, split: int, cache: Path | None = None) -> Config:
    """The run of a race: our defaults, the recipe, the entrant's settings; split and first weights go by one number.

    Scored once, at the end. steps: null is the length that `nearfar train` has by itself.
    """
    data: dict[str, Any] = {"source": course.source, "validation": course.held_out, "validation_seed": split}
    own: dict[str, Any] = {
        "seed": split,
        "select": {"by": "validation", "metric": METRIC, "every": 10**9},
        "metrics": [METRIC, "recall@1"],
        "untrained": False,
        "save_every": 1e9,
        **({} if steps is None else {"steps": steps}),
    }
    if course.manifest.kind == "files":
        data |= {"cache": None if cache is None else str(cache), "workers": 0}
        own["images"] = {"crop": SIDE}
    tree = merge_trees(apply_settings({}, entrant.settings), {**own, "data": data})
    return resolve(course.manifest.kind, width=course.width, recipe=entrant.recipe, file=tree)


def full_length(entrant: Entrant, course: Course) -> int:
    """The steps of `nearfar train`, which no race exceeds."""
    config = config_of(entrant, course, steps=None, split=0)
    return config.steps or (config.epochs or 1) * len(make_batches(config, course.manifest))


def race(
    entrant: Entrant,
    course: Course,
    *,
    steps: int,
    split: int,
    cache: Path | None = None,
    clock: Clock = time.monotonic,
) -> dict[str, Any]:
    """The score on held-out classes with what it took, or the message of a recipe that failed."""
    started = clock()
    place = {"kind": "race", "entrant": entrant.name, "steps": steps, "split": split}
    try:
        config = config_of(entrant, course, steps=steps, split=split, cache=cache)
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            training = Timed(config, course.manifest, Path(folder) / "run", say=lambda _: None)
            training.clock = clock
            training.run(progress=False)
    except (NearfarError, ValueError, RuntimeError) as error:  # whatever one recipe does, the others go on
        message = re.sub(rf" \([^()]*{PREFIX}[^()]*\)", "", " ".join(str(error).split()))  # files that are gone
        return {**place, "message": message, "seconds": clock() - started}
    score, seconds = float(training.select.best["value"]), clock() - started
    return {**place, "score": score, "seconds": seconds, "step_seconds": training.step_seconds}
