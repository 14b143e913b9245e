"""Ports for servers that tests start in processes of their own."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
