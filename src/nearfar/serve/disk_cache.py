"""What takes long is made once and kept in the run's folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from safetensors import SafetensorError
from torch import Tensor

from nearfar.training.checkpoint import read_tensors, write_tensors

T = TypeVar("T")


def stored(path: Path, key: Mapping[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `make` gives, from the file where that was written for the same key; else it is made, and written.

    The key is plain values: strings, numbers, lists. A damaged file is made again.
    """
    try:
        tensors, known = read_tensors(path)
        if known == dict(key):
            return tensors
    except (OSError, KeyError, ValueError, SafetensorError):
        pass
    tensors = make()
    write_tensors(path, tensors, dict(key))
    return tensors


class Later(Generic[T]):
    """Work that starts, in its own thread, when somebody first asks for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work, self._lock = work, threading.Lock()
        self._thread: threading.Thread | None = None
        self._value: T | None = None
        self._error: Exception | None = None

    def look(self) -> T | None:
        """The result, or None while it is under way; raises what the work raised."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self) -> T:
        """The result, when it is there."""
        self.look()
        assert self._thread is not None
        self._thread.join()
        value = self.look()
        assert value is not None
        return value

    def _run(self) -> None:
        try:
            self._value = self._work()
        except Exception as error:
            self._error = error
