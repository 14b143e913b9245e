"""What stands before every request: who may ask, from where, how much, and what the browser may do with the answer."""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 16 << 20
BODY_SECONDS = 20.0
COOKIE = "nearfar"
SAFE = ("GET", "HEAD", "OPTIONS")
HEADERS = {
    # scripts and styles only from files of this server; strings never become HTML (trusted types)
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Refusal:
    """An answer instead of the application's."""

    status: int
    detail: str
    headers: tuple[tuple[str, str], ...] = ()


class Guard:
    """ASGI middleware.

    `hosts`: names that the Host header may have, whatever the port; None allows all (then a token should be set). A
    page of another site that points its own name to 127.0.0.1 is refused by it. `token`: must come with every request,
    as `Authorization: Bearer`, or in the cookie that `/?token=` sets. Requests that change something or carry a body
    must not come from another site's page. Bodies need a Content-Length, at most `max_body`, and arrive in time.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: frozenset[str] | None = LOOPBACK,
        token: str | None = None,
        max_body: int = MAX_BODY,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self.app, self.hosts, self.token = app, hosts, token
        self.max_body, self.body_seconds = max_body, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = _headers(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        refusal = self._refused(scope, headers)
        if refusal is None and scope["method"] not in SAFE:
            body = await self._body(headers, receive)
            if body is None:
                return
            if isinstance(body, Refusal):
                refusal = body
            else:
                receive = _replayed(body, receive)
        if refusal is not None:
            await _answer(refusal, guarded)
            return
        await self.app(scope, receive, guarded)

    def _refused(self, scope: Scope, headers: dict[str, str]) -> Refusal | None:
        host = headers.get("host", "")
        if self.hosts is not None and _name(host) not in self.hosts:
            return Refusal(421, "this server answers to its own address only: open the address that it printed")
        if self.token is not None and (refusal := self._stranger(scope, headers)) is not None:
            return refusal
        return (
            None
            if _same_site(scope["method"], host, headers)
            else Refusal(403, "requests of other sites' pages are refused")
        )

    def _stranger(self, scope: Scope, headers: dict[str, str]) -> Refusal | None:
        assert self.token is not None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _equal(given.strip(), self.token):
            return None
        if _equal(_cookie(headers), self.token):
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and scope["method"] == "GET" and _equal(asked, self.token):
            cookie = f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            return Refusal(303, "welcome", (("location", "/"), ("set-cookie", cookie)))
        return Refusal(
            401, "a token is needed: open the whole address that the server printed", (("www-authenticate", "Bearer"),)
        )

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes | Refusal | None:
        """The whole body; None where the client went away."""
        length = headers.get("content-length", "0" if "transfer-encoding" not in headers else "")
        if not (length.isascii() and length.isdigit()):
            return Refusal(411, "a body needs a Content-Length")
        if len(length) > 12 or int(length) > self.max_body:
            return Refusal(413, f"at most {self.max_body:,} bytes are taken")
        parts: list[bytes] = []
        size = 0
        with anyio.move_on_after(self.body_seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > self.max_body:
                    return Refusal(413, f"at most {self.max_body:,} bytes are taken")
                if not message.get("more_body", False):
                    return b"".join(parts)
        return Refusal(408, f"the body did not arrive within {self.body_seconds:g} seconds")


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _name(host: str) -> str:
    """The name in a Host header, without its port; "" for what is no host."""
    try:
        return (urlsplit(f"//{host}").hostname or "") if "@" not in host and "/" not in host else ""
    except ValueError:
        return ""


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _cookie(headers: dict[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _same_site(method: str, host: str, headers: dict[str, str]) -> bool:
    """Browsers say where a request comes from; what says nothing (curl, a script) is no browser.

    Another site's link to the page may be followed; everything else must come from this server's own page.
    """
    site = headers.get("sec-fetch-site", "none")
    if method in SAFE:
        return site in ("none", "same-origin") or headers.get("sec-fetch-mode") == "navigate"
    origin = headers.get("origin")
    return site in ("none", "same-origin") and (origin is None or address_of(origin) == host)


def address_of(origin: str) -> str:
    """host:port of an origin; "" for `null` and what is none.

    >>> address_of("http://127.0.0.1:8000"), address_of("null")
    ('127.0.0.1:8000', '')
    """
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _answer(refusal: Refusal, send: Send) -> None:
    body = json.dumps({"detail": refusal.detail}).encode()
    fields: list[tuple[str, Any]] = [("content-type", "application/json"), ("content-length", str(len(body)))]
    # what was not read of a body must not be taken for the next request
    fields += [("connection", "close"), ("cache-control", "no-store"), *refusal.headers]
    headers = [(name.encode(), value.encode()) for name, value in fields]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
