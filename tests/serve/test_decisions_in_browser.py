"""The page of a calibrated run with near duplicates in Chromium: decisions, groups, outliers, figures."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner

from nearfar.cli import main
from nearfar.data import open_data, save_manifest
from nearfar.serve.api import create_app
from nearfar.serve.collection import Collection, open_collection
from nearfar.serve.server import guard_app, run_in_background
from nearfar.training import train
from serve.browser_steps import Browser, all_of, one, size, texts, title, until, where
from serve.test_calibration import set_threshold
from training_cases import configured

# Sample 65 of the test split is a copy of sample 3 of the training split, and sample 80 one of sample 79.
COPIES = {65: 3, 80: 79}


@pytest.fixture(scope="module")
def copied_run(sketch_file: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("copies")
    data = open_data(sketch_file)
    assert data.pixels is not None
    pixels = np.array(data.pixels)
    for copy, original in COPIES.items():
        pixels[copy] = pixels[original]
    save_manifest(replace(data, pixels=pixels), folder / "copies.npz")
    run = train(configured("pixels", str(folder / "copies.npz"), "proxy-anchor"), folder / "run", say=lambda _: None)
    result = CliRunner().invoke(main, ["calibrate", str(run.path)])
    assert result.exit_code == 0, result.output
    return run.path


@pytest.fixture(scope="module")
def copied(copied_run: Path) -> Collection:
    return open_collection(copied_run, say=lambda _: None)


@pytest.fixture(scope="module")
def copied_address(copied: Collection) -> Iterator[str]:
    with run_in_background(guard_app(create_app(copied))) as where_:
        copied.audit.wait()
        yield where_


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    size(chromium, 1200, 800)
    chromium.get_log("browser")
    yield chromium
    assert [each for each in chromium.get_log("browser") if each["level"] == "SEVERE"] == []
    chromium.get("about:blank")


def when_ready(address: str, path: str) -> Any:
    def response() -> Any:
        answer = httpx.get(f"{address}{path}").raise_for_status()
        return None if answer.status_code == 202 else answer.json()

    return until(response)


def test_groups_of_the_api_are_the_copies(copied_address: str) -> None:
    page = when_ready(copied_address, "/api/audit/duplicates")
    groups = [sorted(sample["id"] for sample in group["samples"]) for group in page["groups"]]
    assert groups[0] == [3, 65]
    assert [79, 80] in groups
    assert page["groups"][0]["across_splits"]
    assert page["groups"][0]["several_labels"]
    assert page["groups"][0]["distance"] < 1e-5
    assert page["total"] == len(groups)
    assert page["across_splits"] == sum(group["across_splits"] for group in page["groups"])
    assert [sample["split"] for sample in page["groups"][0]["samples"]] == ["train", "test"]
    second = httpx.get(f"{copied_address}/api/audit/duplicates?offset=1&limit=1").json()
    assert second["groups"] == page["groups"][1:2]


def test_a_copy_is_removed_and_restored_on_the_page(browser: Browser, copied_address: str, copied: Collection) -> None:
    def decisions() -> dict[int, str]:
        file = copied.run.path / "decisions.csv"
        if not file.is_file():
            return {}
        with file.open(encoding="utf-8", newline="") as table:
            return {int(row["row"]): row["decision"] for row in csv.DictReader(table)}

    browser.get(f"{copied_address}/#/duplicates")
    title(browser, "Near duplicates")
    first = one(browser, ".group")
    assert texts(browser, ".group:first-of-type .mark") == ["across splits", "different labels"]
    assert texts(browser, ".group:first-of-type .note") == ["train", "test"]
    first.find_elements("css selector", ".remove-one")[1].click()
    until(lambda: decisions() == {65: "remove"})
    until(lambda: len(all_of(browser, ".group:first-of-type .removed")) == 1)
    browser.refresh()
    until(lambda: len(all_of(browser, ".removed")) == 1)
    one(browser, ".removed .remove-one").click()
    until(lambda: 65 not in decisions())
    until(lambda: not all_of(browser, ".removed"))
    one(browser, ".group .card a").click()
    until(lambda: where(browser) == "#/sample/3")


def test_the_lists_of_the_audit_are_linked(browser: Browser, copied_address: str) -> None:
    browser.get(f"{copied_address}/#/audit")
    one(browser, ".suspect[data-id]")
    for name, heading in (("Near duplicates", "Near duplicates"), ("Outliers", "Outliers"), ("Labels", "Labels to")):
        next(link for link in all_of(browser, ".lists a") if link.text == name).click()
        title(browser, heading)
        assert texts(browser, ".tabs a[aria-current]") == ["Audit"]
        assert texts(browser, ".lists a[aria-current]") == [name]


def test_results_show_same_and_the_class(browser: Browser, copied_address: str, copied: Collection) -> None:
    response = httpx.get(f"{copied_address}/api/samples/70/neighbors?k=24").json()
    browser.get(f"{copied_address}/#/sample/70")
    until(lambda: len(all_of(browser, ".cards .note")) == 24)
    nearest = response["neighbors"][0]
    percent = 100 * nearest["same"]
    shown = ">99%" if percent > 99 else "<1%" if percent < 1 else f"{np.floor(percent + 0.5):.0f}%"
    assert texts(browser, ".cards .note")[0] == f"{nearest['distance']:.3f}, same: {shown}"
    label = response["decision"]["label"]
    name = "unknown" if label is None else copied.classes[label]
    assert texts(browser, ".decision strong")[0].startswith(f"Class: {name}")
    browser.get(f"{copied_address}/#/sample/70?label=3")
    until(lambda: len(all_of(browser, ".cards .note")) == 12)
    assert texts(browser, ".decision") == []
    assert all("same" not in note for note in texts(browser, ".cards .note"))


@pytest.mark.parametrize(("threshold", "is_known"), [(0.0, True), (1.01, False)])
def test_unknown_is_shown_below_the_threshold(
    browser: Browser, copied_run: Path, threshold: float, is_known: bool
) -> None:
    set_threshold(copied_run, threshold)
    collection = open_collection(copied_run, say=lambda _: None)
    with run_in_background(guard_app(create_app(collection))) as address:
        browser.get(f"{address}/#/sample/70")
        until(lambda: texts(browser, ".decision strong"))
        assert ("Class: unknown" in texts(browser, ".decision strong")[0]) != is_known
        assert ("Probably none of the 10 classes" in texts(browser, ".decision")[0]) != is_known
        browser.get("about:blank")


def test_the_run_tab_shows_the_calibration(browser: Browser, copied_address: str) -> None:
    browser.get(f"{copied_address}/#/run")
    until(lambda: "Decisions" in texts(browser, "h2"))
    assert any("Reliability of P(same class), calibration error" in text for text in texts(browser, "figcaption"))
    facts = dict(zip(texts(browser, ".settings th"), texts(browser, ".settings td"), strict=True))
    low, high = facts["unknown classes, AUROC"].partition("(")[2].rstrip(")").split(" to ")
    assert 0 <= float(low) <= float(facts["unknown classes, AUROC"].split()[0]) <= float(high) <= 1
    assert texts(browser, ".thresholds thead th")[0] == "FMR"
    assert texts(browser, ".thresholds tbody th")[0] == "0.1"


@pytest.mark.parametrize("is_phone", [False, True])
def test_the_header_does_not_cover_a_title_that_is_scrolled_to(
    browser: Browser, copied_address: str, is_phone: bool
) -> None:
    size(browser, 375 if is_phone else 1200, 500, phone=is_phone)
    browser.get(f"{copied_address}/#/run")
    until(lambda: "Decisions" in texts(browser, "h2"))
    script = """
        const title = [...document.querySelectorAll('h2')].find(each => each.textContent === 'Decisions');
        title.scrollIntoView({behavior: 'instant'});
        return [title.getBoundingClientRect().top, document.querySelector('.bar').getBoundingClientRect().bottom];
    """
    top, header = browser.execute_script(script)
    assert header <= top < header + 40


@pytest.mark.parametrize("view", ["#/duplicates", "#/outliers", "#/sample/70", "#/run"])
def test_phone_layout_has_no_overflow(browser: Browser, copied_address: str, view: str) -> None:
    size(browser, 375, 700, phone=True)
    browser.get(f"{copied_address}/{view}")
    until(lambda: texts(browser, "h1"))
    until(lambda: not all_of(browser, ".busy"))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 375
