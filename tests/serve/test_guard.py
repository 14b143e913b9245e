"""Access control: Host, token, Origin, size and time of bodies, and the headers of every response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from nearfar.errors import NearfarError
from nearfar.serve.guard import HEADERS, LOOPBACK, Guard
from nearfar.serve.server import choose_token, guard_app

TOKEN = "a-token-of-enough-letters"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive() if scope["method"] not in ("GET", "HEAD") else {"body": b""}
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["method"].encode() + b" " + message["body"]})


def ask(guard: Guard, method: str = "GET", path: str = "/api/info", **options: object) -> httpx.Response:
    async def once() -> httpx.Response:
        transport = httpx.ASGITransport(guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.request(method, path, **options)  # type: ignore[arg-type]

    return asyncio.run(once())


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000"])
def test_loopback_names(host: str) -> None:
    assert ask(Guard(echo), headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "", "127.0.0.1@evil.example", "[::1", "10.0.0.1:8000", "a/127.0.0.1"],
)
def test_other_names_are_refused_on_loopback(host: str) -> None:
    assert ask(Guard(echo), headers={"host": host}).status_code == 421


def test_every_response_has_the_security_headers() -> None:
    for response in (ask(Guard(echo)), ask(Guard(echo), headers={"host": "evil.example"})):
        assert {name: response.headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": f"Bearer {TOKEN}"}, 200),
        ({"authorization": f"bearer  {TOKEN} "}, 200),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": f"Bearer {TOKEN}x"}, 401),
        ({"authorization": "Bearer \xe9".encode("latin-1")}, 401),
        ({"cookie": f"other=1; nearfar={TOKEN}"}, 200),
        ({"cookie": f'a{{b}}="x y\\z; c d=e; nearfar={TOKEN}'}, 200),
        ({"cookie": f"nearfar=stale; nearfar={TOKEN}"}, 200),
        ({"cookie": f"nearfar-8000=stale; nearfar-8001={TOKEN}"}, 200),
        ({"cookie": f"other={TOKEN}"}, 401),
        ({"cookie": "nearfar=wrong"}, 401),
        ({"cookie": "a b=c; nearfar"}, 401),
    ],
)
def test_token(headers: dict[str, str], status: int) -> None:
    assert ask(Guard(echo, hosts=None, token=TOKEN), headers=headers).status_code == status


def test_the_printed_address_sets_a_cookie_once() -> None:
    guard = Guard(echo, hosts=None, token=TOKEN)
    # Lax: a browser sends the cookie after the redirect even if the link is on a page of another site.
    cookie = f"nearfar-8000={TOKEN}; Path=/; HttpOnly; SameSite=Lax"
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    for headers in ({}, linked, {"cookie": "nearfar-8000=stale"}, {"cookie": f"nearfar-8000={TOKEN}"}):
        response = ask(guard, path=f"/?token={TOKEN}", headers=headers)
        assert (response.status_code, response.headers["location"]) == (303, "/")
        assert response.headers["set-cookie"] == cookie
    assert ask(guard, path="/?token=wrong").status_code == 401
    assert ask(guard, path=f"/api/info?token={TOKEN}").status_code == 401
    assert ask(guard, "POST", f"/?token={TOKEN}").status_code == 401
    other = ask(guard, path=f"/?token={TOKEN}", headers={"host": "photos.example"})
    assert other.headers["set-cookie"].startswith(f"nearfar={TOKEN};")


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("PUT", {}, 200),
        ("PUT", {"origin": "http://127.0.0.1:8000"}, 200),
        ("PUT", {"origin": "http://127.0.0.1:8001"}, 403),
        ("PUT", {"origin": "null"}, 403),
        ("POST", {"origin": "http://evil.example"}, 403),
        ("POST", {"origin": "http://[::1"}, 403),
        ("PUT", {"sec-fetch-site": "cross-site"}, 403),
        ("PUT", {"sec-fetch-site": "same-site"}, 403),
        ("PUT", {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8000"}, 200),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ("GET", {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
    ],
)
def test_other_sites(method: str, headers: dict[str, str], status: int) -> None:
    assert ask(Guard(echo), method, headers=headers).status_code == status


def test_body_size_limit() -> None:
    guard = Guard(echo, max_body=10)
    assert ask(guard, "POST", content=b"0123456789").content == b"POST 0123456789"
    assert ask(guard, "POST", content=b"0123456789x").status_code == 413

    async def chunks():  # type: ignore[no-untyped-def]
        yield b"abc"

    assert ask(guard, "POST", content=chunks()).status_code == 411
    for length, status in (("99999999999999999999", 413), ("-1", 411), ("1e3", 411), ("\u0663", 411)):
        headers = {"content-length": length.encode("utf-8")}
        assert ask(guard, "POST", content=b"a", headers=headers).status_code == status


def received(guard: Guard, messages: Callable[[], object]) -> list[dict[str, object]]:
    sent: list[dict[str, object]] = []
    headers = [(b"host", b"localhost"), (b"content-length", b"5")]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}

    async def send(message: object) -> None:
        sent.append(message)  # type: ignore[arg-type]

    asyncio.run(guard(scope, messages, send))  # type: ignore[arg-type]
    return sent


def test_body_timeout() -> None:
    async def never() -> object:
        await asyncio.sleep(30)
        return {}

    assert received(Guard(echo, body_seconds=0.05), never)[0]["status"] == 408


def test_wrong_content_length_and_disconnect() -> None:
    async def more() -> object:
        return {"type": "http.request", "body": b"12345678", "more_body": True}

    async def gone() -> object:
        return {"type": "http.disconnect"}

    assert received(Guard(echo, max_body=20), more)[0]["status"] == 413
    assert received(Guard(echo), gone) == []


def test_public_host_requires_a_token() -> None:
    with pytest.raises(ValueError, match=r"token is required for host .0\.0\.0\.0"):
        guard_app(echo, host="0.0.0.0")
    assert guard_app(echo, host="0.0.0.0", token=TOKEN).hosts is None
    assert guard_app(echo, host="127.0.0.2").hosts == LOOPBACK | {"127.0.0.2"}
    assert choose_token("127.0.0.1", None) is None
    made = choose_token("192.168.1.5", None)
    assert made is not None
    assert len(made) >= 32
    assert made != choose_token("192.168.1.5", None)
    for bad in ("short", "with a space in it", "semicolon;semicolon"):
        with pytest.raises(NearfarError, match="--token must have at least 16"):
            choose_token("127.0.0.1", bad)
