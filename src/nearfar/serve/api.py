"""The routes of the server: a JSON API under /api, and the page that uses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import anyio
import anyio.to_thread
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRouter
from pydantic import ValidationError

import nearfar
from nearfar.errors import NearfarError
from nearfar.serve.background_task import BackgroundTask
from nearfar.serve.collection import Collection, Size
from nearfar.serve.decision_file import DecisionFile
from nearfar.serve.json_models import (
    ClassSummary,
    Computing,
    DecisionRequest,
    Info,
    MapSummary,
    Problem,
    RunSummary,
    Sample,
    SamplePage,
    SearchRequest,
    SearchResponse,
    SuspectPage,
)
from nearfar.serve.query_input import QueryInput
from nearfar.serve.service import Service, to_utf8

MAX_ITEMS = 200
SEARCH_SECONDS = 30.0
# At most this many images are decoded at the same time, because each can take hundreds of megabytes.
DECODERS = 4
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
T = TypeVar("T")
K = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="Number of neighbors")]
Label = Annotated[int | None, Query(ge=0, description="Only samples of this class")]
Offset = Annotated[int, Query(ge=0, le=1 << 40)]
Limit = Annotated[int, Query(ge=1, le=MAX_ITEMS)]
Responses = dict[int | str, dict[str, Any]]
COMPUTING: Responses = {202: {"model": Computing}}
# Responses of the guard (see `nearfar.serve.guard`) and of the checks of parameters, which every route can have.
REFUSED: Responses = {
    401: {"model": Problem, "description": "The token is missing"},
    403: {"model": Problem, "description": "The request comes from a page of another site"},
    421: {"model": Problem, "description": "The server has another host name"},
    422: {"model": Problem, "description": "A parameter or the body is invalid"},
}
UNKNOWN: Responses = {404: {"model": Problem, "description": "There is no such sample or class"}}
BODY: Responses = {
    400: {"model": Problem, "description": "The body is not text"},
    408: {"model": Problem, "description": "The body did not arrive in time"},
    411: {"model": Problem, "description": "The Content-Length is missing"},
    413: {"model": Problem, "description": "The body is too large"},
}
BUSY: Responses = {503: {"model": Problem, "description": "The search took too long"}}


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
    for router in (_search_routes(service), _map_and_run_routes(service), _audit_routes(service), _page_routes()):
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
        vector = collection.vectors[collection.position_of(id)].numpy()
        nearest = await service.neighbors(vector, k, label, exclude=id)
        return SearchResponse(query=query, neighbors=nearest, milliseconds=1e3 * (time.perf_counter() - start))

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
                nearest = await service.neighbors(vector.numpy(), k, label)
        except TimeoutError:
            raise HTTPException(503, f"the search took longer than {SEARCH_SECONDS:g} seconds: try again") from None
        milliseconds = 1e3 * (time.perf_counter() - start)
        return SearchResponse(query=None, preview=query.preview, neighbors=nearest, milliseconds=milliseconds)

    return router


def _map_and_run_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api")
    layout = service.collection.map

    @router.get("/map", tags=["map"], responses=COMPUTING)
    def map_summary() -> MapSummary:
        """Return a summary of the embedding map; respond with 202 while the map is being computed."""
        return service.map_summary(_result_or_202(layout))

    @router.get(
        "/map/points", tags=["map"], responses={200: {"content": {"application/octet-stream": {}}}, **COMPUTING}
    )
    def map_points() -> Response:
        """Return the points of the map, little-endian: x float32 [N], y float32 [N], id int32 [N], label int32 [N]."""
        return Response(service.map_points(_result_or_202(layout)), media_type="application/octet-stream")

    @router.get("/run", tags=["run"])
    def run_summary() -> RunSummary:
        """Return the scores and settings of the run."""
        return service.run_summary()

    @router.get("/run/curves", tags=["run"], response_class=Response, responses={200: {"content": {"text/html": {}}}})
    def curves() -> Response:
        """Return the training curves that the run's report shows."""
        return Response(service.curves(), media_type="text/html; charset=utf-8")

    return router


def _audit_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api/audit", tags=["audit"])

    @router.get("", responses=COMPUTING)
    def suspects(
        offset: Offset = 0, limit: Limit = 20, state: Literal["all", "open", "decided"] = "all"
    ) -> SuspectPage:
        """List samples whose label may be wrong, most suspicious first; respond with 202 while the audit is running."""
        suspect_list = _result_or_202(service.suspects)
        return suspect_list.page(service.decisions.all(), offset=offset, limit=limit, state=state)

    @router.put("/{id:int}", status_code=204, responses={**UNKNOWN, **BODY})
    def decide(id: int, request: DecisionRequest) -> None:
        """Save the decision to keep, relabel or remove a sample. It is in decisions.csv when the server responds."""
        service.sample(id)
        try:
            service.decisions.decide(id, request.decision, request.label)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    @router.get("/decisions.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
    def decisions() -> Response:
        """Return all decisions, for `nearfar audit RUN --apply decisions.csv --out corrected.csv`."""
        headers = {"content-disposition": 'attachment; filename="decisions.csv"'}
        return Response(service.decisions.content(), media_type="text/csv; charset=utf-8", headers=headers)

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
        raise HTTPException(422, "send either strokes, a vector or a text")
    if request.strokes is not None:
        return collection.queries.read_drawing(request.strokes)
    if request.text is not None:
        return collection.queries.read_text(request.text)
    assert request.vector is not None
    return collection.queries.read_vector(request.vector)


def _result_or_202(task: BackgroundTask[T]) -> T:
    result = task.poll()
    if result is None:
        raise HTTPException(202, "computing")
    return result


def _first_problem(errors: Any) -> str:
    first = errors[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


async def _handle_nearfar_error(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": to_utf8(str(error))}, 422)


async def _handle_invalid_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": to_utf8(_first_problem(error.errors()))}, 422)
