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
from nearfar.training.trackers import TRACKERS, open_trackers
from nearfar.training.trainer import Trainer

TIMED_STEPS = 3
MAX_SECONDS = 20.0  # no further step is timed after this time: one slow step is enough for an estimate


class _TimingError(Exception):
    """Steps are slow: time no more of them."""


def check_run(config: Config, manifest: Manifest) -> str:
    """Create the network, loss, sampler, pacer and optimizer of a run and train a few steps in a temporary directory.

    Args:
        config: The configuration.
        manifest: The data of `config.data`.

    Returns:
        Messages of the trainer, device, number of steps and estimated time, as YAML comments.

    Raises:
        NearfarError: If the run could not start.
    """
    _check_names(config)
    # Do not open trackers or write the caches. Skip the test split, which does not affect the time of a step.
    uncached = replace(config, data=replace(config.data, cache=None), cache=replace(config.cache, activations=None))
    trial = replace(uncached, test=False, track=())
    times: list[float] = []
    messages: list[str] = []

    def record_time(*_: object) -> None:
        times.append(_now())
        if times[-1] - times[0] > MAX_SECONDS:
            raise _TimingError

    with TemporaryDirectory() as folder, suppress(_TimingError):
        trainer = Trainer(trial, manifest, Path(folder), say=messages.append, on_step_end=record_time)
        times.append(_now())
        trainer.fit(progress=False, stop_after=TIMED_STEPS)
    # The first step also starts the loader and allocates memory, so its time is used only if there is no other step.
    timed = times[1:] if len(times) > 2 else times
    count = len(timed) - 1
    seconds = (timed[-1] - timed[0]) / count
    device = trainer.state.device
    where = f"{device} ({counted(torch.get_num_threads(), 'thread')})" if device.type == "cpu" else str(device)
    caches = ["data.cache"] if config.data.cache is not None and manifest.kind == "files" else []
    caches += ["cache.activations"] if config.cache.activations is not None else []
    without = f", without {' and '.join(caches)}" if caches else ""
    basis = f"{counted(count, 'step')} of {seconds:.2g} s, measured on this machine{without}"
    lines = [
        *messages,
        f"device: {where}",
        trainer.summary,
        f"estimated time: {duration(seconds * trainer.steps)}, from {basis}; without evaluation",
    ]
    return "".join(f"# {line}\n" for line in lines)


def _check_names(config: Config) -> None:
    """Check names of trackers that a run would look up only later."""
    for name in config.track:
        if name not in TRACKERS:
            open_trackers((name,), Path(), {})  # raises an error that suggests a name
        if find_spec(name) is None:
            raise NearfarError(f"track={name} needs the package {name}: {install_hint('track')}")


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
