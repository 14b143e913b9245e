"""Calibrate distances on held-out classes: find thresholds, probabilities, and when the class of a query is unknown."""

from nearfar.calibration.fit import calibrate
from nearfar.calibration.stored import CALIBRATION_FILE, Calibration, load_calibration

__all__ = ["CALIBRATION_FILE", "Calibration", "calibrate", "load_calibration"]
