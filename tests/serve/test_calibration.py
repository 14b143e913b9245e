"""A calibrated run: neighbors have a probability, queries a class or "unknown", and the run page shows the figures."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from nearfar.calibration import CALIBRATION_FILE
from nearfar.cli import main
from nearfar.search.classification import classify
from nearfar.serve.api import create_app
from nearfar.serve.collection import open_collection


@pytest.fixture(scope="module")
def calibrated(run_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run: Path = tmp_path_factory.mktemp("calibrated") / "run"
    shutil.copytree(run_path, run)
    result = CliRunner().invoke(main, ["calibrate", str(run)])
    assert result.exit_code == 0, result.output
    return run


def set_threshold(run: Path, threshold: float) -> None:
    tree = json.loads((run / CALIBRATION_FILE).read_text())
    tree["open_set"]["threshold"] = threshold
    (run / CALIBRATION_FILE).write_text(json.dumps(tree))


def test_neighbors_have_probabilities(calibrated: Path) -> None:
    collection = open_collection(calibrated, say=lambda _: None)
    assert collection.calibration is not None
    with TestClient(create_app(collection)) as client:
        found = client.get("/api/samples/70/neighbors?k=5").json()["neighbors"]
        assert len(found) == 5
        for neighbor in found:
            expected = float(collection.calibration.probability(neighbor["distance"]))
            assert neighbor["same"] == pytest.approx(expected)
        limited = client.get("/api/samples/70/neighbors?k=5&label=3").json()
        assert {neighbor["same"] for neighbor in limited["neighbors"]} == {None}
        assert limited["decision"] is None


@pytest.mark.parametrize("k", [1, 24])
def test_the_decision_equals_that_of_classify(calibrated: Path, k: int) -> None:
    """Whatever the number of results that are shown, ten neighbors vote, and the query itself does not."""
    collection = open_collection(calibrated, say=lambda _: None)
    assert collection.calibration is not None
    ids = collection.ids[::7]
    vectors = collection.index.vectors[::7]
    expected = classify(collection.index, vectors, collection.calibration, ids=ids)
    assert len({result.label for result in expected}) > 2
    with TestClient(create_app(collection)) as client:
        for id, result in zip(ids.tolist(), expected, strict=True):
            decision = client.get(f"/api/samples/{id}/neighbors?k={k}").json()["decision"]
            assert decision["label"] == (None if result.label is None else collection.classes.index(result.label))
            assert decision["probability"] == pytest.approx(result.probability, abs=1e-6)
            names = [collection.classes[item["label"]] for item in decision["candidates"]]
            assert names == [item.label for item in result.candidates]
            scores = [item["score"] for item in decision["candidates"]]
            assert scores == pytest.approx([item.score for item in result.candidates], abs=1e-6)


@pytest.mark.parametrize(("threshold", "is_known"), [(0.0, True), (1.01, False)])
def test_a_query_below_the_threshold_is_unknown(
    calibrated: Path, tmp_path: Path, threshold: float, is_known: bool
) -> None:
    run = tmp_path / "run"
    shutil.copytree(calibrated, run)
    set_threshold(run, threshold)
    strokes = [[[10, 10], [200, 15]], [[20, 90], [25, 10]]]
    with TestClient(create_app(open_collection(run, say=lambda _: None))) as client:
        response = client.post("/api/search?k=3", json={"strokes": strokes}).json()
        decision = response["decision"]
        assert (decision["label"] is not None) == is_known
        assert decision["label"] in (None, decision["candidates"][0]["label"])
        assert len(response["neighbors"]) == 3


def test_the_run_page_has_the_figures(calibrated: Path) -> None:
    with TestClient(create_app(open_collection(calibrated, say=lambda _: None))) as client:
        summary = client.get("/api/run").json()["calibration"]
        facts = dict(summary["facts"])
        assert "points" in facts["probability of a neighbor, calibration error"]
        assert " to " in facts["unknown classes, AUROC"]
        assert {len(row) for row in summary["thresholds"]} == {len(summary["header"])}
        assert summary["warning"] == ""
        figures = client.get("/api/run/calibration").text
        assert "Reliability of" in figures
        assert "ROC of same or different" in figures
        assert "Reliability of" not in client.get("/api/run/curves").text


def test_figures_are_drawn_one_at_a_time(calibrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page requests both at once, and two threads that import matplotlib at the same time break it."""
    active: list[str] = []
    together: list[list[str]] = []

    def draw(name: str, result: Any) -> Any:
        active.append(name)
        time.sleep(0.2)
        together.append(list(active))
        active.remove(name)
        return result

    monkeypatch.setattr("nearfar.serve.service.draw_curves", lambda _: draw("curves", ("", "")))
    monkeypatch.setattr("nearfar.serve.service.draw_decisions", lambda _: draw("decisions", ""))
    app = create_app(open_collection(calibrated, say=lambda _: None))
    with TestClient(app) as client, ThreadPoolExecutor(2) as pool:
        responses = list(pool.map(client.get, ["/api/run/curves", "/api/run/calibration"]))
    assert [response.status_code for response in responses] == [200, 200]
    assert sorted(together) == [["curves"], ["decisions"]]


def test_a_run_without_calibration_has_no_probabilities(client: TestClient) -> None:
    response = client.get("/api/samples/70/neighbors?k=3").json()
    assert {neighbor["same"] for neighbor in response["neighbors"]} == {None}
    assert response["decision"] is None
    assert client.get("/api/run").json()["calibration"] is None
    assert "<figure" not in client.get("/api/run/calibration").text
