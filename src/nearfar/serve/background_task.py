"""Work that starts in a separate thread when its result is first requested."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_running: set[threading.Thread] = set()


def is_any_running() -> bool:
    """Return whether any `BackgroundTask` of this process is running."""
    return any(thread.is_alive() for thread in _running)


class BackgroundTask(Generic[T]):
    """Run the function `work` once, in a thread that starts at the first `poll` or `wait`."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work, self._lock = work, threading.Lock()
        self._thread: threading.Thread | None = None
        self._value: T | None = None
        self._error: Exception | None = None

    def poll(self) -> T | None:
        """Return the result, or None while the work is running. If the work raised an exception, raise it again."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                _running.add(self._thread)
                self._thread.start()
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self) -> T:
        """Wait for the result and return it."""
        self.poll()
        assert self._thread is not None
        self._thread.join()
        value = self.poll()
        assert value is not None
        return value

    def _run(self) -> None:
        try:
            self._value = self._work()
        except Exception as error:
            self._error = error
        finally:
            _running.discard(threading.current_thread())
