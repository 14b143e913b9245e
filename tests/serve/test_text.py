"""The server of a run on texts: the API, and the text box of the page."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from nearfar.cli.train_command import configure
from nearfar.serve.api import create_app
from nearfar.serve.collection import open_collection
from nearfar.serve.server import guard_app, run_in_background
from nearfar.training import train
from text_cases import save_bert, sentences, write_csv

HOSTILE = "<img src=x onerror=document.title='broken'> 24/7 hammer"
ROWS = [*sentences(8), (HOSTILE, "tool")]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("served")
    save_bert(folder / "bert")
    settings = (f"model.backbone=transformers:{folder / 'bert'}", "epochs=null", "steps=2", "batches.size=12")
    data = str(write_csv(folder / "t.csv", ROWS))
    config, manifest = configure(data, recipe="supcon", file=None, settings=settings)
    run = train(config, folder / "run", manifest=manifest, say=lambda _: None)
    with run_in_background(guard_app(create_app(open_collection(run.path, say=lambda _: None)))) as where:
        yield where


def search(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/api/search", params={"k": 3}, json=body)


def test_a_text_finds_the_nearest_texts(address: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as client:
        info = client.get("/api/info").json()
        assert (info["accepts"], info["display"], info["input_dim"]) == (["text"], "text", 0)
        text = "flute horn violin piano"
        found = search(client, text=text).json()
        assert found["neighbors"][0]["name"] == text
        assert found["neighbors"][0]["distance"] < 1e-5
        long = search(client, text="owl " * 5000)
        assert long.status_code == 200
        texts = [row[0] for row in ROWS]
        with ThreadPoolExecutor(8) as pool:  # texts of different lengths share a batch
            first = list(pool.map(lambda text: search(client, text=text).json()["neighbors"][0]["name"], texts))
        assert first == texts


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": "  "}, "the text is empty"),
        ({"text": 5}, "invalid query: text"),
        ({"text": "x" * 100_001}, "invalid query: text"),
        ({"text": "a", "vector": [1.0]}, "send exactly one of strokes, vector and text"),
        ({"vector": [1.0]}, "this run searches texts, not vectors"),
        ({"strokes": [[[0, 0], [1, 1]]]}, "does not accept drawings as queries"),
    ],
)
def test_other_queries_are_refused(address: str, body: dict[str, Any], message: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as client:
        response = search(client, **body)
        assert response.status_code == 422
        assert message in response.json()["detail"]


def test_an_image_is_refused(address: str) -> None:
    response = httpx.post(
        f"{address}/api/search", content=b"\x89PNG", headers={"content-type": "image/png"}, timeout=60
    )
    assert response.status_code == 422
    assert "searches texts: send a text" in response.json()["detail"]


def test_the_page_has_a_text_box_and_shows_texts_as_cards(chromium: Any, address: str) -> None:
    from serve.test_browser import until

    chromium.get(f"{address}/")
    box = until(lambda: chromium.find_elements("css selector", "textarea"))[0]
    box.send_keys("24/7 hammer\n")
    shown = until(lambda: [each.text for each in chromium.find_elements("css selector", ".card .words")][:24])
    assert "text/24" in chromium.current_url
    until(lambda: "Nearest to your text" in chromium.find_element("css selector", "h1").text)
    shown = [each.text for each in chromium.find_elements("css selector", ".card .words")]
    assert HOSTILE in shown
    assert chromium.title != "broken"
    assert [each for each in chromium.get_log("browser") if each["level"] == "SEVERE"] == []
