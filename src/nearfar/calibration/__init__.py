"""Calibration: thresholds and probabilities for distances, and when a class is "unknown", from held-out classes."""

from nearfar.calibration.fit import calibrate
from nearfar.calibration.stored import CALIBRATION_FILE, Calibration, load_calibration

__all__ = ["CALIBRATION_FILE", "Calibration", "calibrate", "load_calibration"]
