"""Many open connections: idle ones and half-sent heads are closed, and others are still answered."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from nearfar.serve import connections
from nearfar.serve.server import run_in_background


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        if scope["path"] == "/slow":
            await asyncio.sleep(2.0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 1.2)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    with run_in_background(echo) as where:
        yield "127.0.0.1", urlsplit(where).port or 0


def ask(address: tuple[str, int], path: str = "/") -> int:
    return httpx.get(f"http://{address[0]}:{address[1]}{path}").status_code


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "])
def test_idle_connections_and_half_sent_heads_keep_nobody_out(address: tuple[str, int], head: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(socket.create_connection(address)).sendall(head)
        assert [ask(address) for _ in range(5)] == [200] * 5


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT"])
def test_head_must_arrive_in_time(address: tuple[str, int], sent: bytes) -> None:
    with socket.create_connection(address, timeout=5) as slow:
        slow.sendall(sent)
        start = time.monotonic()
        while slow.recv(1000):
            with contextlib.suppress(OSError):
                slow.sendall(b"T")  # bytes that trickle in do not extend the time
        assert 0.3 < time.monotonic() - start < 3


def test_requests_that_are_answered_are_not_closed(address: tuple[str, int]) -> None:
    async def many() -> list[int]:
        async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}", timeout=20) as client:
            answers = []
            for _ in range(25):
                answers.append(asyncio.create_task(client.get("/slow")))
                await asyncio.sleep(0.02)
            return [(await answer).status_code for answer in answers]

    assert asyncio.run(many()) == [200] * 20 + [503] * 5
    assert ask(address) == 200
