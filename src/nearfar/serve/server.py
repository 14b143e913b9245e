"""The server of `nearfar serve`: the application with access control, run by uvicorn."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from nearfar.directory_lock import lock_directory
from nearfar.errors import NearfarError
from nearfar.serve.application import open_reloading_app
from nearfar.serve.collection import open_collection
from nearfar.serve.connections import LimitedConnection
from nearfar.serve.guard import LOOPBACK, Guard
from nearfar.serve.metrics import Metrics
from nearfar.serve.workers import GRACE_SECONDS, serve_with_workers


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a server that listens on `host`.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def choose_token(host: str, token: str | None) -> str | None:
    """Return the token that every request must have, or None if no token is needed.

    This is `token` if it is given, None if `host` is a loopback address, and a new random token otherwise.
    """
    if token is not None:
        if not re.fullmatch(r"[A-Za-z0-9._~-]{16,}", token):
            raise NearfarError("--token must have at least 16 characters: letters, digits, or . _ ~ -")
        return token
    return None if is_loopback(host) else secrets.token_urlsafe(24)


def guard_app(app: ASGIApp, *, host: str = "127.0.0.1", token: str | None = None) -> Guard:
    """Return the application with access control. A token is required unless `host` is a loopback address."""
    if not is_loopback(host) and token is None:
        raise ValueError(f"token is required for host {host!r}, because other machines can reach it")
    return Guard(app, hosts=LOOPBACK | {host} if is_loopback(host) else None, token=token)


def serve(
    run: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    split: str = "all",
    skip_broken: bool = False,
    workers: int = 1,
    show_token: bool = True,
) -> None:
    """Serve the page of a run until interrupted.

    Args:
        run: A run directory.
        host: The address to listen on.
        port: The port to listen on.
        token: The token that every request must have. By default, a new random token, or none if `host` is a loopback
            address.
        split: The samples to serve: "all", "train", "val" or "test".
        skip_broken: If True, images that cannot be read are left out. Otherwise they raise an error.
        workers: Number of processes. They share the port and the memory-mapped index.
        show_token: Whether the printed address contains `token`. A random token is always printed.
    """
    shown = token is None or show_token
    token = choose_token(host, token)
    work = partial(_work, run, host, token, split, skip_broken, workers)

    def announce() -> None:
        query = f"?token={token}" if token is not None and shown else ""
        print(f"http://{_format_host(host)}:{port}/{query}   (press Ctrl-C to stop)", flush=True)
        if token is not None and not is_loopback(host):
            print("The connection is not encrypted. On an untrusted network, put a TLS proxy in front of the server.")

    with _lock_run(run), bind(host, port) as sockets:
        if workers == 1:
            work(sockets, announce)
            return
        # Fill the cache once, before the processes start and read from it.
        open_collection(run, split=split, skip_broken=skip_broken)
        serve_with_workers(work, sockets, count=workers, on_start=announce)


def _lock_run(run: Path) -> AbstractContextManager[None]:
    """Return a lock that refuses a second server for the same run. Both would write decisions to the same file.

    A run directory without write permission cannot be locked. It needs no lock, because no decision can be saved.
    """
    if not os.access(run, os.W_OK):
        return nullcontext()
    return lock_directory(run, "serve", state="is served", remedy="stop it, or open its address")


def _work(
    run: Path,
    host: str,
    token: str | None,
    split: str,
    skip_broken: bool,
    workers: int,
    sockets: list[socket.socket],
    on_start: Callable[[], object],
) -> None:
    """Serve in this process, which is one of `workers` processes."""
    say = print if workers == 1 else _say_for_process
    app = open_reloading_app(run, split=split, skip_broken=skip_broken, say=say)
    _Server(Metrics(guard_app(app, host=host, token=token)), on_start).run(sockets=sockets)


def _say_for_process(line: str) -> None:
    print(f"process {os.getpid()}: {line}", flush=True)


@contextmanager
def run_in_background(app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Run the application in a thread inside a `with` block, and yield its URL. Port 0 selects a free port."""
    is_started = threading.Event()
    with bind(host, port) as sockets:
        server = _Server(app, is_started.set)
        thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
        thread.start()
        while not is_started.wait(0.1):
            if not thread.is_alive():
                raise NearfarError(f"{host}:{port}: the server did not start")
        try:
            yield f"http://{_format_host(host)}:{sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def bind(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Bind a port on all addresses of a host, such as 127.0.0.1 and ::1 for "localhost", and yield the sockets.

    The sockets do not listen yet, so that clients are refused until the server is ready.

    Raises:
        NearfarError: If the port is in use or needs other permissions, or if the host is not this machine.
    """
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        try:
            for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                candidate = stack.enter_context(socket.socket(family, kind, protocol))
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    candidate.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                number = sockets[0].getsockname()[1] if sockets else port
                candidate.bind((address[0], number, *address[2:]))
                sockets.append(candidate)
        except OSError as error:
            # A name like "localhost" can resolve to several addresses, and this machine may not have all of them.
            if not sockets or error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise NearfarError(_describe_bind_error(host, port, error)) from None
        yield sockets


def _describe_bind_error(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: choose another with --port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} of {host} needs administrator rights: choose another with --port, such as 8000"
    return f"--host {host} is not an address of this machine ({error.strerror}): use 127.0.0.1, or 0.0.0.0 for all"


class _Server(uvicorn.Server):
    """A server that calls a function as soon as it accepts connections."""

    def __init__(self, app: ASGIApp, on_start: Callable[[], object]) -> None:
        config = uvicorn.Config(
            app,
            http=LimitedConnection,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=GRACE_SECONDS,
            ws="none",
        )
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_start()


def _format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
