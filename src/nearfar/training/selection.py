"""Select the epoch whose weights are kept: the last, or the best by a metric on the validation or test samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from nearfar.config.schema import Select
from nearfar.errors import NearfarError
from nearfar.metrics.names import expand_names


class Selection:
    """Selects the best epoch.

    The attribute `by` is "validation", "test" or "last". It is never "auto", which is replaced by one of these.
    """

    def __init__(self, config: Select, *, validation: bool, test: bool) -> None:
        """Resolve and check the settings.

        Args:
            config: The settings.
            validation: Whether there are validation samples that can be scored.
            test: Whether there are test samples that can be scored.
        """
        self.config = config
        self.by = config.by if config.by != "auto" else ("validation" if validation else "last")
        if self.by == "validation" and not validation:
            raise NearfarError("select.by=validation needs validation classes: set data.validation=0.2")
        if self.by == "test" and not test:
            raise NearfarError(
                "select.by=test needs a test split with two samples of a class, but there is none: use "
                "select.by=validation or last"
            )
        # "looks" is the number of evaluations since the best one
        self.best: dict[str, Any] = {"value": -math.inf, "epoch": None, "looks": 0}

    def check_metric(self, metrics: Iterable[str]) -> None:
        """Check that the metric to maximize is one of the metrics of the run.

        Raises:
            NearfarError: If it is not.
        """
        names = expand_names(metrics, ks=(1, 2, 4, 8))
        if self.by != "last" and self.config.metric not in names:
            raise NearfarError(f"select.metric={self.config.metric} is not one of the metrics: {', '.join(names)}")

    def should_score(self, epoch: int, *, is_last: bool) -> bool:
        """Return whether to compute scores at the end of `epoch`, which is counted from 0."""
        return self.by != "last" and (is_last or (epoch + 1) % self.config.every == 0)

    def update(self, scores: Mapping[str, float], epoch: int) -> bool:
        """Record the scores of an epoch. Return whether this epoch is the best so far."""
        metric = self.config.metric
        if metric not in scores:
            raise NearfarError(f"select.metric={metric} is not one of the metrics: {', '.join(scores)}")
        self.best["looks"] += 1
        is_best = scores[metric] > float(self.best["value"])
        if is_best:
            self.best.update(value=scores[metric], epoch=epoch, looks=0)
        return is_best

    def offer_start(self, scores: Mapping[str, float]) -> None:
        """Record the scores of the network before training. This network is kept if no epoch is better."""
        self.best.update(value=scores[self.config.metric], epoch=None, looks=0)

    @property
    def kept_start(self) -> bool:
        """Whether the network before training is the best so far."""
        return self.by != "last" and self.best["epoch"] is None and self.best["value"] > -math.inf

    def is_patience_over(self) -> bool:
        """Return whether the last `patience` evaluations brought no improvement."""
        patience = self.config.patience
        return patience is not None and self.by != "last" and self.best["looks"] >= patience

    def result(self, epoch: int) -> dict[str, Any]:
        """Return the entries of scores.json about the selection; `epoch` is the last epoch of training.

        The entry "epoch" is None if the network before training is kept.
        """
        result: dict[str, Any] = {"selected_by": self.by, "epoch": epoch if self.by == "last" else self.best["epoch"]}
        if self.by == "test":
            result["warning"] = (
                "the epoch was selected on the test set, as in some papers, so the test scores are too optimistic"
            )
        if self.by == "validation":
            result["validation"] = {self.config.metric: self.best["value"]}
        return result
