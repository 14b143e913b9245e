"""The load test of the server: what it counts, and the table that it writes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from benchmarks.serve import Load, load, page
from tests.harness.hostile import Outcome

NEIGHBORS = b"".join(b'{"distance":0.5},' for _ in range(24))


async def ask_a_small_server(bodies: list[bytes]) -> Load:
    """Measure a server that answers with the bodies in turn."""
    count = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                body = bodies[count % len(bodies)]
                count += 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await load("test", (port, os.getpid()), [b"GET / HTTP/1.1\r\n\r\n"], workers=1, clients=3, seconds=0.3)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_answers_without_all_neighbors_are_errors() -> None:
    good = asyncio.run(ask_a_small_server([NEIGHBORS]))
    assert good.answers > 3
    assert good.errors == 0
    assert good.rate == pytest.approx(good.answers / 0.3, rel=0.5)
    # server and clients are the same process here
    assert good.client_cores > 0
    assert good.server_cores == pytest.approx(good.client_cores, abs=0.3)
    half = asyncio.run(ask_a_small_server([NEIGHBORS, NEIGHBORS[:-20]]))
    assert half.errors == pytest.approx(half.answers / 2, abs=1)


def test_the_table_has_a_row_for_each_load() -> None:
    loads = [Load("a search", workers, 100, 1.4, 9.6, 50.0, 1.25, 0.5, 0) for workers in (1, 2)]
    text = page(loads, {1: 2.0, 32: 0.5}, Outcome(), "About.", "python -m benchmarks.serve RUN")
    assert "| 2 | a search | 100 | 1 | 10 | 50 | 1.25 | 0.50 |" in text
    assert "2.00 ms per image in batches of 1 and 0.50 ms per image in batches of 32" in text
    assert text.count("\n| ") == 3
    assert "hostile requests" not in text, "none were sent"
    sent = Outcome()
    sent.statuses[404] = 3
    assert "The script sent 3 hostile requests" in page(loads, {1: 2.0}, sent, "About.", "command")
