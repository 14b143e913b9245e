"""`nearfar bench plot`: the plots that papers show of runs and results, as SVG or PNG.

map           the embedding space in the plane by t-SNE, proxies as stars (Proxy-ISA, Figs. 2 and 6)
similarity    cosines of some samples with proxies and with each other (Proxy-ISA, Fig. 8)
decay         the penalties of Proxy-ISA over the number of samples seen of a class (Fig. 5)
settings      a metric over two settings, from the results of a suite (Proxy-ISA, Fig. 9)
overfitting   a metric over the epochs of one or more runs (Proxy-ISA, Fig. 11)

With the same version of matplotlib, the same input gives the same bytes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.plotting import check_format, save
from nearfar.spelling import suggest
from nearfar.suites.plots.embedding_space import draw_embedding_space
from nearfar.suites.plots.overfitting import draw_overfitting
from nearfar.suites.plots.penalty_decay import draw_penalty_decay
from nearfar.suites.plots.settings_grid import draw_settings_grid
from nearfar.suites.plots.similarity_heatmap import draw_similarity

KINDS: dict[str, Callable[..., Any]] = {
    "map": draw_embedding_space,
    "similarity": draw_similarity,
    "decay": draw_penalty_decay,
    "settings": draw_settings_grid,
    "overfitting": draw_overfitting,
}
PYTHON_ONLY = ("points", "per_class")  # options that the command does not have


def write_plot(kind: str, sources: Sequence[Path], out: Path, **options: Any) -> None:
    """Draw a plot to a file.

    Args:
        kind: A name of KINDS.
        sources: Run directories, or a results file for "settings".
        out: The .svg or .png file to write.
        options: Options of the plot; None means the default.
    """
    check_format(out)
    if kind not in KINDS:
        raise NearfarError(f"there is no plot {kind!r}{suggest(kind, KINDS)} Known: {', '.join(KINDS)}")
    draw = KINDS[kind]
    parameters = inspect.signature(draw).parameters.values()
    accepted = {parameter.name: parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    options = {name: value for name, value in options.items() if value is not None}
    for name in options:
        if name not in accepted:
            raise NearfarError(
                f"plot {kind} has no option {name}{suggest(name, accepted)} It takes {_list_options(accepted)}"
            )
    for name, parameter in accepted.items():
        if parameter.default is parameter.empty and name not in options:
            raise NearfarError(f"plot {kind} needs {name}: pass --{name}")
    if kind == "overfitting":
        save(draw(list(sources), **options), out)
        return
    if len(sources) != 1:
        raise NearfarError(f"plot {kind} takes one source, got {len(sources)}")
    save(draw(sources[0], **options), out)


def _list_options(names: Iterable[str]) -> str:
    return ", ".join(name for name in names if name not in PYTHON_ONLY) or "none"


__all__ = [
    "KINDS",
    "draw_embedding_space",
    "draw_overfitting",
    "draw_penalty_decay",
    "draw_settings_grid",
    "draw_similarity",
    "write_plot",
]
