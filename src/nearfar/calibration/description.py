"""Describe a calibration in words and tables, for the command line, the model card, the report and the page."""

from __future__ import annotations

from nearfar.calibration.stored import Calibration, CalibrationError

THRESHOLD_HEADER = ("FMR", "threshold", "95% interval", "FNMR", "95% interval")


def threshold_rows(calibration: Calibration) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each threshold of a calibration, with the columns of `THRESHOLD_HEADER`."""
    return [
        (
            f"{point.fmr:g}",
            f"{point.threshold:.4f}",
            "{:.4f} to {:.4f}".format(*point.threshold_interval),
            f"{100 * point.fnmr:.1f}%",
            "{:.1f}% to {:.1f}%".format(*(100 * rate for rate in point.fnmr_interval)),
        )
        for point in calibration.verification.points
    ]


def describe(calibration: Calibration) -> list[tuple[str, str]]:
    """Return the main figures of a calibration as pairs of a name and a value."""
    verification, same, open_set = calibration.verification, calibration.same, calibration.open_set
    return [
        (
            "calibrated on",
            f"{calibration.samples:,} samples of {calibration.classes:,} classes of {_source(calibration)}",
        ),
        ("same or different, AUROC", f"{verification.auroc:.3f}"),
        ("same or different, equal error rate", f"{verification.equal_error:.1%}"),
        ("probability of a neighbor, calibration error", _points(same.error)),
        ("class of a query, accuracy for known classes", f"{open_set.accuracy:.1%}"),
        ("class of a query, calibration error", _points(open_set.error)),
        (
            "unknown classes, AUROC",
            f"{open_set.auroc.value:.3f} ({open_set.auroc.low:.3f} to {open_set.auroc.high:.3f})",
        ),
        (
            "unknown classes, FPR at 95% TPR",
            f"{open_set.fpr.value:.1%} ({open_set.fpr.low:.1%} to {open_set.fpr.high:.1%})",
        ),
        (
            "threshold for unknown classes",
            f"accepts {open_set.accepted:.1%} of the queries of known classes, "
            f"rejects {open_set.rejected:.1%} of those of unknown classes",
        ),
    ]


def warning(calibration: Calibration) -> str:
    """Return a warning if the model was trained on some of the classes of the calibration data, and "" otherwise."""
    if not calibration.trained:
        return ""
    return (
        f"The model was trained on {calibration.trained:,} of the {calibration.classes:,} classes, so these figures "
        "are too optimistic for new classes"
    )


def _points(error: CalibrationError) -> str:
    interval = f"{100 * error.low:.1f} to {100 * error.high:.1f}"
    return f"{100 * error.value:.1f} points ({interval}; perfect probabilities: {100 * error.chance:.1f})"


def _source(calibration: Calibration) -> str:
    name = calibration.data or "unnamed data"
    return name if calibration.split in ("", "all") else f"{name}, split {calibration.split}"
