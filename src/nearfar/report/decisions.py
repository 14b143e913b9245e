"""The section of a report about deciding whether two samples have the same class: thresholds, reliability and ROC."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from nearfar.calibration.description import THRESHOLD_HEADER, describe, threshold_rows, warning
from nearfar.calibration.stored import Calibration
from nearfar.plotting import new_figure, to_inline_svg
from nearfar.report.curves import CLASSES, GRID_COLOR, LINE_COLORS
from nearfar.report.html import render

SIDE = 260
LARGEST, SMALLEST = 90.0, 8.0  # largest and smallest area of a mark in the reliability diagram, in square points


def collect_decisions(calibration: Calibration | None) -> dict[str, Any] | None:
    """Return the values that the template of this section needs, or None if the model is not calibrated."""
    if calibration is None:
        return None
    return {
        "facts": describe(calibration),
        "warning": warning(calibration),
        "header": THRESHOLD_HEADER,
        "rows": threshold_rows(calibration),
        "figures": draw_decisions(calibration),
    }


def draw_decisions(calibration: Calibration) -> Markup:
    """Return two HTML figures: the reliability diagram of the probability of "same class", and the ROC curve.

    The ROC curve is that of deciding by a distance threshold whether two samples have the same class.
    """
    return Markup("").join([_draw_reliability(calibration), _draw_roc(calibration)])


def _draw_reliability(calibration: Calibration) -> Markup:
    bins = calibration.same.reliability
    figure, axes = _new_panel()
    axes.plot([0, 1], [0, 1], color=GRID_COLOR, linewidth=1)
    total = max(part.count for part in bins)
    axes.scatter(
        [part.predicted for part in bins],
        [part.observed for part in bins],
        s=[max(SMALLEST, LARGEST * part.count / total) for part in bins],
        color=LINE_COLORS[0],
        linewidth=0,
        clip_on=False,
        zorder=3,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("observed frequency")
    error = 100 * calibration.same.error.value
    title = f"Reliability of P(same class), calibration error {error:.1f} points"
    pairs = ", ".join(f"{part.predicted:.2f}: {part.observed:.2f}" for part in bins)
    return _to_html(figure, title, f"{title}. Predicted and observed: {pairs}")


def _draw_roc(calibration: Calibration) -> Markup:
    verification = calibration.verification
    points = [(fmr, fnmr) for fmr, fnmr in verification.roc if fmr > 0]
    figure, axes = _new_panel()
    axes.plot([fmr for fmr, _ in points], [1 - fnmr for _, fnmr in points], color=LINE_COLORS[0], linewidth=2)
    axes.set_xscale("log")
    axes.set(ylim=(0, 1))
    axes.minorticks_off()
    # The default labels of a logarithmic axis are TeX, which an inline SVG would show as its source.
    axes.xaxis.set_major_formatter(lambda rate, _: f"{rate:g}")
    axes.set_xlabel("false match rate")
    axes.set_ylabel("true match rate")
    title = f"ROC of same or different, AUROC {verification.auroc:.3f}"
    named = ", ".join(f"{1 - point.fnmr:.2f} at {point.fmr:g}" for point in verification.points)
    return _to_html(figure, title, f"{title}. True match rate: {named}")


def _new_panel() -> tuple[Any, Any]:
    figure, (axes,) = new_figure(width=SIDE / 72, height=SIDE / 72)
    figure.set_facecolor("none")
    axes.set_frame_on(False)
    axes.tick_params(length=0)
    axes.grid(color=GRID_COLOR, linewidth=1, clip_on=False)
    axes.set_axisbelow(True)
    return figure, axes


def _to_html(figure: Any, title: str, label: str) -> Markup:
    svg = to_inline_svg(figure, label=label, classes=CLASSES)
    return render("report/templates/curve.html", title=title, svg=Markup(svg), legend=[])
