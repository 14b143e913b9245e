"""Report the progress of training: log file, trackers, progress bar, messages and warnings."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nearfar.formatting import duration
from nearfar.training.diagnostics import batch_statistics, batch_warnings
from nearfar.training.distributed import process_group
from nearfar.training.log import Log
from nearfar.training.schedule import lr_factor
from nearfar.training.state import TrainState
from nearfar.training.step import StepResult
from nearfar.training.trackers import open_trackers

MIN_POINTS = 10  # short runs log more often than `log_every`, so that their curves have at least this many points
MESSAGE_INTERVAL = 30  # seconds between messages if there is no progress bar


class Monitor:
    """Logs steps and epochs. Processes other than the main one write and show nothing."""

    def __init__(
        self, state: TrainState, out: Path, *, steps: int, progress: bool, say: Callable[[str], object] = print
    ) -> None:
        """Open the log of a run.

        Args:
            state: The state of training, at its current step.
            out: The run directory.
            steps: Number of steps of the whole run.
            progress: If True, show progress: a bar in a terminal, elsewhere a message every 30 seconds.
            say: Function that prints a message.
        """
        self.state, self.steps, self.progress, self.say = state, steps, progress, say
        self.log_every = min(state.config.log_every, max(1, steps // MIN_POINTS))
        self.log: Log | None = None
        if process_group.is_main_process():
            trackers = open_trackers(state.config.track, out, state.config.to_dict())
            self.log = Log(out / "log.jsonl", step=state.step, epoch=state.epoch, trackers=trackers)
        # with disable=None, tqdm shows the bar only in a terminal
        hidden = None if progress and process_group.is_main_process() else True
        self.bar = tqdm(total=steps, initial=state.step, desc="train", unit="batch", leave=False, disable=hidden)
        self.first_step = state.step
        self.start = self.last_message = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the monitor was created."""
        return time.monotonic() - self.start

    def end_step(self, result: StepResult) -> None:
        """Update the progress bar, and log every `log_every` steps."""
        state = self.state
        self.bar.update()
        if state.step % self.log_every == 0 or state.step == self.steps:
            self._log_step(result)
        if self.progress and self.bar.disable and time.monotonic() - self.last_message > MESSAGE_INTERVAL:
            self.last_message = time.monotonic()
            remaining = self.seconds / (state.step - self.first_step) * (self.steps - state.step)
            self.say(f"step {state.step:,} of {self.steps:,}, {duration(remaining)} left")

    def write(self, kind: str, values: dict[str, Any]) -> None:
        """Write an entry to the log."""
        if self.log is not None:
            self.log.write(kind, self.state.step, **values)

    def close(self) -> None:
        """Close the log, the trackers and the progress bar."""
        self.bar.close()
        if self.log is not None:
            self.log.close()

    def _log_step(self, result: StepResult) -> None:
        state, config = self.state, self.state.config
        loss_sum = state.take_loss_sum()
        if self.log is None:
            return
        embeddings = result.embeddings
        statistics = batch_statistics(
            state.loss,
            embeddings,
            result.labels,
            weights=result.weights,
            representatives=state.sampler.representatives,
            loss_sum=loss_sum,
        )
        loss = statistics.pop("loss")
        lr = config.optimizer.lr * lr_factor(config.schedule, step=state.step, steps=self.steps, epoch=state.epoch)
        speed = (state.step - self.first_step) / self.seconds * len(result.labels)
        values = {"epoch": state.epoch, "loss": loss, "lr": lr, "samples_per_second": round(speed, 1), **statistics}
        self.write("step", values)
        shown = {"loss": f"{loss:.3f}", "norm": f"{statistics['norm']:.1f}", "lr": f"{lr:.1e}"}
        if "active_pairs" in statistics:
            shown["active"] = f"{statistics['active_pairs']:.0%}"
        self.bar.set_postfix({**shown, "samples/s": f"{speed:.0f}"}, refresh=False)
        for kind, text in batch_warnings(statistics, dim=state.embedder.dim, batch_size=len(embeddings)).items():
            if kind not in state.warned:
                state.warned.add(kind)
                self.say(f"warning: {text}")
                self.write("warning", {"text": text})
