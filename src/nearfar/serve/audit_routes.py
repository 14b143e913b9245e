"""The routes of the audit under /api/audit."""

from __future__ import annotations

from typing import Literal

from fastapi import HTTPException, Response
from fastapi.routing import APIRouter

from nearfar.serve.json_models import DecisionRequest, DuplicatePage, OutlierPage, SuspectPage
from nearfar.serve.route_parts import BODY, COMPUTING, UNKNOWN, Limit, Offset, result_or_202
from nearfar.serve.service import Service


def audit_routes(service: Service) -> APIRouter:
    """Return the routes of suspicious labels, near duplicates, outliers and decisions."""
    router = APIRouter(prefix="/api/audit", tags=["audit"])

    @router.get("", responses=COMPUTING)
    def suspects(
        offset: Offset = 0, limit: Limit = 20, state: Literal["all", "open", "decided"] = "all"
    ) -> SuspectPage:
        """List samples whose label may be wrong, most suspicious first; respond with 202 while the audit is running."""
        suspect_list = result_or_202(service.suspects)
        return suspect_list.page(service.decisions.all(), offset=offset, limit=limit, state=state)

    @router.get("/duplicates", responses=COMPUTING)
    def duplicates(offset: Offset = 0, limit: Limit = 20) -> DuplicatePage:
        """List groups of near duplicates, groups across splits first; respond with 202 while the search is running."""
        return result_or_202(service.neighborhoods).duplicates(service.decisions.all(), offset=offset, limit=limit)

    @router.get("/outliers", responses=COMPUTING)
    def outliers(offset: Offset = 0, limit: Limit = 60) -> OutlierPage:
        """List samples that are far from all others, farthest first; respond with 202 while the search is running."""
        return result_or_202(service.neighborhoods).outliers(service.decisions.all(), offset=offset, limit=limit)

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
