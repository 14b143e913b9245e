"""Metrics of the server in the text format of Prometheus: requests, their duration, samples and reloads.

If the server has several processes, they share their values through the folder that the environment variable
PROMETHEUS_MULTIPROC_DIR names, so that any process can report the totals. The variable must be set before this module
is imported.
"""

from __future__ import annotations

import os
import time

from fastapi import Response
from fastapi.routing import APIRouter
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
METHODS = ("GET", "HEAD", "POST", "PUT", "OPTIONS")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

REQUESTS = Counter("nearfar_requests", "Responses by route and status.", ("method", "route", "status"))
SECONDS = Histogram("nearfar_request_seconds", "Time until the response was sent.", ("route",), buckets=BUCKETS)
IN_PROGRESS = Gauge("nearfar_requests_in_progress", "Requests that are being processed.", multiprocess_mode="livesum")
SAMPLES = Gauge("nearfar_samples", "Number of samples that are searched.", multiprocess_mode="livemax")
LOADED = Gauge("nearfar_index_loaded_timestamp_seconds", "When the index was loaded.", multiprocess_mode="livemin")
RELOADS = Counter("nearfar_reloads", "Reloads of the index by result.", ("result",))


class Metrics:
    """ASGI middleware that counts and times requests, including those that the guard refuses."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), "none"

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        IN_PROGRESS.inc()
        try:
            await self.app(scope, receive, send_counted)
        finally:
            IN_PROGRESS.dec()
            # Record the pattern of the route, such as /api/samples/{id}. Each distinct path would be a new time series.
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in METHODS else "other"
            REQUESTS.labels(method, route, status).inc()
            SECONDS.labels(route).observe(time.perf_counter() - start)


def record_index(samples: int) -> None:
    """Record that an index with this number of samples has been loaded now."""
    SAMPLES.set(samples)
    LOADED.set_to_current_time()


def metrics_routes() -> APIRouter:
    """Return the route /metrics."""
    router = APIRouter(include_in_schema=False)

    @router.get("/metrics")
    def metrics() -> Response:
        registry = REGISTRY
        if os.environ.get(FOLDER_VARIABLE):
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
