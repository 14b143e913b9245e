"""The audit page in Chromium: decisions survive a reload, and any class can be chosen."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.audit import apply_decisions, audit_data
from nearfar.data import Manifest


def until(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("timed out")


def test_decisions_survive_a_reload_and_any_label_can_be_chosen(chromium: Any, tmp_path: Path) -> None:
    classes = ("caf\udce9", "=owl", "cat", "dog")
    features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    paths = tuple(f"{i}\r\udcff.png" for i in range(40))
    data = Manifest(labels=np.arange(40) % 4, classes=classes, split=["train"] * 40, features=features, paths=paths)
    audit_data(data, features, tmp_path / "audit")
    page = (tmp_path / "audit" / "index.html").as_uri()
    chromium.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    # high enough that the bar at the bottom covers nothing that is clicked
    metrics = {"width": 1200, "height": 4000, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    chromium.get(page)
    chromium.execute_script("localStorage.clear()")
    chromium.refresh()

    def find(selector: str) -> Any:
        return chromium.find_elements("css selector", selector)

    articles = find("article")
    rows = [int(article.get_attribute("data-row")) for article in articles]
    articles[0].find_element("css selector", "[value=remove]").click()
    articles[1].find_element("css selector", "[value=keep]").click()
    new = next(name for name in ("'caf\\xe9", "'=owl") if name != articles[2].get_attribute("data-label"))
    articles[2].find_element("css selector", ".new").send_keys(new)
    articles[3].find_element("css selector", ".new").send_keys("no such class")
    assert find("#count")[0].text == "3 decided"
    chromium.refresh()
    assert find("#count")[0].text == "3 decided"
    assert find("article:nth-of-type(3) .new")[0].get_property("value") == new
    find("#save")[0].click()
    table = tmp_path / "decisions.csv"
    until(table.is_file)
    with table.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(int(line["row"]), line["decision"]) for line in lines] == list(
        zip(rows, ("remove", "keep", "relabel"), strict=False)
    )
    corrected = apply_decisions(data, table)
    assert len(corrected) == 39
    changed = corrected.labels[list(corrected.paths or ()).index(paths[rows[2]])]
    assert corrected.classes[changed] == ("caf\udce9" if "caf" in new else "=owl")
    chromium.get("about:blank")
