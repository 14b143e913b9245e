"""Hostile HTTP requests as raw bytes, and checks of the answers.

The requests contain paths outside the data, invalid ids and numbers, unknown methods, malformed and giant headers,
truncated images, decompression bombs and other types of files as bodies, and labels and decisions that do not exist.
Some requests pretend to come from pages of other sites. The same seed gives the same requests. No request may store a
decision, stop the server, or return a file that is not part of the data.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

Rng = random.Random
UP = ("../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..\\", "..%5c", "%252e%252e%252f", "..%c0%af", ".%00./", "....//")
TARGETS = (
    "etc/passwd",
    "config.yaml",
    "model.safetensors",
    "decisions.csv",
    "canary.txt",
    "serve/vectors-all.safetensors",
)
PLACES = (
    "/",
    "/page/",
    "/api/",
    "/api/samples/",
    "/api/samples/0/image/",
    "/api/classes/",
    "/docs/",
    "/api/audit/",
    "//",
)
NUMBERS = (
    "-1",
    "99999999999999999999",
    "1e9",
    "0x1",
    "nan",
    "",
    " ",
    "1.5",
    "٣",
    "%00",
    "true",
    "-0",
    "+1",
    "null",
    "9" * 400,
)
METHODS = ("POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "CONNECT", "HEAD", "get", "FOO", "A" * 300, "PROPFIND")
ROUTES = (
    "/",
    "/docs",
    "/api/info",
    "/api/classes",
    "/api/map",
    "/api/run",
    "/api/search",
    "/api/audit",
    "/api/samples/0",
)
SITES = ("http://evil.example", "null", "http://127.0.0.1.evil.example", "https://127.0.0.1", "file://", "http://[::1")
HOSTS = ("evil.example", "", "127.0.0.1@evil.example", "[::1", "localhost.evil.example", "a" * 999)
LENGTHS = ("-5", "abc", "1, 2", "99999999999", "0x10", "5\r\nContent-Length: 6")
PATIENCE, SECONDS = 5.0, 60.0


@dataclass
class Outcome:
    """Number of answers by HTTP status (0: closed without an answer), and a description of each wrong answer."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def hostile_requests(count: int, host: str, *, seed: int = 0) -> Iterator[bytes]:
    """Yield `count` requests, alternating between the kinds of requests."""
    rng = random.Random(seed)
    makers: Sequence[Callable[[Rng, str], bytes]] = (
        _path,
        _number,
        _method,
        _header,
        _picture,
        _json,
        _decision,
        _site,
    )
    for i in range(count):
        yield makers[i % len(makers)](rng, host)


async def attack(address: str, requests: Iterator[bytes], secrets: Sequence[bytes], *, clients: int = 16) -> Outcome:
    """Send all requests from concurrent clients and check the answers.

    An answer is wrong if it contains one of `secrets` or has a status of 500 or above. It is also wrong if a connection
    fails or gets no answer in time.
    """
    found, turn = urlsplit(address), asyncio.Lock()
    outcome = Outcome()

    async def client() -> None:
        while True:
            async with turn:
                request = next(requests, None)
            if request is None:
                return
            try:
                answer = await asyncio.wait_for(_send(found.hostname or "", found.port or 80, request), SECONDS)
            except TimeoutError:
                outcome.wrong.append(f"no answer within {SECONDS:g} s to {request[:120]!r}")
                continue
            except OSError as error:
                outcome.wrong.append(f"{error} after {request[:120]!r}")
                continue
            status = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
            outcome.statuses[status] += 1
            if status >= 500:
                outcome.wrong.append(f"status {status} for {request[:200]!r}")
            if any(secret in answer for secret in secrets):
                outcome.wrong.append(f"a secret was disclosed in the answer to {request[:200]!r}")

    await asyncio.gather(*(client() for _ in range(clients)))
    return outcome


async def _send(host: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    answer = b""
    try:
        writer.write(request)
        await writer.drain()
        while True:
            try:
                part = await asyncio.wait_for(reader.read(1 << 16), PATIENCE)
            except TimeoutError:
                # the server waits for a body that is longer than the one that was sent, so end the request
                writer.write_eof()
                part = await reader.read(1 << 16)
            if not part:
                return answer
            answer += part
    except ConnectionError:
        return answer  # the server may close the connection if a request is not valid HTTP
    finally:
        writer.close()


def _request(method: str, path: str, host: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, "Connection: close"]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


def _path(rng: Rng, host: str) -> bytes:
    climb = rng.choice(UP) * rng.randint(1, 9)
    path = (
        rng.choice(PLACES) + climb + rng.choice(TARGETS) + rng.choice(("", "", "/image", "?size=large", "%00.png", "/"))
    )
    return _request("GET", rng.choice(("", f"http://{host}")) + path, host)


def _number(rng: Rng, host: str) -> bytes:
    odd = rng.choice(NUMBERS)
    path = rng.choice(
        (
            f"/api/samples/{odd}",
            f"/api/samples/{odd}/image",
            f"/api/samples/0/image?size={odd}",
            f"/api/samples/0/neighbors?k={odd}",
            f"/api/samples/0/neighbors?label={odd}",
            f"/api/samples/{odd}/neighbors",
            f"/api/classes/{odd}?offset={rng.choice(NUMBERS)}",
            f"/api/classes/0?offset={odd}&limit={rng.choice(NUMBERS)}",
            f"/api/audit?state={odd}&offset={rng.choice(NUMBERS)}",
        )
    )
    return _request("GET", path.replace(" ", "%20"), host)


def _method(rng: Rng, host: str) -> bytes:
    return _request(rng.choice(METHODS), rng.choice(ROUTES), host, body=rng.randbytes(rng.choice((0, 10))))


def _header(rng: Rng, host: str) -> bytes:
    path = rng.choice(ROUTES)
    start = f"{rng.choice(('GET', 'POST'))} {path} HTTP/1.1\r\n"
    lines = rng.choice(
        (
            f"Host: {rng.choice(HOSTS)}",
            f"Host: {host}\r\nHost: evil.example",
            "X-Nothing: 1",
            f"Host: {host}\r\nX-Long: {'a' * rng.choice((9_000, 70_000, 200_000))}",
            f"Host: {host}\r\nContent-Length: {rng.choice(LENGTHS)}",
            f"Host: {host}\r\nTransfer-Encoding: chunked\r\nContent-Length: 3",
            f"Host: {host}\r\nTransfer-Encoding: {rng.choice(('chunked', 'gzip', 'chunked, chunked', 'x'))}",
            f"Host: {host}\r\nCookie: {'nearfar=' + 'x' * rng.randint(0, 99)}; \x01=\x7f",
            f"Host: {host}\r\nAuthorization: Bearer {'é' * rng.randint(0, 40)}",
            f"Host: {host}\r\nBroken header\r\n: no name",
            f"Host: {host}\r\nRange: bytes=0-{rng.choice(('', '5', '-1'))}\r\nIf-None-Match: *",
        )
    )
    return (start + lines + "\r\nConnection: close\r\n\r\n").encode("utf-8") + rng.choice(
        (b"", b"0\r\n\r\n", b"zz\r\nabc")
    )


def _picture(rng: Rng, host: str) -> bytes:
    body = rng.choice(
        (
            lambda: rng.randbytes(rng.choice((0, 1, 20, 5000))),
            lambda: _bomb(rng.choice((20_000, 65_500))),
            lambda: _real("PNG")[: rng.randint(8, 80)],
            lambda: _real("JPEG")[: rng.randint(20, 300)],
            lambda: b"GIF89a" + rng.randbytes(40),
            lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
            lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
            lambda: b"%PDF-1.7\n" + rng.randbytes(100),
            lambda: _flipped(_real("PNG"), rng),
            lambda: bytes(rng.choice((17 << 20, 1 << 20))),
        )
    )()
    kind = rng.choice(
        ("image/png", "image/jpeg", "text/html", "", "multipart/form-data; boundary=x", "../../x", "image/svg+xml")
    )
    return _request(
        "POST", f"/api/search?k={rng.choice(('1', '5', *NUMBERS[:3]))}", host, f"Content-Type: {kind}", body=body
    )


def _json(rng: Rng, host: str) -> bytes:
    body = rng.choice(
        (
            lambda: b"[" * 20_000,
            lambda: b'{"strokes": [[[1e308, -1e308], [-1e308, 1e308]]]}',
            lambda: b'{"strokes": [[[NaN, 0]]]}',
            lambda: b'{"strokes": [[[1e999, 0]]]}',
            lambda: b'{"strokes": []}',
            lambda: b'{"strokes": [[]]}',
            lambda: json.dumps({"strokes": [[[i, i] for i in range(3000)]]}).encode(),
            lambda: json.dumps({"strokes": [[[rng.random(), rng.random()] for _ in range(50)]] * 300}).encode(),
            lambda: json.dumps({"vector": [0.0] * rng.choice((0, 1, 8, 100_000))}).encode(),
            lambda: json.dumps({"strokes": [[["<b>", {}]]], "__proto__": {}}).encode(),
            lambda: b'{"strokes": "\xff\xfe"}',
            lambda: b"null",
            lambda: rng.randbytes(50),
        )
    )()
    return _request(
        "POST",
        f"/api/search?label={rng.choice(('0', *NUMBERS))}".replace(" ", ""),
        host,
        "Content-Type: application/json",
        body=body,
    )


def _decision(rng: Rng, host: str) -> bytes:
    """Return a request to store an invalid decision: of an unknown sample, or with an unknown decision or label."""
    row = rng.choice(("0", *NUMBERS)).replace(" ", "%20")
    choice: Any = rng.choice(
        (
            {"decision": "relabel", "label": rng.choice((-1, 10**9, 10**30, 1.5, "0", None, [], True))},
            {"decision": rng.choice(("KEEP", "delete", "<script>", 0, None, ["keep"])), "label": None},
            {"decision": "keep", "label": 0},
            {"decision": "keep", "more": 1},
            {},
            [],
        )
    )
    return _request(
        "PUT", f"/api/audit/{row}", host, "Content-Type: application/json", body=json.dumps(choice).encode()
    )


def _site(rng: Rng, host: str) -> bytes:
    """Return a request to store a decision that pretends to come from a page of another site."""
    body = json.dumps({"decision": "remove"}).encode()
    origin = rng.choice(
        (f"Origin: {rng.choice(SITES)}", f"Sec-Fetch-Site: {rng.choice(('cross-site', 'same-site', 'x'))}")
    )
    return _request("PUT", "/api/audit/0", host, origin, "Content-Type: application/json", body=body)


def _bomb(side: int) -> bytes:
    """Return a small PNG file whose header declares an image of side x side pixels."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(*each) for each in ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(9999))), (b"IEND", b""))
    )


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _real(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((40, 40)).save(buffer, kind)
    return buffer.getvalue()


def _flipped(data: bytes, rng: Rng) -> bytes:
    changed = bytearray(data)
    for _ in range(5):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)
