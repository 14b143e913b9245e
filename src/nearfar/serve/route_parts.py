"""Parts that the routes of the API share: parameters, descriptions of responses, and results that may not be ready."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import HTTPException, Query

from nearfar.serve.background_task import BackgroundTask
from nearfar.serve.json_models import Computing, Problem

MAX_ITEMS = 200
T = TypeVar("T")
K = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="Number of neighbors")]
Label = Annotated[int | None, Query(ge=0, description="Only samples of this class")]
Offset = Annotated[int, Query(ge=0, le=1 << 40)]
Limit = Annotated[int, Query(ge=1, le=MAX_ITEMS)]
Responses = dict[int | str, dict[str, Any]]
COMPUTING: Responses = {202: {"model": Computing}}
# Responses of the guard (see `nearfar.serve.guard`) and of the parameter checks. Every route can return them.
REFUSED: Responses = {
    401: {"model": Problem, "description": "The token is missing or wrong"},
    403: {"model": Problem, "description": "The request comes from a page of another site"},
    421: {"model": Problem, "description": "The Host header does not name this server"},
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


def result_or_202(task: BackgroundTask[T]) -> T:
    """Return the result of a task. Respond with 202 while it is being computed."""
    result = task.poll()
    if result is None:
        raise HTTPException(202, "computing")
    return result
