"""`nearfar serve`: the application behind its guard, on a socket."""

from __future__ import annotations

import ipaddress
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from nearfar.errors import NearfarError
from nearfar.serve.api import create_app
from nearfar.serve.collection import open_collection
from nearfar.serve.guard import LOOPBACK, Guard

# connections, and requests under way, at the same time
CONNECTIONS = 512


def is_loopback(host: str) -> bool:
    """
    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_for(host: str, given: str | None) -> str | None:
    """The token that requests need: the one given, a new one where others can reach the host, else none."""
    if given is not None:
        if not re.fullmatch(r"[A-Za-z0-9._~-]{16,}", given):
            raise NearfarError("--token must be at least 16 letters, digits or . _ ~ -")
        return given
    return None if is_loopback(host) else secrets.token_urlsafe(24)


def guarded(app: ASGIApp, *, host: str = "127.0.0.1", token: str | None = None) -> Guard:
    """The application as it may be reached at this host."""
    if not is_loopback(host) and token is None:
        raise ValueError(f"token must be set for {host}, which others can reach")
    return Guard(app, hosts=LOOPBACK | {host} if is_loopback(host) else None, token=token)


def serve(
    run: Path, *, host: str = "127.0.0.1", port: int = 8000, token: str | None = None, split: str = "all"
) -> None:
    """Serve the page of a run until interrupted."""
    token = token_for(host, token)
    app = guarded(create_app(open_collection(run, split=split)), host=host, token=token)
    print(f"http://{_shown(host)}:{port}/{'' if token is None else f'?token={token}'}   (Ctrl-C ends it)", flush=True)
    if token is not None and not is_loopback(host):
        print("The connection is not encrypted: on a network that you do not trust put a proxy with TLS before it.")
    _server(app, host, port).run()


@contextmanager
def in_background(app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """The application on a free port, in a thread, for as long as the block takes; gives its address."""
    server = _server(app, host, port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise NearfarError(f"{host}:{port}: the server did not start: is the port taken?")
        time.sleep(0.01)
    taken = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://{_shown(host)}:{taken}"
    finally:
        server.should_exit = True
        thread.join()


def _server(app: ASGIApp, host: str, port: int) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=5,
        ws="none",
    )
    return uvicorn.Server(config)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
