"""`nearfar bench picture`: the pictures that papers show of a run or of results, as SVG or PNG (extra `plots`).

map           the embedding space in the plane by t-SNE, proxies as stars (Proxy-ISA, Figs. 2 and 6)
similarity    cosines of some samples with proxies and with each other (Proxy-ISA, Fig. 8)
decay         the weights of Proxy-ISA against the samples that a class has seen (Fig. 5)
settings      a metric against two settings, from the results of a suite (Proxy-ISA, Fig. 9)
overfitting   a metric over the epochs of one or more runs (Proxy-ISA, Fig. 11)

The same input gives the same bytes with the same matplotlib.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.suites.plots.canvas import check_format, save
from nearfar.suites.plots.decay import decay
from nearfar.suites.plots.overfitting import overfitting
from nearfar.suites.plots.settings import settings_map
from nearfar.suites.plots.similarity import similarity
from nearfar.suites.plots.space import space
from nearfar.validation import nearest

KINDS: dict[str, Callable[..., Any]] = {
    "map": space,
    "similarity": similarity,
    "decay": decay,
    "settings": settings_map,
    "overfitting": overfitting,
}


FROM_PYTHON = ("points", "per_class")  # the command has no option for them


def picture(kind: str, sources: Sequence[Path], out: Path, **options: Any) -> None:
    """Draw a kind of picture of runs, or of results for "settings", to a file; an option that is None is unset."""
    check_format(out)
    if kind not in KINDS:
        raise NearfarError(f"no picture {kind!r}{nearest(kind, KINDS)} Known: {', '.join(KINDS)}")
    drawn = KINDS[kind]
    takes = {name: each for name, each in inspect.signature(drawn).parameters.items() if each.kind is each.KEYWORD_ONLY}
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in takes:
            raise NearfarError(f"picture {kind} has no option {name}{nearest(name, takes)} It takes {_options(takes)}")
    for name, each in takes.items():
        if each.default is each.empty and name not in given:
            raise NearfarError(f"picture {kind} needs {name}: pass --{name}")
    if kind == "overfitting":
        save(drawn(list(sources), **given), out)
        return
    if len(sources) != 1:
        raise NearfarError(f"picture {kind} is of one source, got {len(sources)}")
    save(drawn(sources[0], **given), out)


def _options(takes: Iterable[str]) -> str:
    return ", ".join(name for name in takes if name not in FROM_PYTHON) or "none"


__all__ = ["KINDS", "decay", "overfitting", "picture", "save", "settings_map", "similarity", "space"]
