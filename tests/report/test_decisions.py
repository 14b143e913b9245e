"""The figures of a calibration in the report."""

from __future__ import annotations

import re

import numpy as np

from nearfar.calibration import calibrate
from nearfar.report.decisions import draw_decisions


def test_ticks_of_the_roc_are_numbers() -> None:
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(8, 6))
    labels = np.repeat(np.arange(8), 20)
    figures = draw_decisions(calibrate(centers[labels] + rng.normal(size=(160, 6)), labels))
    roc = figures.partition("ROC of")[2]
    ticks = re.findall(r"<text[^>]*>([^<]*)</text>", roc)
    assert {"0.001", "0.01", "0.1", "1"} <= set(ticks), ticks
    assert not [tick for tick in ticks if "$" in tick]
