"""Check the host, token, origin and size of every request, and add security headers to every response."""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 16 << 20
BODY_SECONDS = 20.0
COOKIE = "nearfar"
SAFE = ("GET", "HEAD", "OPTIONS")
HEADERS = {
    # The browser only loads scripts and styles from this server, and never parses strings as HTML (trusted types).
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
# Container health probes need no token, because they reveal nothing about the data (see `nearfar.serve.health`).
PROBES = frozenset({"/health", "/ready"})
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Refusal:
    """A response that is sent instead of the application's response."""

    status: int
    detail: str
    headers: tuple[tuple[str, str], ...] = ()


class Guard:
    """ASGI middleware that refuses requests from pages of other sites, requests without the token, and large bodies.

    A page of another site can link to this server, but it cannot send any other request.

    Args:
        app: The application.
        hosts: Host names that the Host header can have, with any port. This check refuses requests from a page of
            another site whose host name resolves to 127.0.0.1 (DNS rebinding). None allows all names; use a token in
            this case.
        token: The token that every request must have, as `Authorization: Bearer` or in the cookie that `/?token=` sets.
            Only health probes need no token. None if no request needs a token.
        max_body: The largest number of bytes in a body. A body must have a Content-Length.
        body_seconds: The number of seconds within which a body must arrive.
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

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                security = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *security]}
            await send(message)

        refusal = self._check_request(scope, headers)
        if refusal is None and scope["method"] not in SAFE:
            body = await self._read_body(headers, receive)
            if body is None:
                return
            if isinstance(body, Refusal):
                refusal = body
            else:
                receive = _replay(body, receive)
        if refusal is not None:
            await _send_refusal(refusal, send_with_headers)
            return
        await self.app(scope, receive, send_with_headers)

    def _check_request(self, scope: Scope, headers: dict[str, str]) -> Refusal | None:
        host = headers.get("host", "")
        if self.hosts is not None and _host_name(host) not in self.hosts:
            return Refusal(421, "unknown host name: open the address that the server printed")
        is_probe = scope["path"] in PROBES and scope["method"] in ("GET", "HEAD")
        if self.token is not None and not is_probe and (refusal := self._check_token(scope, headers)) is not None:
            return refusal
        if _is_same_site(scope["method"], host, headers):
            return None
        return Refusal(403, "requests from pages of other sites are refused")

    def _check_token(self, scope: Scope, headers: dict[str, str]) -> Refusal | None:
        assert self.token is not None
        parameter = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and scope["method"] == "GET" and _equal(parameter, self.token):
            # SameSite=Lax, because the user may follow a link from another site to this address. With Strict, the
            # browser would not send the cookie after the redirect. Other requests from other sites are refused later.
            cookie = f"{_cookie_name(headers)}={self.token}; Path=/; HttpOnly; SameSite=Lax"
            return Refusal(303, "welcome", (("location", "/"), ("set-cookie", cookie)))
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _equal(value.strip(), self.token):
            return None
        if any(_equal(value, self.token) for value in _read_cookies(headers)):
            return None
        detail = "a token is required: open the full address that the server printed"
        return Refusal(401, detail, (("www-authenticate", "Bearer"),))

    async def _read_body(self, headers: dict[str, str], receive: Receive) -> bytes | Refusal | None:
        """Return the body, a refusal, or None if the client disconnected."""
        length = headers.get("content-length", "0" if "transfer-encoding" not in headers else "")
        if not (length.isascii() and length.isdigit()):
            return Refusal(411, "a body must have a Content-Length")
        if len(length) > 12 or int(length) > self.max_body:
            return Refusal(413, f"the body is too large: the limit is {self.max_body:,} bytes")
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
                    return Refusal(413, f"the body is too large: the limit is {self.max_body:,} bytes")
                if not message.get("more_body", False):
                    return b"".join(parts)
        return Refusal(408, f"the body did not arrive within {self.body_seconds:g} seconds")


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _host_name(host: str) -> str:
    """Return the host name in a Host header, without the port, or "" if the header is invalid."""
    try:
        return (urlsplit(f"//{host}").hostname or "") if "@" not in host and "/" not in host else ""
    except ValueError:
        return ""


def _equal(value: str, token: str) -> bool:
    return hmac.compare_digest(value.encode("utf-8", "replace"), token.encode())


def _read_cookies(headers: dict[str, str]) -> list[str]:
    """Return the values of all cookies of nearfar.

    The header is split by hand, because it can also contain malformed cookies of other programs on this host.
    """
    pairs = [part.strip().partition("=") for part in headers.get("cookie", "").split(";")]
    return [value for name, _, value in pairs if name == COOKIE or name.startswith(f"{COOKIE}-")]


def _cookie_name(headers: dict[str, str]) -> str:
    """Return the name of the cookie. It contains the port, because browsers send a cookie to all ports of a host."""
    port = headers.get("host", "").rpartition("]")[2].partition(":")[2]
    return f"{COOKIE}-{port}" if port.isascii() and port.isdigit() else COOKIE


def _is_same_site(method: str, host: str, headers: dict[str, str]) -> bool:
    """Return whether a request comes from this server's page, from a link to it, or not from a browser.

    Browsers send the headers Sec-Fetch-Site and Origin. A client that sends neither, such as curl, is not a browser.
    """
    site = headers.get("sec-fetch-site", "none")
    if method in SAFE:
        return site in ("none", "same-origin") or headers.get("sec-fetch-mode") == "navigate"
    origin = headers.get("origin")
    return site in ("none", "same-origin") and (origin is None or origin_host(origin) == host)


def origin_host(origin: str) -> str:
    """Return host:port of an origin, or "" if the origin is `null` or invalid.

    >>> origin_host("http://127.0.0.1:8000"), origin_host("null")
    ('127.0.0.1:8000', '')
    """
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive function whose first call returns a body that was already read."""
    is_sent = False

    async def replay() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _send_refusal(refusal: Refusal, send: Send) -> None:
    body = json.dumps({"detail": refusal.detail}).encode()
    fields: list[tuple[str, Any]] = [("content-type", "application/json"), ("content-length", str(len(body)))]
    # Close the connection, so that the unread rest of a body is not parsed as the next request.
    fields += [("connection", "close"), ("cache-control", "no-store"), *refusal.headers]
    headers = [(name.encode(), value.encode()) for name, value in fields]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
