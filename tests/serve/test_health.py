"""The probes and the metrics: what needs a token, what they say, and that a search that hangs is not ready."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import httpx
import pytest

from nearfar.serve import health
from nearfar.serve.application import create_service_app
from nearfar.serve.collection import Collection
from nearfar.serve.metrics import Metrics
from nearfar.serve.server import guard_app, run_in_background

TOKEN = "a-token-of-enough-letters"
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def guarded(collection: Collection) -> Iterator[httpx.Client]:
    app = Metrics(guard_app(create_service_app(collection), token=TOKEN))
    with run_in_background(app) as where, httpx.Client(base_url=where, timeout=60) as client:
        yield client


def counters(client: httpx.Client) -> dict[str, float]:
    response = client.get("/metrics", headers=AUTHORIZED)
    assert response.headers["content-type"].startswith("text/plain")
    lines = [line.rpartition(" ") for line in response.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_only_the_probes_need_no_token(guarded: httpx.Client) -> None:
    assert (guarded.get("/health").status_code, guarded.get("/health").text) == (200, "ok\n")
    assert (guarded.get("/ready").status_code, guarded.get("/ready").text) == (200, "ready\n")
    for path in ("/metrics", "/api/info", "/", "/health/", "/ready/../api/info", "//health"):
        assert guarded.get(path).status_code == 401, path
    assert guarded.post("/health").status_code == 401
    assert guarded.get("/health", headers={"host": "evil.example"}).status_code == 421
    assert guarded.get("/ready", headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_metrics_count_requests_by_route(guarded: httpx.Client) -> None:
    before = counters(guarded)
    for id in (1, 2, 3):
        guarded.get(f"/api/samples/{id}", headers=AUTHORIZED)
    guarded.get("/api/samples/999999", headers=AUTHORIZED)
    guarded.get("/no/such/page", headers=AUTHORIZED)
    guarded.request("BREW", "/api/info", headers=AUTHORIZED)
    guarded.get("/api/info")
    after = counters(guarded)

    def growth(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    route = 'nearfar_requests_total{method="GET",route="/api/samples/{id}",status="%d"}'
    assert (growth(route % 200), growth(route % 404)) == (3, 1)
    assert growth('nearfar_requests_total{method="GET",route="none",status="401"}') == 1
    assert growth('nearfar_requests_total{method="GET",route="none",status="404"}') == 1
    assert growth('nearfar_request_seconds_count{route="/api/samples/{id}"}') == 4
    assert after["nearfar_samples"] == 120
    assert after["nearfar_requests_in_progress"] == 1  # the request for the metrics itself
    assert not [name for name in after if re.search(r"BREW|999999|such", name)], "names that clients choose"


def test_a_search_that_hangs_is_alive_but_not_ready(
    guarded: httpx.Client, monkeypatch: pytest.MonkeyPatch, collection: Collection
) -> None:
    app = create_service_app(collection)
    gate = threading.Event()
    work = app.state.service.searcher.work
    app.state.service.searcher.work = lambda items: (gate.wait(30), work(items))[1]
    monkeypatch.setattr(health, "READY_SECONDS", 0.2)
    with run_in_background(guard_app(app)) as where, httpx.Client(base_url=where, timeout=60) as client:
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
        gate.set()
        assert client.get("/ready").status_code == 200
