"""A matplotlib figure without global state, and its file, the same bytes each time."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.files import atomic

FORMATS = (".svg", ".png")
# text stays text, ids come from a constant, and sizes are those of a printed column
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "nearfar", "font.size": 9, "font.family": "DejaVu Sans"}
MARKERS = ("o", "s", "^", "D", "v")  # five, so that with seven colors no two of 35 look alike


def panels(count: int = 1, *, width: float = 5.0, height: float = 4.0) -> tuple[Any, list[Any]]:
    """A figure, and its axes side by side."""
    with _style():
        figure = _matplotlib("figure").Figure(figsize=(width * count, height), layout="constrained")
        return figure, list(figure.subplots(1, count, squeeze=False)[0])


def check_format(out: Path) -> str:
    """The suffix of a picture's file; an error for one that is not written."""
    suffix = out.suffix.lower()
    if suffix not in FORMATS:
        raise NearfarError(f"{out}: a picture is .svg or .png")
    return suffix


def save(figure: Any, out: Path) -> None:
    """Write .svg or .png, at once or not at all."""
    suffix = check_format(out)
    metadata = {"Date": None, "Creator": None} if suffix == ".svg" else {"Software": None}
    with _style(), atomic(out) as draft:
        figure.savefig(draft, format=suffix[1:], dpi=200, metadata=metadata)


def _style() -> Any:
    return _matplotlib().rc_context(STYLE)


def _matplotlib(part: str = "") -> Any:
    try:
        return import_module(f"matplotlib.{part}" if part else "matplotlib")
    except ImportError:
        raise NearfarError("pictures need matplotlib: pip install 'nearfar[plots]'") from None
