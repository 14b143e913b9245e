"""Data layouts: one module for each way in which a dataset is stored.

A layout registers the function that opens it, together with the function that recognizes it. `open_data` tries the
layouts in a fixed order: ascending `order`, then by name. The built-in layouts use two values:

- 100: layouts that are recognized by specific files or by the file suffix (cub, cars, csv, npz, ...);
- 200: class folders, which accept every directory.

The default is 0, so layouts that users register are tried before the built-in ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from nearfar.data.manifest import Manifest
from nearfar.registry import Registry

LAYOUTS: Registry[Callable[..., Manifest]] = Registry("layout", package="nearfar.data.layouts")
SPECIFIC, GENERIC = 100, 200
Opener = TypeVar("Opener", bound=Callable[..., Manifest])


class _Recognition(NamedTuple):
    recognizes: Callable[[Path], bool] | None
    order: int


_recognition: dict[str, _Recognition] = {}


def register(
    name: str, *, recognizes: Callable[[Path], bool] | None = None, order: int = 0
) -> Callable[[Opener], Opener]:
    """Return a decorator that registers the opener of a layout: a function from a path to a `Manifest`.

    The opener may have the keyword-only parameters `allow_partial`, `root` and `labels` of `open_data`.

    Args:
        name: Name of the layout. `open_data("NAME:PATH")` opens a path with this layout without recognizing it.
        recognizes: Returns whether an existing path has this layout. None is for datasets that need no path:
            `open_data("NAME")` opens them.
        order: Layouts with a lower number are tried first.
    """

    def add(opener: Opener) -> Opener:
        LAYOUTS.register(name)(opener)
        _recognition[name] = _Recognition(recognizes, order)
        return opener

    return add


def layout_names() -> list[str]:
    """Return the names of all layouts in the order in which they are tried."""
    return sorted(LAYOUTS.names(), key=lambda name: (_recognition[name].order, name))


def embedded_names() -> list[str]:
    """Return the names of the datasets that need no path."""
    return [name for name in layout_names() if _recognition[name].recognizes is None]


def recognize(path: Path) -> tuple[str, Path] | None:
    """Return the name of the first layout that recognizes the path, and the path to open; None if no layout does.

    The archives of the benchmarks unpack into one folder, so the only folder inside a directory is tried as well.
    """
    candidates = [path]
    if path.is_dir():
        inner = [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        candidates += inner if len(inner) == 1 else []
    for name in layout_names():
        recognizes = _recognition[name].recognizes
        for candidate in candidates:
            if recognizes is not None and recognizes(candidate):
                return name, candidate
    return None


def open_layout(name: str, path: Path | None = None, **options: Any) -> Manifest:
    """Open a path with the layout of this name, and pass it those options that are keyword-only parameters."""
    parameters = LAYOUTS.options(name).items()
    accepted = {key for key, parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    options = {key: value for key, value in options.items() if key in accepted}
    opener = LAYOUTS.get(name)
    return opener(**options) if path is None else opener(path, **options)
