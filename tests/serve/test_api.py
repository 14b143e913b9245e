"""The API on a real socket, for a trained run."""

from __future__ import annotations

import csv
import io
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from data import builders
from nearfar.audit import audit
from nearfar.config.merge import resolve
from nearfar.metrics import evaluate
from nearfar.serve.api import create_app
from nearfar.serve.collection import Collection, open_collection
from nearfar.serve.query_input import MAX_PIXELS
from nearfar.serve.server import guard_app, run_in_background
from nearfar.training import train
from serve.conftest import HOSTILE, get_when_ready
from training_cases import configured


def png(pixels: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_info_and_classes(client: httpx.Client) -> None:
    info = client.get("/api/info").json()
    assert (info["samples"], info["classes"], info["display"], info["dim"]) == (120, 10, "drawings", 8)
    assert info["accepts"] == ["drawing", "image"]
    classes = client.get("/api/classes").json()
    assert [each["count"] for each in classes] == [12] * 10
    assert [each["split"] for each in classes] == ["train"] * 5 + ["test"] * 5
    assert HOSTILE in [each["name"] for each in classes]


def test_samples_of_a_class(client: httpx.Client) -> None:
    part = client.get("/api/classes/3", params={"offset": 10, "limit": 5}).json()
    assert part["total"] == 12
    assert [each["id"] for each in part["samples"]] == [46, 47]
    assert client.get("/api/classes/10").status_code == 404
    assert client.get("/api/classes/-1").status_code == 404


def test_neighbors_are_nearest(client: httpx.Client, collection: Collection) -> None:
    x = torch.nn.functional.normalize(collection.vectors, dim=1).double()
    for row in (0, 77, 119):
        expected = (1 - x @ x[row]).index_fill(0, torch.tensor(row), 9).sort()
        found = client.get(f"/api/samples/{row}/neighbors", params={"k": 7}).json()
        assert [each["id"] for each in found["neighbors"]] == expected.indices[:7].tolist()
        assert [each["distance"] for each in found["neighbors"]] == pytest.approx(
            expected.values[:7].tolist(), abs=1e-6
        )
        assert found["query"]["id"] == row


def test_class_filter(client: httpx.Client) -> None:
    found = client.get("/api/samples/0/neighbors", params={"k": 50, "label": 4}).json()["neighbors"]
    assert {each["label"] for each in found} == {4}
    assert len(found) == 12
    own = client.get("/api/samples/0/neighbors", params={"k": 50, "label": 0}).json()["neighbors"]
    assert len(own) == 11
    assert client.get("/api/samples/0/neighbors", params={"label": 10}).status_code == 404


def test_an_image_of_the_data_finds_itself(client: httpx.Client, collection: Collection) -> None:
    assert collection.manifest.pixels is not None
    for pixels in (collection.manifest.pixels[31], 255 - collection.manifest.pixels[31]):
        found = client.post(
            "/api/search", params={"k": 3}, content=png(pixels), headers={"content-type": "image/png"}
        ).json()
        assert found["neighbors"][0]["id"] == 31
        assert found["neighbors"][0]["distance"] < 1e-5
        assert found["preview"].startswith("data:image/png;base64,")


def test_search_by_strokes(client: httpx.Client, collection: Collection) -> None:
    strokes = [[[10, 10], [200, 15]], [[20, 90], [25, 10]]]
    found = client.post("/api/search", params={"k": 120}, json={"strokes": strokes}).json()["neighbors"]
    query = collection.queries.read_drawing(strokes)
    with torch.no_grad():
        vector = collection.embedder(query.x[None])
    far = 1 - torch.nn.functional.cosine_similarity(vector, collection.vectors)
    assert [each["distance"] for each in found] == pytest.approx(far.sort().values.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "exactly one of strokes, vector and text"),
        ({"strokes": [[[0, 0]]], "vector": [1.0]}, "exactly one of strokes, vector and text"),
        ({"strokes": []}, "at least one point"),
        ({"strokes": [[[0, 0, 0]]]}, "strokes.0.0"),
        ({"strokes": [[[0, "x"]]]}, "strokes.0.0.1"),
        ({"strokes": [[[0, 0]] * 2001]}, "at most 2000"),
        ({"vector": [1.0]}, "images, not vectors"),
        ({"other": 1}, "other"),
    ],
)
def test_invalid_queries(client: httpx.Client, body: dict[str, Any], words: str) -> None:
    response = client.post("/api/search", json=body)
    assert response.status_code == 422
    assert words in response.json()["detail"]


def test_invalid_images(client: httpx.Client) -> None:
    large = io.BytesIO()
    Image.new("1", (6000, MAX_PIXELS // 6000 + 1)).save(large, "PNG")
    for content, words in (
        (b"", "is empty"),
        (b"not an image", "is not a readable image"),
        (builders.jpeg()[:200], "damaged or truncated"),
        (large.getvalue(), "more than the limit"),
    ):
        response = client.post("/api/search", content=content, headers={"content-type": "image/png"})
        assert response.status_code == 422
        assert words in response.json()["detail"]
    assert client.post("/api/search", content=bytes((16 << 20) + 1)).status_code == 413


def test_images_show_the_sample_and_are_cached(client: httpx.Client, collection: Collection) -> None:
    assert collection.manifest.pixels is not None
    response = client.get("/api/samples/7/image", params={"size": "large", "v": collection.version})
    assert response.headers["content-type"] == "image/png"
    assert "immutable" in response.headers["cache-control"]
    shown = np.asarray(Image.open(io.BytesIO(response.content)).resize((28, 28), Image.Resampling.BOX)).astype(int)
    assert np.corrcoef(shown.ravel(), 255 - collection.manifest.pixels[7].ravel())[0, 1] > 0.95
    assert client.get("/api/samples/7/image").headers["cache-control"] == "no-cache"
    assert client.get("/api/samples/120/image").status_code == 404
    assert client.get("/api/samples/0/image", params={"size": "huge"}).status_code == 422


def test_the_map(client: httpx.Client, collection: Collection) -> None:
    plane = get_when_ready(client, "/api/map").json()
    assert plane["points"] == 120
    assert sorted(proxy["label"] for proxy in plane["proxies"]) == [0, 1, 2, 3, 4]
    data = client.get("/api/map/points").content
    x, y = np.frombuffer(data, "<f4", 240).reshape(2, 120)
    ids, labels = np.frombuffer(data, "<i4", 240, offset=960).reshape(2, 120)
    assert max(np.abs(x).max(), np.abs(y).max()) == pytest.approx(1)
    assert ids.tolist() == list(range(120))
    assert labels.tolist() == collection.manifest.labels.tolist()
    assert (collection.run.path / "serve" / "map-all.safetensors").is_file()


def test_scores_settings_and_curves(client: httpx.Client, collection: Collection) -> None:
    about = client.get("/api/run").json()
    test = collection.manifest.rows("test")
    expected = evaluate(collection.vectors[test], collection.labels[test], metrics=["recall@1"])["recall@1"]
    assert about["scores"][-1]["values"]["recall@1"] == pytest.approx(expected)
    assert about["titles"]["map@r"] == "MAP@R"
    assert ["model.dim", "8"] in about["settings"]
    curves = client.get("/api/run/curves")
    assert curves.headers["content-type"].startswith("text/html")
    assert curves.text.count("<figure") >= 2


def test_audit_matches_the_library(client: httpx.Client, collection: Collection) -> None:
    found = get_when_ready(client, "/api/audit?limit=200").json()
    expected = audit(collection.vectors, collection.labels, classes=collection.manifest.classes)
    assert [each["sample"]["id"] for each in found["suspects"]] == expected.order().tolist()
    first, row = found["suspects"][0], int(expected.order()[0])
    assert first["suggested"] == expected.suggested[row]
    assert first["reason"] == expected.reason(row)
    assert [each["id"] for each in first["neighbors"]] == expected.neighbors[row, :10].tolist()
    assert {each["label"] for each in first["classmates"]} == {first["sample"]["label"]}
    assert row not in [each["id"] for each in first["classmates"]]
    assert found["suspected"] == int(
        ((expected.score >= expected.cutoff) & (expected.suggested != expected.labels)).sum()
    )


def test_decisions_are_on_disk_before_the_response(client: httpx.Client, collection: Collection) -> None:
    path = collection.run.path / "decisions.csv"
    rows = [each["sample"]["id"] for each in get_when_ready(client, "/api/audit?limit=3").json()["suspects"]]
    other = (int(collection.manifest.labels[rows[0]]) + 1) % 10
    for row, choice in zip(
        rows, ({"decision": "relabel", "label": other}, {"decision": "keep"}, {"decision": "remove"}), strict=True
    ):
        assert client.put(f"/api/audit/{row}", json=choice).status_code == 204
        written = {int(each["row"]): each for each in csv.DictReader(path.open(encoding="utf-8"))}
        assert written[row]["decision"] == choice["decision"]
    assert written[rows[0]]["suggested"] == collection.manifest.classes[other]
    assert client.get("/api/audit/decisions.csv").content == path.read_bytes()
    found = client.get("/api/audit", params={"limit": 3}).json()
    assert [each["decision"] for each in found["suspects"]] == ["relabel", "keep", "remove"]
    assert found["suspects"][0]["new_label"] == other
    assert found["decided"] == {"relabel": 1, "keep": 1, "remove": 1}
    assert client.get("/api/audit", params={"state": "open"}).json()["total"] == 117
    assert client.get("/api/audit", params={"state": "decided"}).json()["total"] == 3
    with run_in_background(guard_app(create_app(collection))) as again, httpx.Client(base_url=again) as second:
        decided = get_when_ready(second, "/api/audit?state=decided").json()
    assert [each["decision"] for each in decided["suspects"]] == ["relabel", "keep", "remove"]
    for row in rows:
        client.put(f"/api/audit/{row}", json={"decision": ""})
    assert list(csv.DictReader(path.open(encoding="utf-8"))) == []
    for row, choice in (
        (999, {"decision": "keep"}),
        (0, {"decision": "no"}),
        (0, {"decision": "relabel"}),
        (0, {"decision": "relabel", "label": 10}),
    ):
        assert client.put(f"/api/audit/{row}", json=choice).status_code in (404, 422)


def test_page_files_are_complete_and_local(client: httpx.Client) -> None:
    seen, waiting = set(), ["/", "/docs"]
    while waiting:
        path = waiting.pop()
        response = client.get(path)
        assert response.status_code == 200, path
        seen.add(path)
        text = response.text
        assert "http://" not in text.replace("http://www.w3.org/", "")
        assert "https://" not in text
        assert "innerHTML" not in text
        assert "eval(" not in text
        for name in re.findall(r"""["'](?:/page/|\./)([\w.]+)["']""", text):
            if f"/page/{name}" not in seen:
                waiting.append(f"/page/{name}")
    assert {"/page/main.js", "/page/map.js", "/page/page.css", "/page/report.css", "/page/api_docs.js"} <= seen
    assert client.get("/page/nothing.js").status_code == 404


def test_openapi_lists_all_routes(client: httpx.Client) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    assert set(paths["/api/search"]["post"]["requestBody"]["content"]) == {"image/*", "application/json"}
    assert "put" in paths["/api/audit/{id}"]
    assert not [path for path in paths if not path.startswith("/api/")]


def test_concurrent_searches_get_their_own_results(client: httpx.Client, collection: Collection) -> None:
    pixels = collection.manifest.pixels
    assert pixels is not None

    def nearest(row: int) -> int:
        found = client.post("/api/search?k=1", content=png(pixels[row]), headers={"content-type": "image/png"}).json()
        return int(found["neighbors"][0]["id"])

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(nearest, range(120)))
    x = collection.vectors
    assert all(row == each or torch.allclose(x[row], x[each], atol=1e-4) for row, each in enumerate(found))


def test_a_run_on_vectors(vectors: str, tmp_path: Path) -> None:
    run = train(configured("features", vectors, "supcon"), tmp_path / "run", say=lambda _: None)
    served = open_collection(run.path, split="test", say=lambda _: None)
    with run_in_background(guard_app(create_app(served))) as where, httpx.Client(base_url=where) as client:
        info = client.get("/api/info").json()
        assert (info["accepts"], info["display"], info["input_dim"], info["samples"]) == (["vector"], "text", 16, 120)
        row = int(served.manifest.rows("test")[5])
        assert served.manifest.features is not None
        asked = {"vector": served.manifest.features[row].tolist()}
        found = client.post("/api/search?k=2", json=asked).json()["neighbors"]
        assert found[0]["id"] == row
        assert found[0]["distance"] < 1e-5
        assert client.post("/api/search", json={"vector": [1.0]}).status_code == 422
        assert client.post("/api/search", json={"strokes": [[[0, 0]]]}).status_code == 422
        assert client.post("/api/search", content=builders.jpeg()).status_code == 422
        assert client.get(f"/api/samples/{row}/image").status_code == 404
        assert client.get("/api/samples/0").status_code == 404, "a training sample is not served"
        assert get_when_ready(client, "/api/map").json()["proxies"] == []


def test_a_run_on_files_with_a_broken_one(tmp_path: Path) -> None:
    root = builders.folder(tmp_path / "images", {"ant": 6, "bee": 6, "cat": 6, "dog": 6})
    small = ["model.backbone=small", "model.pretrained=false", "model.dim=8", "steps=4", "batches.size=8", "threads=1"]
    settings = [f"data.source={root}", *small, "images.crop=28", "data.workers=0", "data.on_error=skip"]
    builders.write(root / "bee" / "1.jpg", b"broken")
    run = train(resolve("files", recipe="supcon", settings=settings), tmp_path / "run", say=lambda _: None)
    served = open_collection(run.path, say=lambda _: None)
    with run_in_background(guard_app(create_app(served))) as where, httpx.Client(base_url=where) as client:
        info = client.get("/api/info").json()
        assert (info["accepts"], info["display"], info["samples"]) == (["image"], "images", 23)
        assert client.get("/api/samples/7").status_code == 404
        content = (root / "cat" / "3.jpg").read_bytes()
        found = client.post("/api/search?k=1", content=content, headers={"content-type": "image/jpeg"}).json()
        assert found["neighbors"][0]["name"] == "cat/3.jpg"
        assert found["neighbors"][0]["distance"] < 1e-4
        image = client.get(f"/api/samples/{found['neighbors'][0]['id']}/image?size=large")
        assert Image.open(io.BytesIO(image.content)).size == (12 * 23, 10 * 23)
        assert str(tmp_path) not in client.get("/api/openapi.json").text
