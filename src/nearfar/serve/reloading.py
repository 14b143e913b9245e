"""Replace the index of a running server with a new one without refusing or interrupting a request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from nearfar.formatting import clean_text
from nearfar.serve.metrics import RELOADS

WATCH_SECONDS = 2.0
Signature = tuple[int, int, int]


class _Version:
    """An application, the number of its requests that have no response yet, and whether a newer one has replaced it."""

    def __init__(self, app: FastAPI) -> None:
        self.app, self.requests, self.is_replaced = app, 0, False

    def close(self) -> None:
        """Stop the threads of the application."""
        self.app.state.service.close()


class ReloadingApp:
    """ASGI application that opens itself again when a file changes.

    The new version is opened in a thread while the old one handles requests. New requests then go to the new version.
    The old one is closed when its last request has been answered. If the new version cannot be opened, the old one
    stays in use, and the next change of the file starts another attempt.

    Args:
        open_app: A function that opens the application. `app.state.service` must have a method `close`.
        watched: The file to check. It must be replaced atomically, and it need not exist.
        say: A function that is called with a message after each reload.
        seconds: Number of seconds between checks.
    """

    def __init__(
        self,
        open_app: Callable[[], FastAPI],
        watched: Path,
        *,
        say: Callable[[str], object] = print,
        seconds: float = WATCH_SECONDS,
    ) -> None:
        self._open_app, self._watched, self._say, self._seconds = open_app, watched, say, seconds
        # Read the signature first: if the file changes while the application opens, `_watch` notices it and reloads.
        self._signature = _read_signature(watched)
        self._current = _Version(open_app())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
            return
        version = self._current
        version.requests += 1
        try:
            await version.app(scope, receive, send)
        finally:
            version.requests -= 1
            if version.is_replaced and not version.requests:
                await anyio.to_thread.run_sync(version.close)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        watcher = asyncio.create_task(self._watch())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
        self._current.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            signature = await anyio.to_thread.run_sync(_read_signature, self._watched)
            if signature != self._signature:
                self._signature = signature
                await self._reload()

    async def _reload(self) -> None:
        try:
            app = await anyio.to_thread.run_sync(self._open_app)
        except Exception as error:  # whatever is wrong with the new index, the old one must stay
            RELOADS.labels("failed").inc()
            self._say(
                f"the index was not reloaded, the old one is still served: {clean_text(str(error) or repr(error))}"
            )
            return
        old, self._current = self._current, _Version(app)
        old.is_replaced = True
        if not old.requests:
            await anyio.to_thread.run_sync(old.close)
        RELOADS.labels("succeeded").inc()
        self._say("the index was reloaded")


def _read_signature(path: Path) -> Signature | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
