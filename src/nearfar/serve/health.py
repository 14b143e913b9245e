"""Routes for container health probes: /health and /ready. They need no token and reveal nothing about the data."""

from __future__ import annotations

import asyncio

import numpy as np
from fastapi import HTTPException, Response
from fastapi.routing import APIRouter

from nearfar.serve.service import Service

READY_SECONDS = 5.0


def health_routes(service: Service) -> APIRouter:
    """Return the routes of the probes."""
    router = APIRouter(include_in_schema=False)

    @router.get("/health")
    async def health() -> Response:
        """Respond if the process handles requests. If this probe fails, the process should be restarted."""
        return Response("ok\n", media_type="text/plain")

    @router.get("/ready")
    async def ready() -> Response:
        """Respond if a search finishes in time. If this probe fails, send no requests to this server for a while."""
        query = np.zeros(service.collection.index.dim, np.float32)
        try:
            await asyncio.wait_for(asyncio.wrap_future(service.searcher.submit((query, 1))), READY_SECONDS)
        except TimeoutError:
            raise HTTPException(503, "the search is overloaded") from None
        return Response("ready\n", media_type="text/plain")

    return router
