"""Names from the data are text on every page, never markup."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from jinja2 import UndefinedError

from nearfar.audit import audit_data
from nearfar.data import Manifest
from nearfar.report import write_report
from nearfar.report.html import allow_breaks, render

HOSTILE = ('"><script>alert(1)</script>', "'><img src=x onerror=alert(1)>", "{{ 7 * 7 }}{% raw %}", "</title></style>")


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}


def hostile_data() -> Manifest:
    labels = np.arange(24) % 4
    return Manifest(
        labels=labels,
        classes=HOSTILE,
        split=["test"] * 24,
        features=np.eye(4)[labels] + 0.1 * np.arange(24)[:, None] % 0.3,
        paths=tuple(f"{HOSTILE[i % 4]}{i}" for i in range(24)),
        source=HOSTILE[0],
    )


def test_the_report_escapes_names(tmp_path: Path) -> None:
    data = hostile_data()
    log = [{"kind": "step", "step": s, "loss": 1.0 / s} for s in range(1, 4)]
    path = write_report(
        tmp_path / "r.html",
        title=HOSTILE[0],
        lead=HOSTILE[1],
        scores={},
        curves=dict.fromkeys(HOSTILE, log),
        data=data,
        embeddings=torch.from_numpy(data.features),
        settings={HOSTILE[0]: HOSTILE[1]},
        footer=HOSTILE[2],
    )
    tags = Tags(path.read_text())
    assert "script" not in tags.names
    assert "img" not in tags.names
    assert not [name for name in tags.attributes if name.startswith("on")]
    assert tags.names.count("style") == 1
    assert "{{ 7 * 7 }}" in path.read_text()  # values are never templates


def test_the_audit_page_escapes_names(tmp_path: Path) -> None:
    data = hostile_data()
    audit_data(data, data.features, tmp_path)
    tags = Tags((tmp_path / "index.html").read_text())
    assert tags.names.count("script") == 1  # the page's own
    assert "img" not in tags.names
    assert not [name for name in tags.attributes if name.startswith("on")]


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("report/templates/curve.html", title="t")


def test_breaks_are_marked_in_escaped_text() -> None:
    assert str(allow_breaks("<a>_b/c.d")) == "&lt;a&gt;_<wbr>b/<wbr>c.<wbr>d"
