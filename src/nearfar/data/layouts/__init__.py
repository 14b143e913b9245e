"""Data layouts: one module for each way in which a dataset is stored.

A layout registers a function that opens a path and a function that recognizes whether a path has this layout.
`open_data` tries the layouts in a fixed order: ascending `order`, then by name. The built-in layouts use three values:

- 99: pairs and shards, which must be tried before csv and archives;
- 100: layouts that are recognized by specific files or by the file suffix (cub, cars, csv, npz, ...);
- 200: class folders, a layout that accepts every directory.

The default of `order` is 0, so layouts that users register are tried before the built-in ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError
from nearfar.registry import Registry

LAYOUTS: Registry[Callable[..., Manifest]] = Registry("layout", package="nearfar.data.layouts")
SPECIFIC, GENERIC = 100, 200
PYTHON = "python:"  # prefix of `Manifest.source` if the data is a Python object instead of a path
Opener = TypeVar("Opener", bound=Callable[..., Manifest])


class _Recognition(NamedTuple):
    recognizes: Callable[[Path], bool] | None
    order: int


_recognition: dict[str, _Recognition] = {}


def register(
    name: str, *, recognizes: Callable[[Path], bool] | None = None, order: int = 0
) -> Callable[[Opener], Opener]:
    """Return a decorator that registers the opener of a layout: a function that takes a path and returns a `Manifest`.

    The opener may declare any of the keyword-only parameters `allow_partial`, `root`, `labels`, `image`, `text`,
    `label`, `separator`, `group`, `camera` and `levels`, which have the same meaning as in `open_data`.

    Args:
        name: Name of the layout. `open_data("NAME:PATH")` opens a path with this layout without calling `recognizes`.
        recognizes: Function that returns whether an existing path has this layout. Use None for a dataset that needs
            no path: `open_data("NAME")` opens it.
        order: Layouts with a lower number are tried first.
    """

    def add(opener: Opener) -> Opener:
        LAYOUTS.register(name)(opener)
        _recognition[name] = _Recognition(recognizes, order)
        return opener

    return add


def layout_names() -> list[str]:
    """Return the names of all layouts, in the order in which `open_data` tries them."""
    return sorted(LAYOUTS.names(), key=lambda name: (_recognition[name].order, name))


def embedded_names() -> list[str]:
    """Return the names of the datasets that need no path, such as "sketches"."""
    return [name for name in layout_names() if _recognition[name].recognizes is None]


def recognize(path: Path) -> tuple[str, Path] | None:
    """Return the name of the first layout that recognizes the path, and the path to open, or None if no layout does.

    If a directory contains exactly one folder, this folder is tried as well, because archives of benchmarks often
    unpack to a single folder.
    """
    candidates = [path]
    if path.is_dir():
        try:
            inner = [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        except OSError as error:
            raise NearfarError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
        candidates += inner if len(inner) == 1 else []
    for name in layout_names():
        recognizes = _recognition[name].recognizes
        for candidate in candidates:
            if recognizes is not None and recognizes(candidate):
                return name, candidate
    return None


def accepts(name: str, *options: str) -> bool:
    """Return whether the opener of a layout has keyword-only parameters with these names."""
    parameters = LAYOUTS.options(name)
    return all(key in parameters and parameters[key].kind is inspect.Parameter.KEYWORD_ONLY for key in options)


def open_layout(name: str, path: Path | None = None, **options: Any) -> Manifest:
    """Open a path with the layout `name`. Options that are not keyword-only parameters of the opener are ignored."""
    options = {key: value for key, value in options.items() if accepts(name, key)}
    opener = LAYOUTS.get(name)
    return opener(**options) if path is None else opener(path, **options)
