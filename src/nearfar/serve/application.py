"""The application that `nearfar serve` runs: the API and the page of a run, health probes, metrics and reloading."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fastapi import FastAPI
from starlette.types import ASGIApp

from nearfar.model_kinds import open_model
from nearfar.search.storage import INDEX_FILE
from nearfar.serve.api import create_app
from nearfar.serve.collection import Collection, Say, open_collection
from nearfar.serve.health import health_routes
from nearfar.serve.metrics import metrics_routes, record_index
from nearfar.serve.reloading import WATCH_SECONDS, ReloadingApp


def create_service_app(collection: Collection) -> FastAPI:
    """Create the application of a collection, with the routes /health, /ready and /metrics."""
    app = create_app(collection)
    app.include_router(health_routes(app.state.service))
    app.include_router(metrics_routes())
    record_index(len(collection.ids))
    return app


def open_reloading_app(
    run: Path, *, split: str = "all", skip_broken: bool = False, say: Say = print, seconds: float = WATCH_SECONDS
) -> ASGIApp:
    """Open the application of a run directory. It is opened again when the index of the run changes.

    Args:
        run: A run directory.
        split: The samples to serve.
        skip_broken: Whether to leave out images that cannot be read.
        say: A function that is called with messages.
        seconds: Number of seconds between checks whether the index has changed.
    """
    open_run = partial(open_collection, run, split=split, skip_broken=skip_broken, say=say)
    watched = open_model(run).index_folder / INDEX_FILE
    return ReloadingApp(lambda: create_service_app(open_run()), watched, say=say, seconds=seconds)
