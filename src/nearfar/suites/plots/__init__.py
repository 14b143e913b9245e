"""`nearfar bench plot`: plots of runs and results as in the Proxy-ISA paper (arXiv 2211.10382), as SVG or PNG.

map           two-dimensional t-SNE of the embeddings of each run, with proxies as stars (Figs. 2 and 6)
similarity    cosine similarity of random samples to proxies and to each other, for each run (Fig. 8)
compactness   mean cosines of proxies and of training samples over the epochs of runs (appendix D)
overfitting   a metric over the epochs of runs (Fig. 11)
decay         the penalties of Proxy-ISA against the number of samples of a class seen so far (Fig. 5)
settings      a metric over two settings, from the results of a suite (Fig. 9)

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
from nearfar.suites.plots.compactness import draw_compactness
from nearfar.suites.plots.embedding_space import draw_embedding_space
from nearfar.suites.plots.overfitting import draw_overfitting
from nearfar.suites.plots.penalty_decay import draw_penalty_decay
from nearfar.suites.plots.settings_grid import draw_settings_grid
from nearfar.suites.plots.similarity_heatmap import draw_similarity

KINDS: dict[str, Callable[..., Any]] = {
    "map": draw_embedding_space,
    "similarity": draw_similarity,
    "compactness": draw_compactness,
    "overfitting": draw_overfitting,
    "decay": draw_penalty_decay,
    "settings": draw_settings_grid,
}
ONE_SOURCE = ("decay", "settings")  # the other plots compare any number of runs
PYTHON_ONLY = ("points", "per_class")  # options of the Python functions that the command line does not offer


def write_plot(kind: str, sources: Sequence[Path], out: Path, **options: Any) -> None:
    """Draw a plot and write it to a file.

    Args:
        kind: A key of KINDS.
        sources: Run directories, or a results file for "settings". "decay" and "settings" accept only one source.
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
    if kind not in ONE_SOURCE:
        save(draw(list(sources), **options), out)
        return
    if len(sources) != 1:
        raise NearfarError(f"plot {kind} takes one source, got {len(sources)}")
    save(draw(sources[0], **options), out)


def _list_options(names: Iterable[str]) -> str:
    return ", ".join(name for name in names if name not in PYTHON_ONLY) or "none"


__all__ = [
    "KINDS",
    "draw_compactness",
    "draw_embedding_space",
    "draw_overfitting",
    "draw_penalty_decay",
    "draw_settings_grid",
    "draw_similarity",
    "write_plot",
]
