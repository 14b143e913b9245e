"""The routes of the server: a JSON API under /api, and the page that uses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRouter
from pydantic import ValidationError

import nearfar
from nearfar.errors import NearfarError
from nearfar.serve.audit_routes import audit_routes
from nearfar.serve.collection import Collection, Size
from nearfar.serve.decision_file import DecisionFile
from nearfar.serve.json_models import (
    ClassSummary,
    Info,
    MapSummary,
    RunSummary,
    Sample,
    SamplePage,
    SearchRequest,
    SearchResponse,
)
from nearfar.serve.query_input import QueryInput
from nearfar.serve.route_parts import (
    BODY,
    BUSY,
    COMPUTING,
    REFUSED,
    UNKNOWN,
    K,
    Label,
    Limit,
    Offset,
    result_or_202,
)
from nearfar.serve.service import Service, to_utf8

SEARCH_SECONDS = 30.0
# At most this many images are decoded at the same time, because each can take hundreds of megabytes.
DECODERS = 4
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def create_app(collection: Collection, decisions: DecisionFile | None = None) -> FastAPI:
    """Create the application without access control (see `nearfar.serve.server.guard_app`)."""
    service = Service(collection, decisions or DecisionFile(collection.run.path / "decisions.csv", collection.manifest))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="nearfar",
        version=nearfar.__version__,
        description="Search, classes, map and label audit of a run.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
        lifespan=lifespan,
        responses=REFUSED,
    )
    app.state.service = service
    for router in (_search_routes(service), _map_and_run_routes(service), audit_routes(service), _page_routes()):
        app.include_router(router)
    app.add_exception_handler(NearfarError, _handle_nearfar_error)
    app.add_exception_handler(RequestValidationError, _handle_invalid_request)
    return app


def _search_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["search"])
    collection = service.collection
    decoders = anyio.CapacityLimiter(DECODERS)

    @router.get("/info")
    def info() -> Info:
        """Describe the run and the samples that are served."""
        return service.info

    @router.get("/classes")
    def classes() -> list[ClassSummary]:
        """List the classes that have samples."""
        return service.classes

    @router.get("/classes/{label}", responses=UNKNOWN)
    def class_samples(label: int, offset: Offset = 0, limit: Limit = 60) -> SamplePage:
        """List the samples of a class."""
        service.class_name(label)
        ids = collection.ids_of_class(label)
        samples = [service.sample(int(id)) for id in ids[offset : offset + limit]]
        return SamplePage(total=len(ids), offset=offset, samples=samples)

    @router.get("/samples/{id}", responses=UNKNOWN)
    def sample(id: int) -> Sample:
        """Return one sample."""
        return service.sample(id)

    @router.get(
        "/samples/{id}/image", responses={200: {"content": {"image/*": {}}}, **UNKNOWN}, response_class=Response
    )
    def image(id: int, size: Size = "medium", v: Annotated[str, Query(max_length=64)] = "") -> Response:
        """Return the image of a sample as PNG or JPEG. Browsers may cache it if `v` is the `version` of /api/info."""
        service.sample(id)
        encoded = collection.image(id, size)
        if encoded is None:
            raise HTTPException(404, f"sample {id} has no image")
        cache = "private, max-age=31536000, immutable" if v == collection.version else "no-cache"
        return Response(encoded[0], media_type=encoded[1], headers={"cache-control": cache})

    @router.get("/samples/{id}/neighbors", responses=UNKNOWN)
    async def neighbors(id: int, k: K = 24, label: Label = None) -> SearchResponse:
        """Return the nearest neighbors of a sample, without the sample itself."""
        start = time.perf_counter()
        query = service.sample(id)
        vector = collection.index.vector_of(id)
        nearest, decision = await service.search(vector, k, label, exclude=id)
        milliseconds = 1e3 * (time.perf_counter() - start)
        return SearchResponse(query=query, neighbors=nearest, decision=decision, milliseconds=milliseconds)

    body = {
        "required": True,
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "application/json": {"schema": SearchRequest.model_json_schema()},
        },
    }

    @router.post("/search", openapi_extra={"requestBody": body}, responses={**UNKNOWN, **BODY, **BUSY})
    async def search(request: Request, k: K = 24, label: Label = None) -> SearchResponse:
        """Return the samples nearest to the query in the body: an image file, or JSON with strokes, text or vector."""
        start = time.perf_counter()
        service.class_name(label)
        data = await request.body()
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            with anyio.fail_after(SEARCH_SECONDS):
                query = await anyio.to_thread.run_sync(_read_query, collection, media_type, data, limiter=decoders)
                vector = await asyncio.wrap_future(service.embedder.submit(query.x))
                nearest, decision = await service.search(vector.numpy(), k, label)
        except TimeoutError:
            raise HTTPException(503, f"the search took longer than {SEARCH_SECONDS:g} seconds: try again") from None
        return SearchResponse(
            query=None,
            preview=query.preview,
            neighbors=nearest,
            decision=decision,
            milliseconds=1e3 * (time.perf_counter() - start),
        )

    return router


def _map_and_run_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api")
    layout = service.collection.map

    @router.get("/map", tags=["map"], responses=COMPUTING)
    def map_summary() -> MapSummary:
        """Return a summary of the embedding map; respond with 202 while the map is being computed."""
        return service.map_summary(result_or_202(layout))

    @router.get(
        "/map/points", tags=["map"], responses={200: {"content": {"application/octet-stream": {}}}, **COMPUTING}
    )
    def map_points() -> Response:
        """Return the points of the map, little-endian: x float32 [N], y float32 [N], id int32 [N], label int32 [N]."""
        return Response(service.map_points(result_or_202(layout)), media_type="application/octet-stream")

    @router.get("/run", tags=["run"])
    def run_summary() -> RunSummary:
        """Return the scores and settings of the run."""
        return service.run_summary()

    @router.get("/run/curves", tags=["run"], response_class=Response, responses={200: {"content": {"text/html": {}}}})
    def curves() -> Response:
        """Return the training curves that the run's report shows."""
        return Response(service.curves(), media_type="text/html; charset=utf-8")

    @router.get(
        "/run/calibration", tags=["run"], response_class=Response, responses={200: {"content": {"text/html": {}}}}
    )
    def calibration() -> Response:
        """Return the reliability diagram and the ROC curve. The document is empty if the model is not calibrated."""
        return Response(service.calibration_figures(), media_type="text/html; charset=utf-8")

    return router


def _page_routes() -> APIRouter:
    """Return the routes of the page's files. The files are read here, once, so that no request accesses the disk."""
    router = APIRouter(include_in_schema=False)
    folder = files("nearfar.serve").joinpath("page")
    contents = {file.name: file.read_bytes() for file in folder.iterdir() if Path(file.name).suffix in MEDIA_TYPES}
    contents["report.css"] = files("nearfar.report").joinpath("style.css").read_bytes()

    def respond(name: str) -> Response:
        if name not in contents:
            raise HTTPException(404, "there is no such page")
        media_type = f"{MEDIA_TYPES[Path(name).suffix]}; charset=utf-8"
        return Response(contents[name], media_type=media_type, headers={"cache-control": "no-cache"})

    @router.get("/")
    def index() -> Response:
        return respond("index.html")

    @router.get("/docs")
    def docs() -> Response:
        return respond("api_docs.html")

    @router.get("/page/{name}")
    def page(name: str) -> Response:
        return respond(name)

    return router


def _read_query(collection: Collection, media_type: str, data: bytes) -> QueryInput:
    if media_type != "application/json":
        return collection.queries.read_image(data)
    try:
        request = SearchRequest.model_validate_json(data)
    except ValidationError as error:
        raise HTTPException(422, f"invalid query: {_first_problem(error.errors())}") from None
    if [request.strokes, request.vector, request.text].count(None) != 2:
        raise HTTPException(422, "send exactly one of strokes, vector and text")
    if request.strokes is not None:
        return collection.queries.read_drawing(request.strokes)
    if request.text is not None:
        return collection.queries.read_text(request.text)
    assert request.vector is not None
    return collection.queries.read_vector(request.vector)


def _first_problem(errors: Any) -> str:
    first = errors[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


async def _handle_nearfar_error(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": to_utf8(str(error))}, 422)


async def _handle_invalid_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": to_utf8(_first_problem(error.errors()))}, 422)
