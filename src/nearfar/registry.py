"""Registries that look up losses, samplers, pacers, backbones, layouts and uncertainty sets by name.

Modules use a decorator to register their classes and functions. The modules of the registry's package are imported on
first lookup, so a new file in this package is enough to add a built-in entry. Users register their own entries with the
same decorator.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

from nearfar.spelling import suggest

T = TypeVar("T", bound=Callable[..., Any])
E = TypeVar("E", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Map names to classes or functions of one kind.

    Args:
        kind: What the entries are, such as "loss" or "sampler", for error messages.
        package: The package whose modules hold the built-in entries.

    >>> shapes: Registry[type] = Registry("shape")
    >>> @shapes.register("square")
    ... class Square:
    ...     def __init__(self, *, side: float = 1.0) -> None:
    ...         self.side = side
    >>> shapes.create("square", side=2.0).side
    2.0
    >>> shapes.create("square", sid=2.0)
    Traceback (most recent call last):
    ...
    ValueError: shape 'square' has no option 'sid'; did you mean 'side'? Options: side
    """

    def __init__(self, kind: str, *, package: str | None = None) -> None:
        self.kind = kind
        self._package = package
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[E], E]:
        """Return a decorator that registers a class or function under `name`.

        Defining the same class or function again, as a notebook does when a cell runs twice, replaces the entry.

        Raises:
            ValueError: If another entry has this name.
        """

        def add(entry: E) -> E:
            if self._package is not None and not entry.__module__.startswith(f"{self._package}."):
                # load the built-in entries first, so that a name conflict is reported here and not at the first lookup
                self._discover()
            existing = self._entries.get(name)
            if existing is not None and _origin(existing) != _origin(entry):
                raise ValueError(
                    f"{self.kind} {name!r} is already registered by {existing.__module__}: use another name"
                )
            self._entries[name] = cast(T, entry)
            return entry

        return add

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        self._discover()
        return sorted(self._entries)

    def get(self, name: str) -> T:
        """Return the entry with this name.

        Raises:
            ValueError: If the name is unknown. The message suggests a similar name and lists all names.
        """
        self._discover()
        if name not in self._entries:
            names = self.names()
            raise ValueError(f"unknown {self.kind} {name!r}{suggest(str(name), names)} Known: {', '.join(names)}")
        return self._entries[name]

    def options(self, name: str, *, supplied: tuple[str, ...] = ()) -> dict[str, inspect.Parameter]:
        """Return the parameters of the entry `name`, as a dict by parameter name, without those in `supplied`."""
        parameters = inspect.signature(self.get(name)).parameters
        return {key: value for key, value in parameters.items() if key not in supplied}

    def check_options(self, name: str, options: dict[str, Any], *, supplied: tuple[str, ...] = ()) -> None:
        """Raise a ValueError if an option is unknown or a required one is missing.

        Args:
            name: The registered name.
            options: The options that a user chose.
            supplied: Parameters that the library passes itself and users cannot set.
        """
        parameters = self.options(name, supplied=supplied)
        for option in options:
            if option not in parameters:
                known = ", ".join(parameters)
                raise ValueError(
                    f"{self.kind} {name!r} has no option {option!r}{suggest(option, parameters)} Options: {known}"
                )
        for option, parameter in parameters.items():
            if parameter.default is parameter.empty and option not in options:
                raise ValueError(f"{self.kind} {name!r} requires {option}: pass {option}=...")

    def create(self, name: str, *, supplied: dict[str, Any] | None = None, **options: Any) -> Any:
        """Check the options, call the entry registered under `name`, and return the result.

        Args:
            name: The registered name.
            supplied: Arguments that the library passes itself, such as labels. Users cannot set them, so error messages
                do not list them.
            options: The options that a user chose.
        """
        supplied = supplied or {}
        self.check_options(name, options, supplied=tuple(supplied))
        return self.get(name)(**supplied, **options)

    def _discover(self) -> None:
        if self._package is None:
            return
        package, self._package = import_module(self._package), None
        for module in pkgutil.iter_modules(package.__path__):
            import_module(f"{package.__name__}.{module.name}")


def _origin(entry: Callable[..., Any]) -> tuple[str, str]:
    return entry.__module__, entry.__qualname__
