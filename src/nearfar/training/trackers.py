"""Experiment trackers: TensorBoard, Weights & Biases, MLflow. Each is imported only if it is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from nearfar.errors import NearfarError, install_hint
from nearfar.spelling import suggest


class Tracker(Protocol):
    """Interface of a tracker."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the numbers of a step; `values` maps names to numbers."""

    def close(self) -> None:
        """End the run in the tracker."""


class TensorBoard:
    """Writes event files to the run directory, for `tensorboard --logdir RUN`."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        self._writer = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(run / "tensorboard"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Weights & Biases, configured by its environment variables (WANDB_PROJECT, WANDB_MODE)."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        self._run = _module("wandb", "wandb").init(name=run.name, dir=str(run), config=dict(config), resume="allow")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow, configured by its environment variables (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME)."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        self._mlflow = _module("mlflow", "mlflow")
        self._mlflow.start_run(run_name=run.name)
        self._mlflow.log_dict(dict(config), "config.json")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


TRACKERS: dict[str, type[TensorBoard] | type[WandB] | type[MLflow]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def open_trackers(names: tuple[str, ...], run: Path, config: Mapping[str, Any]) -> tuple[Tracker, ...]:
    """Open the trackers with these names.

    Raises:
        NearfarError: If a tracker is unknown or not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise NearfarError(f"unknown tracker {name!r}{suggest(name, TRACKERS)} Known: {', '.join(TRACKERS)}")
    return tuple(TRACKERS[name](run, config) for name in names)


def _module(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise NearfarError(f"track={package} needs the package {package} ({error}): {install_hint('track')}") from None
