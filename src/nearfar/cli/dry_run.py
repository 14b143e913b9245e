"""`nearfar train --dry-run`: check everything that a run needs, and estimate its training time."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from nearfar.config.schema import Config
from nearfar.data import Manifest
from nearfar.errors import NearfarError, install_hint
from nearfar.formatting import counted, duration
from nearfar.training.activation_cache import ActivationCache, Part
from nearfar.training.cache_plan import describe_cached_plan, plan_cached_run
from nearfar.training.run_plan import describe_plan, plan_run
from nearfar.training.trackers import TRACKERS, open_trackers
from nearfar.training.trainer import Trainer

TIMED_STEPS = 3
MAX_SECONDS = 20.0  # no further step is started after this time, because one slow step is enough for an estimate


class _TimingError(Exception):
    """Raised to end timing early, because steps are slow."""


def check_run(config: Config, manifest: Manifest) -> str:
    """Create all parts of a run, such as network, loss and optimizer, and train a few steps in a temporary directory.

    Args:
        config: The configuration.
        manifest: The data that `config.data` refers to.

    Returns:
        The messages of the trainer, the device, the number of steps and the estimated time, as YAML comments.

    Raises:
        NearfarError: If the run could not start.
    """
    _check_names(config)
    # Do not open trackers or write caches. Skip the test split, which does not affect the time of a step. Also skip the
    # initialization of the head and the proxies from the images, which passes all images through the network.
    uncached = replace(config, data=replace(config.data, cache=None), cache=replace(config.cache, activations=None))
    model = replace(config.model, init="kaiming", proxies="random") if manifest.kind == "files" else config.model
    trial = replace(uncached, test=False, track=(), model=model)
    times: list[float] = []
    messages: list[str] = []

    def record_time(*_: object) -> None:
        times.append(_now())
        if times[-1] - times[0] > MAX_SECONDS:
            raise _TimingError

    with TemporaryDirectory() as folder:
        trainer = Trainer(trial, manifest, Path(folder), say=messages.append, on_step_end=record_time)
        times.append(_now())
        with suppress(_TimingError):
            trainer.fit(progress=False, stop_after=TIMED_STEPS)
        if config.cache.activations is not None:
            estimate = _estimate_cached(config, trainer, messages)
        elif manifest.kind == "files" and config.data.cache is None:
            estimate = _estimate_images(config, trainer, messages)
        else:
            estimate = _estimate_steps(config, manifest, times, trainer.steps)
    device = trainer.state.device
    where = f"{device} ({counted(torch.get_num_threads(), 'thread')})" if device.type == "cpu" else str(device)
    lines = [*messages, f"device: {where}", trainer.summary, estimate]
    return "".join(f"# {line}\n" for line in lines)


def _estimate_cached(config: Config, trainer: Trainer, messages: list[str]) -> str:
    """Return a line with the estimated time of a run that trains on cached activations.

    Messages about the cache are appended to `messages`.
    """
    parts = _parts(trainer)
    cache = ActivationCache(config, trainer.state.embedder, parts, device=trainer.state.device, say=messages.append)
    plan = plan_cached_run(cache)
    messages += describe_cached_plan(cache, plan)
    build, train = duration(plan.build_seconds), duration(plan.train_seconds)
    return f"estimated time: {duration(plan.seconds)}, {build} for the cache and {train} for training and evaluation"


def _estimate_images(config: Config, trainer: Trainer, messages: list[str]) -> str:
    """Return a line with the estimated time of a run on images. The plan of the run is appended to `messages`."""
    network = trainer.state.embedder
    plan = plan_run(config, network, _parts(trainer))
    messages += describe_plan(config, network, plan)
    return f"estimated time: {duration(plan.seconds)} for training and evaluation"


def _parts(trainer: Trainer) -> dict[str, Part]:
    return {"train": (trainer.splits.train, trainer.train_loader), **trainer.evaluated}


def _estimate_steps(config: Config, manifest: Manifest, times: list[float], steps: int) -> str:
    """Return a line with the estimated time of all steps. `times` holds the start time and the time after each step."""
    # The first step also starts the loader and allocates memory, so its time is used only if there is no other step.
    timed = times[1:] if len(times) > 2 else times
    count = len(timed) - 1
    seconds = (timed[-1] - timed[0]) / count
    without = ", without data.cache" if config.data.cache is not None and manifest.kind == "files" else ""
    basis = f"{counted(count, 'step')} of {seconds:.2g} s, measured on this machine{without}"
    return f"estimated time: {duration(seconds * steps)}, from {basis}; without evaluation"


def _check_names(config: Config) -> None:
    """Check that the experiment trackers in `config.track` exist and that their packages are installed.

    The dry run itself would not notice, because it does not open trackers.
    """
    for name in config.track:
        if name not in TRACKERS:
            open_trackers((name,), Path(), {})  # raises an error that suggests a name
        if find_spec(name) is None:
            raise NearfarError(f"track={name} needs the package {name}: {install_hint('track')}")


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
