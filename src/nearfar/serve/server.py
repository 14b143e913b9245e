"""The server of `nearfar serve`: the application behind its guard, on a socket."""

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

# The largest number of simultaneous connections and requests.
MAX_CONNECTIONS = 512


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def choose_token(host: str, token: str | None) -> str | None:
    """Return the token that requests need: `token` if given, else a new one unless `host` is a loopback address."""
    if token is not None:
        if not re.fullmatch(r"[A-Za-z0-9._~-]{16,}", token):
            raise NearfarError("--token must have at least 16 characters: letters, digits, or . _ ~ -")
        return token
    return None if is_loopback(host) else secrets.token_urlsafe(24)


def guard_app(app: ASGIApp, *, host: str = "127.0.0.1", token: str | None = None) -> Guard:
    """Return the application with access control for this host."""
    if not is_loopback(host) and token is None:
        raise ValueError(f"token is required for host {host!r}, because other machines can reach it")
    return Guard(app, hosts=LOOPBACK | {host} if is_loopback(host) else None, token=token)


def serve(
    run: Path, *, host: str = "127.0.0.1", port: int = 8000, token: str | None = None, split: str = "all"
) -> None:
    """Serve the page of a run until interrupted.

    Args:
        run: A run directory.
        host: The address to listen on.
        port: The port to listen on.
        token: A token that every request needs; by default a new one, unless `host` is a loopback address.
        split: "all", "train", "val" or "test": the samples to serve.
    """
    token = choose_token(host, token)
    app = guard_app(create_app(open_collection(run, split=split)), host=host, token=token)
    query = "" if token is None else f"?token={token}"
    print(f"http://{_format_host(host)}:{port}/{query}   (press Ctrl-C to stop)", flush=True)
    if token is not None and not is_loopback(host):
        print("The connection is not encrypted. On a network that you do not trust, put a TLS proxy in front of it.")
    _create_server(app, host, port).run()


@contextmanager
def run_in_background(app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Run the application in a thread while the block runs, by default on a free port, and yield its address."""
    server = _create_server(app, host, port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise NearfarError(f"{host}:{port}: the server did not start: is the port in use?")
        time.sleep(0.01)
    actual_port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://{_format_host(host)}:{actual_port}"
    finally:
        server.should_exit = True
        thread.join()


def _create_server(app: ASGIApp, host: str, port: int) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=5,
        ws="none",
    )
    return uvicorn.Server(config)


def _format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
