"""Training runs for `benchmarks.defaults`. All runs share one process; their results are appended to a file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.config.merge import resolve
from nearfar.config.schema import Config
from nearfar.data import Manifest, open_data
from nearfar.errors import NearfarError
from nearfar.metrics.protocols import class_disjoint_split
from nearfar.suites.config_id import config_id
from nearfar.training.initialization import InitialStateCache
from nearfar.training.trainer import Trainer

METRICS = ("map@r", "recall@1")
PARTS = ("validation", "test")


@dataclass(frozen=True)
class Job:
    """One training run.

    Attributes:
        part: "validation" trains on half of the training classes and scores the other half; "test" trains on all
            training classes and scores the test classes.
        data: Name of the dataset.
        recipe: Name of the recipe.
        settings: Settings that override the defaults, each as `key=value`.
        seed: Seed for the run and for the choice of the validation classes.
    """

    part: str
    data: str
    recipe: str
    settings: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """Scores of a run in percent, before and after training. If the run failed, `message` says why."""

    job: Job
    id: str
    untrained: dict[str, float]
    trained: dict[str, float]
    seconds: float
    message: str = ""

    def gain(self, metric: str = "map@r") -> float:
        """Return the score after training minus the score of the untrained head, or -100 for a failed run."""
        return -100.0 if self.message else self.trained[metric] - self.untrained[metric]


class Runner:
    """Runs jobs. Jobs whose results are already in the file are not run again.

    Args:
        sources: A dict that maps the name of each dataset to its path.
        file: A file with one JSON line per finished run. Runs are identified by the id of their configuration.
    """

    def __init__(self, sources: dict[str, Path], file: Path) -> None:
        self.sources, self.file = sources, file
        self._manifests: dict[tuple[str, str, int], Manifest] = {}
        self._states = InitialStateCache()
        self._done = {outcome.id: outcome for outcome in read_outcomes(file)}

    def run(self, job: Job) -> Outcome:
        """Return the outcome of a job."""
        manifest = self._open(job.part, job.data, job.seed)
        assert manifest.features is not None
        settings = [*job.settings, f"seed={job.seed}", f"metrics=[{','.join(METRICS)}]", "threads=1", "device=cpu"]
        config = resolve("features", width=manifest.features.shape[1], recipe=job.recipe, settings=settings)
        config = replace(config, data=replace(config.data, fingerprint=manifest.fingerprint))
        key = config_id(config)
        if key not in self._done:
            outcome = self._train(job, config, manifest, key)
            self._done[key] = outcome
            append_outcome(self.file, outcome)
        return replace(self._done[key], job=job)

    def _train(self, job: Job, config: Config, manifest: Manifest, key: str) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            try:
                trainer = Trainer(config, manifest, Path(folder), say=_ignore, initial=self._states.get(config))
                trainer.fit(progress=False)
            except NearfarError as error:
                return Outcome(job, key, {}, {}, 0.0, str(error).replace(folder, "the run"))
            result = json.loads((Path(folder) / "scores.json").read_text())
        untrained, trained = ({name: 100 * result[part][name] for name in METRICS} for part in ("untrained", "test"))
        return Outcome(job, key, untrained, trained, seconds=result["seconds"])

    def _open(self, part: str, data: str, seed: int) -> Manifest:
        place = (part, data, seed if part == "validation" else 0)
        if place not in self._manifests:
            manifest = open_data(self.sources[data])
            if manifest.features is None:
                raise NearfarError(f"{self.sources[data]}: has no feature vectors")
            self._manifests[place] = split_training_classes(manifest, seed) if part == "validation" else manifest
        return self._manifests[place]


def split_training_classes(manifest: Manifest, seed: int) -> Manifest:
    """Return only the training samples of a manifest. A random half of their classes becomes the test split."""
    train = manifest.subset("train").compact()
    split = np.full(len(train), "train", dtype="<U5")
    split[class_disjoint_split(train.labels, fraction=0.5, seed=seed)[1]] = "test"
    return replace(train, split=split)


def read_outcomes(file: Path) -> list[Outcome]:
    """Return the finished runs in a file, or an empty list if the file does not exist."""
    if not file.exists():
        return []
    entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [_outcome(entry) for entry in entries]


def append_outcome(file: Path, outcome: Outcome) -> None:
    """Append a finished run to a file."""
    job = outcome.job
    entry: dict[str, Any] = {
        "id": outcome.id,
        "part": job.part,
        "data": job.data,
        "recipe": job.recipe,
        "settings": list(job.settings),
        "seed": job.seed,
        "untrained": {name: round(value, 3) for name, value in outcome.untrained.items()},
        "trained": {name: round(value, 3) for name, value in outcome.trained.items()},
        "seconds": outcome.seconds,
        **({"message": outcome.message} if outcome.message else {}),
    }
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(entry) + "\n")


def _outcome(entry: dict[str, Any]) -> Outcome:
    job = Job(entry["part"], entry["data"], entry["recipe"], tuple(entry["settings"]), entry["seed"])
    message = entry.get("message", "")
    return Outcome(job, entry["id"], entry["untrained"], entry["trained"], entry["seconds"], message)


def run_all(runner: Runner, jobs: Sequence[Job]) -> list[Outcome]:
    """Run jobs one after the other, print a line for each, and return their outcomes."""
    torch.set_num_threads(1)
    outcomes = []
    for number, job in enumerate(jobs, 1):
        outcome = runner.run(job)
        outcomes.append(outcome)
        what = outcome.message or f"{outcome.gain():+.2f} MAP@R in {outcome.seconds:.1f} s"
        print(f"{number}/{len(jobs)} {job.part} {job.data} {job.recipe} {describe(job.settings)}: {what}", flush=True)
    return outcomes


def describe(settings: Sequence[str]) -> str:
    """Return settings as text."""
    return " ".join(settings) or "(defaults)"


def _ignore(text: str) -> None:
    """Discard a message of a run."""
