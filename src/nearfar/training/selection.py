"""Which epoch's weights are kept: the last, or the best by a metric on held-out classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nearfar.config.schema import Select
from nearfar.errors import NearfarError


class Selection:
    """Hears the scores of epochs and remembers the best; `by` is validation, test or last, never auto."""

    def __init__(self, config: Select, *, validation: bool, test: bool) -> None:
        self.config = config
        self.by = config.by if config.by != "auto" else ("validation" if validation else "last")
        if self.by == "validation" and not validation:
            raise NearfarError("select.by=validation needs validation classes: set data.validation=0.2")
        if self.by == "test" and not test:
            raise NearfarError("select.by=test needs a test split, the data has none")
        self.best: dict[str, Any] = {"value": -math.inf, "epoch": None, "looks": 0}

    def wants(self, epoch: int, *, last: bool) -> bool:
        """Whether to score after this epoch, counted from 0."""
        return self.by != "last" and (last or (epoch + 1) % self.config.every == 0)

    def hear(self, scores: Mapping[str, float], epoch: int) -> bool:
        """Take note of an epoch's scores; whether it is the best so far."""
        metric = self.config.metric
        if metric not in scores:
            raise NearfarError(f"select.metric={metric} is not among metrics: {', '.join(scores)}")
        self.best["looks"] += 1
        better = scores[metric] > float(self.best["value"])
        if better:
            self.best.update(value=scores[metric], epoch=epoch, looks=0)
        return better

    def patience_is_over(self) -> bool:
        """Whether there were as many looks without a gain as the configuration waits for."""
        patience = self.config.patience
        return patience is not None and self.by != "last" and self.best["looks"] >= patience

    def told(self, epoch: int) -> dict[str, Any]:
        """For the results, where training ended in this epoch."""
        result: dict[str, Any] = {"selected_by": self.by, "epoch": epoch if self.by == "last" else self.best["epoch"]}
        if self.by == "test":
            result["warning"] = "the epoch was chosen on the test set, as in some papers: not a fair number"
        if self.by == "validation":
            result["validation"] = {self.config.metric: self.best["value"]}
        return result
