"""Limits on connections: their number, and the time in which the head of a request (all headers) must arrive."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
MAX_CONNECTIONS = 512


class LimitedConnection(H11Protocol):
    """A connection that is closed if the head of a request does not arrive within HEAD_SECONDS.

    At most MAX_CONNECTIONS connections are open. Beyond this limit, a new connection closes the one that has waited
    longest for a head. If all others are waiting for a response, requests on the new connection are refused with 503.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits_for_head(self) -> bool:
        """Whether no request has begun, or the response to the last request is complete."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer, and close another connection if there are too many."""
        super().connection_made(transport)
        self._start_timer()
        if len(self.connections) <= MAX_CONNECTIONS:
            return
        others = [other for other in self.connections if isinstance(other, LimitedConnection) and other is not self]
        waiting = [other for other in others if other.waits_for_head and other._timer is not None]
        if waiting:
            min(waiting, key=_deadline)._close()
        else:
            self.app = service_unavailable

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Stop the timer when a head has arrived."""
        super().handle_events()
        if not self.waits_for_head:
            self._stop_timer()

    def on_response_complete(self) -> None:
        """Start the timer for the next head."""
        self._start_timer()
        super().on_response_complete()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._stop_timer()
        self.connections.discard(self)
        if not self.transport.is_closing():
            if self.conn.our_state is not h11.ERROR:
                self.conn.send_failed()
            self.transport.close()


def _deadline(connection: LimitedConnection) -> float:
    assert connection._timer is not None
    return connection._timer.when()
