"""The part of Qdrant's REST interface that nearfar uses, in front of the local mode of qdrant-client.

It tests what a client sends and receives over HTTP: addresses, JSON, the API key and the limit of a request. It is not
a Qdrant server: searches are exact, and there is no index.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request, Response

MAX_BYTES = 8 << 20  # a Qdrant server allows 32 MB by default; less makes the test of this limit faster


def create_rest_app(api_key: str) -> FastAPI:
    """Create a server without collections. Requests need the API key."""
    from pydantic import TypeAdapter
    from qdrant_client import QdrantClient, models

    local = QdrantClient(":memory:")
    app = FastAPI()

    @app.middleware("http")
    async def check(request: Request, respond: Any) -> Response:
        if request.headers.get("api-key") != api_key:
            return Response("Must provide an API key", 401)
        if int(request.headers.get("content-length", 0)) > MAX_BYTES:
            return Response("JSON payload is larger than allowed", 413)
        answer: Response = await respond(request)
        return answer

    def result(value: Any) -> Response:
        value = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        return Response(json.dumps({"result": value, "status": "ok", "time": 0.0}), media_type="application/json")

    async def read(request: Request, kind: Any) -> Any:
        return TypeAdapter(kind).validate_json(await request.body())

    # All routes are coroutines without await after reading, so that one request at a time uses the local mode.
    @app.get("/")
    async def root() -> Response:
        return Response('{"title": "qdrant", "version": "1.20.0"}', media_type="application/json")

    @app.get("/collections/{name}/exists")
    async def exists(name: str) -> Response:
        return result({"exists": local.collection_exists(name)})

    @app.get("/collections/{name}")
    async def info(name: str) -> Response:
        return result(local.get_collection(name))

    @app.put("/collections/{name}")
    async def create(name: str, request: Request) -> Response:
        body = await read(request, models.CreateCollection)
        return result(local.create_collection(name, vectors_config=body.vectors, metadata=body.metadata))

    @app.patch("/collections/{name}")
    async def update(name: str, request: Request) -> Response:
        body = await read(request, models.UpdateCollection)
        return result(local.update_collection(name, metadata=body.metadata))

    @app.delete("/collections/{name}")
    async def drop(name: str) -> Response:
        return result(local.delete_collection(name))

    @app.put("/collections/{name}/index")
    async def index(name: str, request: Request) -> Response:
        await read(request, models.CreateFieldIndex)  # local mode needs no index
        return result({"operation_id": 0, "status": "completed"})

    @app.put("/collections/{name}/points")
    async def upsert(name: str, request: Request) -> Response:
        return result(local.upsert(name, (await read(request, models.PointsBatch)).batch))

    @app.post("/collections/{name}/points/delete")
    async def delete(name: str, request: Request) -> Response:
        return result(local.delete(name, await read(request, models.PointIdsList)))

    @app.post("/collections/{name}/points/scroll")
    async def scroll(name: str, request: Request) -> Response:
        body = await read(request, models.ScrollRequest)
        points, offset = local.scroll(name, limit=body.limit, offset=body.offset, with_payload=body.with_payload)
        return result({"points": [point.model_dump(mode="json") for point in points], "next_page_offset": offset})

    @app.post("/collections/{name}/points")
    async def retrieve(name: str, request: Request) -> Response:
        body = await read(request, models.PointRequest)
        points = local.retrieve(name, body.ids, with_payload=body.with_payload, with_vectors=body.with_vector)
        return result([point.model_dump(mode="json") for point in points])

    @app.post("/collections/{name}/points/query")
    async def query(name: str, request: Request) -> Response:
        body = await read(request, models.QueryRequest)
        assert body.params is not None
        wanted = body.query.nearest if hasattr(body.query, "nearest") else body.query
        return result(local.query_points(name, wanted, limit=body.limit, query_filter=body.filter))

    return app
