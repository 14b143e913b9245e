"""The routes: a JSON API under /api, and the page that uses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import anyio
import anyio.to_thread
import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRouter
from pydantic import ValidationError
from torch import Tensor

import nearfar
from nearfar.data.layouts.sketches import credit
from nearfar.errors import NearfarError
from nearfar.formatting import metric_title, settings_lines
from nearfar.report.curves import draw_curves
from nearfar.search.exact import Vectors
from nearfar.serve import query as queries
from nearfar.serve.batching import Batcher, embedding_of, nearest_in
from nearfar.serve.collection import Collection, Size
from nearfar.serve.decisions import Ledger
from nearfar.serve.disk_cache import Later
from nearfar.serve.guard import MAX_BODY
from nearfar.serve.json_models import (
    About,
    Asked,
    Choice,
    Class,
    Found,
    Info,
    Neighbor,
    Plane,
    Sample,
    Samples,
    Score,
    Star,
    Suspects,
    Waiting,
)
from nearfar.serve.map_layout import LANDMARKS
from nearfar.serve.suspects import SuspectList

MOST = 200
SEARCH_SECONDS = 30.0
# pictures that are decoded at the same time: each may take hundreds of megabytes
DECODERS = 4
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
T = TypeVar("T")
K = Annotated[int, Query(ge=1, le=MOST, description="How many neighbors")]
Label = Annotated[int | None, Query(ge=0, description="Only samples of this class")]
Offset = Annotated[int, Query(ge=0, le=1 << 40)]
Limit = Annotated[int, Query(ge=1, le=MOST)]
WAIT: dict[int | str, dict[str, Any]] = {202: {"model": Waiting}}


class Service:
    """The answers of the API as plain functions of a collection and its decisions."""

    def __init__(self, collection: Collection, ledger: Ledger) -> None:
        self.collection, self.ledger = collection, ledger
        self.embedder = Batcher(embedding_of(collection.embedder))
        self.searcher = Batcher(nearest_in(collection.index))
        self.suspects = Later(lambda: SuspectList(collection.audit.wait(), collection.ids, self.sample))

    def sample(self, row: int) -> Sample:
        """A sample by its id; 404 where it is not served."""
        if self.collection.place(row) is None:
            raise HTTPException(404, f"there is no sample {row}")
        manifest = self.collection.manifest
        return Sample(
            id=row,
            name=_text(manifest.name(row)),
            label=int(manifest.labels[row]),
            split=str(manifest.split[row]),
        )

    def class_name(self, label: int | None) -> str | None:
        """The name of a class, as the index knows it; 404 where no sample has it."""
        if label is None:
            return None
        if label >= len(self.collection.manifest.classes) or not len(self.collection.rows_of(label)):
            raise HTTPException(404, f"there is no class {label}")
        return self.collection.manifest.classes[label]

    async def neighbors(self, vector: Vectors, k: int, label: int | None, *, own: int | None = None) -> list[Neighbor]:
        """The k nearest samples of a vector [d], without the sample `own`."""
        name, wanted = self.class_name(label), k + (own is not None)
        if name is None:
            distances, ids = await asyncio.wrap_future(self.searcher.submit((vector, wanted)))
        else:
            found = await anyio.to_thread.run_sync(
                partial(self.collection.index.search, label=name), vector[None], wanted
            )
            distances, ids = found[0][0], found[1][0]
        pairs = zip(distances.tolist(), ids.tolist(), strict=True)
        near = [(distance, row) for distance, row in pairs if row >= 0 and row != own][:k]
        return [Neighbor(**self.sample(row).model_dump(), distance=distance) for distance, row in near]

    def close(self) -> None:
        """End the threads."""
        self.embedder.close()
        self.searcher.close()

    @cached_property
    def info(self) -> Info:
        """What is served."""
        whole, config = self.collection, self.collection.run.config
        drawings = whole.queries.drawings
        kinds: list[Literal["picture", "drawing", "vector"]] = ["drawing", "picture"] if drawings else ["picture"]
        return Info(
            title=_text(f"{config.recipe or config.loss['name']} on {Path(config.data.source).name}"),
            samples=len(whole.ids),
            classes=len(np.unique(whole.labels)),
            look=whole.pictures.look,
            takes=["vector"] if whole.queries.kind == "features" else kinds,
            split=whole.split,
            dim=whole.vectors.shape[1],
            width=whole.queries.width,
            version=whole.version,
            most_bytes=MAX_BODY,
            credit=credit(config.data.source),
            nearfar=nearfar.__version__,
        )

    @cached_property
    def classes(self) -> list[Class]:
        """The classes that have samples here, in their order."""
        whole = self.collection
        labels, first, counts = np.unique(whole.labels, return_index=True, return_counts=True)
        train = set(whole.manifest.labels[whole.manifest.rows("train")].tolist())
        return [
            Class(
                label=label,
                name=_text(whole.manifest.classes[label]),
                count=count,
                example=int(whole.ids[at]),
                split="train" if label in train else str(whole.manifest.split[whole.ids[at]]),
            )
            for label, at, count in zip(labels.tolist(), first.tolist(), counts.tolist(), strict=True)
        ]

    def about(self) -> About:
        """Scores, settings and facts of the run."""
        run = self.collection.run
        results = run.results() if run.finished else {}
        names = {"untrained": "before training", "test": run.config.recipe or str(run.config.loss["name"])}
        scores = [Score(name=name, values=results[key]) for key, name in names.items() if key in results]
        plain = {key: value for key, value in results.items() if isinstance(value, str | int | float)}
        return About(
            scores=scores,
            titles={metric: metric_title(metric) for each in scores for metric in each.values},
            settings=[(key, _text(value)) for key, value in settings_lines(run.config.to_dict())],
            facts=[(key.replace("_", " "), _text(str(value))) for key, value in plain.items()],
        )

    def plane(self, laid: dict[str, Tensor]) -> Plane:
        """The map without its points."""
        count = len(laid["places"])
        stars = zip(laid["star_labels"].tolist(), laid["stars"].tolist(), strict=True)
        some = f"From t-SNE of {LANDMARKS:,}, by forces along nearest neighbors"
        return Plane(
            points=count,
            method="t-SNE" if count <= LANDMARKS else some,
            stars=[Star(label=label, x=place[0], y=place[1]) for label, place in stars],
        )

    def points(self, laid: dict[str, Tensor]) -> bytes:
        """Little-endian: x [N] float32, y [N] float32, id [N] int32, label [N] int32."""
        places = laid["places"].numpy().astype("<f4")
        columns = (places[:, 0], places[:, 1], self.collection.ids.astype("<i4"), self.collection.labels.astype("<i4"))
        return b"".join(np.ascontiguousarray(each).tobytes() for each in columns)


def create_app(collection: Collection, ledger: Ledger | None = None) -> FastAPI:
    """The application without its guard (see `nearfar.serve.serving.guarded`)."""
    service = Service(collection, ledger or Ledger(collection.run.path / "decisions.csv", collection.manifest))

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
    )
    app.include_router(_search_routes(service))
    app.include_router(_audit_routes(service))
    app.include_router(_page_routes())
    app.add_exception_handler(NearfarError, _plain)
    app.add_exception_handler(RequestValidationError, _invalid)
    return app


def _search_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["search"])
    collection = service.collection
    decoders = anyio.CapacityLimiter(DECODERS)

    @router.get("/info")
    def info() -> Info:
        """What is served."""
        return service.info

    @router.get("/classes")
    def classes() -> list[Class]:
        """The classes that have samples."""
        return service.classes

    @router.get("/classes/{label}")
    def class_samples(label: int, offset: Offset = 0, limit: Limit = 60) -> Samples:
        """The samples of a class."""
        if label < 0:
            raise HTTPException(404, f"there is no class {label}")
        service.class_name(label)
        rows = collection.rows_of(label)
        part = [service.sample(int(row)) for row in rows[offset : offset + limit]]
        return Samples(total=len(rows), offset=offset, samples=part)

    @router.get("/samples/{row}")
    def sample(row: int) -> Sample:
        """One sample."""
        return service.sample(row)

    @router.get("/samples/{row}/picture", responses={200: {"content": {"image/*": {}}}}, response_class=Response)
    def picture(row: int, size: Size = "medium", v: Annotated[str, Query(max_length=64)] = "") -> Response:
        """Its picture, decoded and encoded anew. With `v` = `version` of /api/info browsers keep it."""
        service.sample(row)
        found = collection.picture(row, size)
        if found is None:
            raise HTTPException(404, f"sample {row} has no picture")
        keep = "private, max-age=31536000, immutable" if v == collection.version else "no-cache"
        return Response(found[0], media_type=found[1], headers={"cache-control": keep})

    @router.get("/samples/{row}/neighbors")
    async def neighbors(row: int, k: K = 24, label: Label = None) -> Found:
        """The nearest other samples."""
        start = time.perf_counter()
        own = service.sample(row)
        place = collection.place(row)
        near = await service.neighbors(collection.vectors[place].numpy(), k, label, own=row)
        return Found(query=own, neighbors=near, milliseconds=1e3 * (time.perf_counter() - start))

    body = {
        "required": True,
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "application/json": {"schema": Asked.model_json_schema()},
        },
    }

    @router.post("/search", openapi_extra={"requestBody": body})
    async def search(request: Request, k: K = 24, label: Label = None) -> Found:
        """The nearest samples of a picture file (the body), or of strokes or a vector (JSON)."""
        start = time.perf_counter()
        service.class_name(label)
        data = await request.body()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            with anyio.fail_after(SEARCH_SECONDS):
                made = await anyio.to_thread.run_sync(_query, collection, kind, data, limiter=decoders)
                vector = await asyncio.wrap_future(service.embedder.submit(made.x))
                near = await service.neighbors(vector.numpy(), k, label)
        except TimeoutError:
            raise HTTPException(503, f"no answer within {SEARCH_SECONDS:g} seconds: try again") from None
        return Found(query=None, seen=made.seen, neighbors=near, milliseconds=1e3 * (time.perf_counter() - start))

    @router.get("/map", responses=WAIT)
    def plane() -> Plane:
        """The embedding map; 202 while it is made."""
        return service.plane(_ready(collection.map))

    @router.get("/map/points", responses={200: {"content": {"application/octet-stream": {}}}, **WAIT})
    def points() -> Response:
        """Its points, little-endian: x float32 [N], y float32 [N], id int32 [N], label int32 [N]."""
        return Response(service.points(_ready(collection.map)), media_type="application/octet-stream")

    @router.get("/run", tags=["run"])
    def about() -> About:
        """Scores and settings of the run."""
        return service.about()

    @router.get("/run/curves", tags=["run"], response_class=Response, responses={200: {"content": {"text/html": {}}}})
    def curves() -> Response:
        """Training curves, as the figures of the run's report."""
        config = collection.run.config
        figures, more = draw_curves({config.recipe or str(config.loss["name"]): collection.run.log()})
        text = f"<!doctype html><title>curves</title>{figures}{more}"
        return Response(text.encode("utf-8", "replace"), media_type="text/html; charset=utf-8")

    return router


def _audit_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api/audit", tags=["audit"])

    @router.get("", responses=WAIT)
    def suspects(offset: Offset = 0, limit: Limit = 20, state: Literal["all", "open", "decided"] = "all") -> Suspects:
        """Samples whose label may be wrong, the most suspicious first; 202 while the audit is made."""
        return _ready(service.suspects).part(service.ledger.all(), offset=offset, limit=limit, state=state)

    @router.put("/{row}", status_code=204)
    def decide(row: int, choice: Choice) -> None:
        """Keep, relabel or remove a sample. decisions.csv has it when this answers."""
        service.sample(row)
        try:
            service.ledger.decide(row, choice.decision, choice.label)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    @router.get("/decisions.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
    def decisions() -> Response:
        """All decisions, for `nearfar audit RUN --apply decisions.csv --out corrected.csv`."""
        headers = {"content-disposition": 'attachment; filename="decisions.csv"'}
        return Response(service.ledger.text(), media_type="text/csv; charset=utf-8", headers=headers)

    return router


def _page_routes() -> APIRouter:
    """The files of the page, read once: there is no way from a name to the disk."""
    router = APIRouter(include_in_schema=False)
    folder = files("nearfar.serve").joinpath("page")
    known = {each.name: each.read_bytes() for each in folder.iterdir() if Path(each.name).suffix in TYPES}
    known["report.css"] = files("nearfar.report").joinpath("style.css").read_bytes()

    def give(name: str) -> Response:
        if name not in known:
            raise HTTPException(404, "there is no such page")
        kind = f"{TYPES[Path(name).suffix]}; charset=utf-8"
        return Response(known[name], media_type=kind, headers={"cache-control": "no-cache"})

    @router.get("/")
    def index() -> Response:
        return give("index.html")

    @router.get("/docs")
    def docs() -> Response:
        return give("docs.html")

    @router.get("/page/{name}")
    def page(name: str) -> Response:
        return give(name)

    return router


def _query(collection: Collection, kind: str, data: bytes) -> queries.Query:
    if kind != "application/json":
        return collection.queries.picture(data)
    try:
        asked = Asked.model_validate_json(data)
    except ValidationError as error:
        raise HTTPException(422, f"the query is not as it should be: {_first(error.errors())}") from None
    if (asked.strokes is None) == (asked.vector is None):
        raise HTTPException(422, "send either strokes or a vector")
    if asked.strokes is not None:
        return collection.queries.drawing(asked.strokes)
    assert asked.vector is not None
    return collection.queries.vector(asked.vector)


def _ready(later: Later[T]) -> T:
    found = later.look()
    if found is None:
        raise HTTPException(202, "computing")
    return found


def _text(name: str) -> str:
    """Names of files may hold bytes that are no text, which JSON cannot."""
    return name.encode("utf-8", "replace").decode()


def _first(errors: Any) -> str:
    first = errors[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


async def _plain(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": _text(str(error))}, 422)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": _text(_first(error.errors()))}, 422)
