"""The audit page is one well-formed file with embedded images and escaped names."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.builders import folder
from nearfar.audit import audit_data
from nearfar.data import Manifest, load_sketches, open_data

VOID = {"meta", "img", "input", "br"}


class Elements(HTMLParser):
    """Every element with its attributes; an element that is not closed in order is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


def read(path: Path) -> Elements:
    return Elements(path.read_text("utf-8"))


def read_cards(path: Path) -> Elements:
    """Read the cards of suspicious labels, without near duplicates and outliers."""
    text = path.read_text("utf-8")
    return Elements(text[text.index("<main>") : text.index("</main>")] + "</main>")


def picture(uri: str) -> Image.Image:
    head, _, code = uri.partition(",")
    assert re.fullmatch(r"data:image/(png|jpeg);base64", head)
    return Image.open(io.BytesIO(base64.b64decode(code)))


def test_page_of_drawings(tmp_path: Path) -> None:
    data = load_sketches().subset(np.arange(0, 400)).compact()
    assert data.pixels is not None
    found = audit_data(data, data.pixels.reshape(400, -1), tmp_path, shown=5, beside=4)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("audit.csv", "duplicates.csv", "outliers.csv", "index.html")
    }
    page = read(tmp_path / "index.html")
    cards = page.all("article")
    assert [int(card["data-row"]) for card in cards] == found.order()[:5].tolist()
    for card in cards:
        row = int(card["data-row"])
        assert card["data-path"] == data.name(row)
        assert card["data-label"] == data.classes[data.labels[row]]
        assert card["data-suggested"] == data.classes[found.suggested[row]]
    images = read_cards(tmp_path / "index.html").all("img")
    assert len(images) == 5 * (1 + 4 + 4)
    assert all(image["alt"] for image in images)
    assert picture(images[0]["src"]).size == (96, 96)
    text = (tmp_path / "index.html").read_text()
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text
    assert "#bar[hidden] { display: none; }" in text  # without scripts there is no button that does nothing
    kinds = {attributes["value"] for attributes in page.all("input") if attributes["type"] == "radio"}
    assert kinds == {"keep", "relabel", "other", "remove"}
    assert [option["value"] for option in page.all("option")] == list(data.classes)


def test_files_are_embedded_small_and_unreadable_ones_are_named(tmp_path: Path) -> None:
    manifest = open_data(folder(tmp_path / "pictures", {"<b>x": 5, "y & 'z'": 5}))
    (tmp_path / "pictures" / "y & 'z'" / "0.jpg").write_bytes(b"no picture")
    audit_data(manifest, torch.randn(10, 4), tmp_path / "out", shown=10, beside=9)
    page = read(tmp_path / "out" / "index.html")
    images = read_cards(tmp_path / "out" / "index.html").all("img")
    assert len(images) == 10 * (1 + 9 + 4) - (1 + 9 + 4)  # the broken one is a suspect, a neighbor and a classmate
    assert max(picture(images[0]["src"]).size) == 96
    assert not page.all("b")
    assert {card["data-label"] for card in page.all("article")} == {"<b>x", "y & 'z'"}


def test_features_show_names(tmp_path: Path) -> None:
    labels = np.arange(12) % 3
    data = Manifest(labels=labels, classes=("a", "b", "c"), split=["train"] * 12, features=np.eye(3)[labels])
    audit_data(data, data.features, tmp_path, shown=3)
    assert not read(tmp_path / "index.html").all("img")
    cards = read_cards(tmp_path / "index.html")
    blanks = [attributes for attributes in cards.all("span") if attributes.get("class") == "blank"]
    assert len(blanks) == 3 * (1 + 6 + 3)


def test_a_wrong_number_of_embeddings_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one row for each of the 400 samples"):
        audit_data(load_sketches().subset(np.arange(400)), torch.ones(3, 2), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_page_of_clean_labels_shows_ten_samples(tmp_path: Path) -> None:
    labels = np.arange(60) % 3
    data = Manifest(labels=labels, classes=("a", "b", "c"), split=["train"] * 60, features=np.eye(3)[labels])
    found = audit_data(data, data.features, tmp_path)
    assert (found.suggested == found.labels).all()
    assert len(read(tmp_path / "index.html").all("article")) == 10
    assert "0 of the labels are probably wrong" in (tmp_path / "index.html").read_text()
