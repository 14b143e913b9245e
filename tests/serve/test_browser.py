"""The page in Chromium: search, links, history, map, audit, themes, phone; skipped if Chromium is missing."""

from __future__ import annotations

import csv
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from nearfar.data import open_data, save_manifest
from nearfar.search.command import index_command
from nearfar.serve.api import create_app
from nearfar.serve.collection import Collection, open_collection
from nearfar.serve.server import guard_app, run_in_background
from serve.browser_steps import Browser, all_of, loaded, one, pressed, size, texts, title, until, where
from serve.conftest import HOSTILE


@pytest.fixture
def page(chromium: Browser, address: str, collection: Collection) -> Iterator[Callable[[str], Browser]]:
    """Open an address of the page with empty storage; check that the console has no errors and nothing is remote."""
    collection.map.wait()
    collection.audit.wait()
    size(chromium, 1200, 800)
    chromium.get(f"{address}/docs")
    chromium.execute_script("localStorage.clear(); sessionStorage.clear()")
    chromium.get_log("browser")

    def opened(hash_: str = "") -> Browser:
        chromium.get("about:blank")
        chromium.get(f"{address}/{hash_}")
        return chromium

    yield opened
    problems = [each for each in chromium.get_log("browser") if each["level"] == "SEVERE"]
    assert problems == []
    outside = "return performance.getEntriesByType('resource').map(e => e.name).filter(n => !/^(blob|data):/.test(n))"
    assert [name for name in chromium.execute_script(outside) if not name.startswith(address)] == []


def test_upload_click_through_back_and_reload(
    page: Callable[[str], Browser], collection: Collection, tmp_path: Path
) -> None:
    assert collection.manifest.pixels is not None
    Image.fromarray(255 - collection.manifest.pixels[40]).save(tmp_path / "mine.png")
    browser = page("")
    title(browser, "Draw something")
    one(browser, "input[type=file]").send_keys(str(tmp_path / "mine.png"))
    title(browser, "Nearest to your image")
    first = one(browser, ".cards a")
    assert first.get_attribute("href").endswith("#/sample/40")
    assert texts(browser, ".cards .note")[0] == "0.000"
    until(lambda: loaded(browser, ".preview img"))
    mine = where(browser)
    assert mine.startswith("#/image/")

    first.click()
    title(browser, "Nearest to this circle")
    assert where(browser) == "#/sample/40"
    second = one(browser, ".cards a").get_attribute("href").split("#")[1]
    one(browser, ".cards a").click()
    until(lambda: where(browser) == f"#{second}")
    browser.back()
    title(browser, "Nearest to this circle")
    browser.back()
    title(browser, "Nearest to your image")
    assert where(browser) == mine
    browser.refresh()
    title(browser, "Nearest to your image")
    assert one(browser, ".cards a").get_attribute("href").endswith("#/sample/40")
    browser.forward()


def test_search_by_drawing_has_an_address(page: Callable[[str], Browser]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    browser = page("")
    pad = one(browser, ".pad")
    for start, end in (((-60, -60), (60, 60)), ((60, -60), (-60, 60))):
        moves = ActionChains(browser, duration=20).move_to_element_with_offset(pad, *start).click_and_hold()
        moves.move_to_element_with_offset(pad, 0, 0).move_to_element_with_offset(pad, *end).release().perform()
    title(browser, "Nearest to your drawing")
    until(lambda: where(browser).count("-") == 1)
    until(lambda: len(all_of(browser, ".cards a")) == 24)
    address, notes = where(browser), texts(browser, ".cards .note")
    browser.refresh()
    title(browser, "Nearest to your drawing")
    assert where(browser) == address
    assert texts(browser, ".cards .note") == notes
    ink = (
        "const pad = document.querySelector('.pad'); "
        "return pad.getContext('2d').getImageData(0, 0, pad.width, pad.height).data.some(value => value)"
    )
    assert browser.execute_script(ink)
    one(browser, ".buttons button:nth-child(1)").click()
    until(lambda: "-" not in where(browser))
    one(browser, ".buttons button:nth-child(2)").click()
    title(browser, "Draw something")
    assert not browser.execute_script(ink)
    browser.back()
    title(browser, "Nearest to your drawing")


def test_names_are_text_not_html(page: Callable[[str], Browser]) -> None:
    browser = page("#/classes")
    until(lambda: HOSTILE in texts(browser, ".cards .name"))
    one(browser, ".tools input").send_keys("onerror")
    until(lambda: len(all_of(browser, ".cards a")) == 1)
    one(browser, ".cards a").click()
    title(browser, HOSTILE)
    until(lambda: len(all_of(browser, ".cards a")) == 12)
    one(browser, ".cards a").click()
    title(browser, f"Nearest to this {HOSTILE}")
    assert browser.execute_script("return document.querySelectorAll('img[src=x]').length") == 0
    assert "broken" not in browser.title


def test_class_filter(page: Callable[[str], Browser]) -> None:
    browser = page("#/sample/3")
    title(browser, "Nearest to this apple")
    one(browser, ".only input").send_keys("cat\n")
    until(lambda: set(texts(browser, ".cards .name")) == {"cat"})
    assert where(browser) == "#/sample/3?label=2"


def test_map_hover_shows_the_image_and_a_click_opens_it(page: Callable[[str], Browser], client: httpx.Client) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    data = client.get("/api/map/points").content
    x, y = np.frombuffer(data, "<f4", 240).reshape(2, 120)
    browser = page("#/map")
    plane = one(browser, ".plane")
    until(lambda: plane.get_property("width") > 0)
    width, height = plane.get_property("width"), plane.get_property("height")
    scale = min(0.48 * width / np.abs(x).max(), 0.45 * height / np.abs(y).max())
    lonely = int(np.argmax([np.sort(np.hypot(x - x[i], y - y[i]))[1] for i in range(120)]))
    across, down = (round(float(value * scale)) for value in (x[lonely], y[lonely]))
    ActionChains(browser).move_to_element_with_offset(plane, across, down).perform()
    tip = one(browser, ".tip:not([hidden])")
    assert tip.get_attribute("data-id") == str(lonely)
    until(lambda: loaded(browser, ".tip img"))
    ActionChains(browser).move_to_element_with_offset(plane, across, down).click().perform()
    until(lambda: where(browser) == f"#/sample/{lonely}")


def test_map_zooms_moves_and_highlights(page: Callable[[str], Browser]) -> None:
    browser = page("#/map")
    plane = one(browser, ".plane")
    shot = "return document.querySelector('.plane').toDataURL()"
    until(lambda: plane.get_property("width") > 300)
    seen = [until(lambda: browser.execute_script(shot))]
    for act in ("zoom", "move", "highlight"):
        if act == "zoom":
            one(browser, ".zoom button").click()
        elif act == "move":
            plane.send_keys("\ue014")
        else:
            one(browser, ".maptools input").send_keys("star\n")
            assert one(browser, ".chip").text.startswith("star")
        seen.append(until(lambda: (now := browser.execute_script(shot)) not in seen and now))
    assert len(set(seen)) == 4


def test_audit_by_keyboard_is_saved_and_survives_a_reload(
    page: Callable[[str], Browser], collection: Collection
) -> None:
    def decisions() -> dict[int, dict[str, str]]:
        with (collection.run.path / "decisions.csv").open(encoding="utf-8", newline="") as file:
            return {int(each["row"]): each for each in csv.DictReader(file)}

    def current() -> int:
        return int(one(browser, ".suspect[data-id]").get_attribute("data-id"))

    def decide(key: str) -> int:
        row = current()
        pressed(browser, key)
        until(lambda: current() != row)
        return row

    browser = page("#/audit")
    order = [collection.ids[row] for row in collection.audit.wait().order()[:4]]
    rejected, accepted, removed = (decide(key) for key in "rax")
    assert [rejected, accepted, removed] == order[:3]
    written = decisions()
    assert written[rejected]["decision"] == "keep"
    assert written[accepted]["decision"] == "relabel"
    assert written[accepted]["suggested"] != written[accepted]["label"]
    assert written[removed]["decision"] == "remove"

    relabeled = current()
    pressed(browser, "l")
    until(lambda: browser.switch_to.active_element.get_attribute("aria-label") == "Relabel as")
    name = "umbrella" if collection.manifest.labels[relabeled] != 9 else "apple"
    browser.switch_to.active_element.send_keys(f"{name}\n")
    until(lambda: current() != relabeled)
    assert decisions()[relabeled]["suggested"] == name

    browser.refresh()
    until(lambda: texts(browser, ".progress [data-count]") == ["4 decided"])
    browser.get(browser.current_url.split("#")[0] + "#/audit/1")
    until(lambda: texts(browser, ".state") == ["kept"])
    assert len(all_of(browser, ".mini:not(.open)")) == 4

    pressed(browser, "x")
    until(lambda: decisions()[rejected]["decision"] == "remove")
    pressed(browser, "u")
    until(lambda: decisions()[rejected]["decision"] == "keep")
    for row in decisions():
        httpx.put(f"{browser.current_url.split('#')[0]}api/audit/{row}", json={"decision": ""}).raise_for_status()


def test_undo_waits_for_the_pending_decision(page: Callable[[str], Browser]) -> None:
    browser = page("#/audit/2")
    one(browser, ".suspect[data-id]")
    slow = "const now = window.fetch; window.fetch = async (...a) => {await new Promise(r => setTimeout(r, 500)); "
    browser.execute_script(slow + "window.asked = (window.asked ?? 0) + 1; return now(...a)}")
    pressed(browser, "x")
    pressed(browser, "u")
    until(lambda: "Decision undone" in one(browser, "#toast").text)
    until(lambda: where(browser) == "#/audit/2")
    assert browser.execute_script("return window.asked") >= 2
    assert texts(browser, ".progress [data-count]") == ["0 decided"]


def test_failed_save_shows_an_error(page: Callable[[str], Browser], collection: Collection) -> None:
    browser = page("#/audit/1")
    one(browser, ".suspect[data-id]")
    browser.execute_script("window.fetch = () => Promise.reject(new TypeError('gone'))")
    pressed(browser, "r")
    until(lambda: "Not saved" in one(browser, "#toast").text)
    assert texts(browser, ".progress [data-count]") == ["0 decided"]


def test_dark_and_light(page: Callable[[str], Browser]) -> None:
    browser = page("")

    def ground() -> str:
        return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))

    title(browser, "Draw something")
    light = ground()
    for scheme, expected in (("dark", True), ("light", False)):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        until(lambda expected=expected: (ground() != light) == expected)
    one(browser, "#theme").click()
    until(lambda: ground() != light)
    browser.refresh()
    title(browser, "Draw something")
    assert ground() != light
    one(browser, "#theme").click()
    until(lambda: ground() == light)


@pytest.mark.parametrize("view", ["", "#/sample/8", "#/classes", "#/class/4", "#/map", "#/audit", "#/run", "docs"])
def test_phone_layout_has_no_overflow(page: Callable[[str], Browser], view: str) -> None:
    browser = page("")
    size(browser, 375, 700, phone=True)
    browser = page(view)
    until(lambda: len(texts(browser, "h1, canvas.plane")) > 0)
    until(lambda: not all_of(browser, ".busy"))
    wide = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    assert browser.execute_script(wide)[0] <= 375
    if view != "docs":
        tabs = all_of(browser, ".tabs a")
        assert len(tabs) == 5
        assert all(tab.rect["y"] > 600 and tab.rect["height"] >= 40 for tab in tabs)


def test_keyboard_navigation(page: Callable[[str], Browser]) -> None:
    browser = page("#/sample/8")
    title(browser, "Nearest to this apple")
    target = one(browser, ".cards a").get_attribute("href").split("#")[1]
    for _ in range(40):
        pressed(browser, "\ue004")
        if browser.switch_to.active_element.get_attribute("href") == one(browser, ".cards a").get_attribute("href"):
            break
    pressed(browser, "\ue007")
    until(lambda: where(browser) == f"#{target}")
    browser = page("#/map")
    plane = one(browser, ".plane")
    until(lambda: plane.get_property("width") > 300)
    plane.send_keys("+", "\ue012")
    one(browser, ".tip:not([hidden])")
    plane.send_keys("\ue007")
    until(lambda: where(browser).startswith("#/sample/"))


def test_run_tab(page: Callable[[str], Browser]) -> None:
    browser = page("#/run")
    title(browser, "proxy-anchor on sketches.npz")
    assert "Recall@1" in texts(browser, "th")
    assert len(all_of(browser, ".curves svg path.c0")) >= 2


def test_names_that_are_cut_have_a_title(page: Callable[[str], Browser]) -> None:
    for hash_, selector in (
        ("#/classes", ".card .name"),
        ("#/sample/50", ".card .name"),
        ("#/audit/1", ".strip .name"),
    ):
        browser = page(hash_)
        one(browser, selector)
        script = "return [...document.querySelectorAll(arguments[0])].map(e => [e.title, e.textContent])"
        pairs = browser.execute_script(script, selector)
        assert pairs
        assert all(title == text for title, text in pairs)


def test_arrival_does_not_move_the_focus(page: Callable[[str], Browser]) -> None:
    for hash_ in ("", "#/classes", "#/class/2", "#/map", "#/audit", "#/run"):
        browser = page(hash_)
        until(lambda: texts(browser, "h1, canvas.plane"))  # noqa: B023 - called at once
        assert browser.execute_script("return document.activeElement.tagName") == "BODY"


def test_spinner_of_the_map_ends_with_the_map(
    chromium: Browser, run_path: Path, tmp_path: Path, collection: Collection
) -> None:
    """On a server that has not computed its map yet."""
    shutil.copytree(run_path, tmp_path / "run", ignore=shutil.ignore_patterns("serve", ".*"))
    fresh = open_collection(tmp_path / "run", say=lambda _: None)
    is_allowed = threading.Event()
    compute = fresh.map._work
    fresh.map._work = lambda: is_allowed.wait(60) and compute()
    size(chromium, 1200, 800)
    with run_in_background(guard_app(create_app(fresh))) as where_:
        chromium.get(f"{where_}/#/map")
        until(lambda: texts(chromium, ".busy") and "Computing the map" in texts(chromium, ".busy")[0])
        # leave and return while the map is computed
        chromium.execute_script("location.hash = '#/classes'")
        title(chromium, "Classes")
        assert not all_of(chromium, ".busy")
        chromium.execute_script("location.hash = '#/map?label=2'")
        until(lambda: len(all_of(chromium, ".busy")) == 1)
        chromium.execute_script("location.hash = '#/map/3'")
        until(lambda: len(all_of(chromium, ".busy")) == 1)
        is_allowed.set()
        until(lambda: len(all_of(chromium, ".plane")) == 1)
        assert not all_of(chromium, ".busy")
        assert not all_of(chromium, ".spinner")
    chromium.get("about:blank")


def test_samples_that_are_only_in_the_index_are_shown(
    chromium: Browser, run_path: Path, sketch_file: str, tmp_path: Path
) -> None:
    shutil.copytree(run_path, tmp_path / "run", ignore=shutil.ignore_patterns(".*"))
    added = tmp_path / "added.npz"
    save_manifest(open_data(sketch_file).subset([1, 2, 30]), added)
    for source, add in ((sketch_file, False), (str(added), True)):
        index_command(tmp_path / "run", source, out=None, kind="auto", add=add)
    run = tmp_path / "run"
    with run_in_background(guard_app(create_app(open_collection(run, say=lambda _: None)))) as where_:
        chromium.get(f"{where_}/#/sample/121")
        until(lambda: any("added to the index" in text for text in texts(chromium, "figcaption")))
        drawing = "return [...document.querySelectorAll('figure.one img')].every(i => i.complete && i.naturalWidth)"
        until(lambda: chromium.execute_script(drawing))
        chromium.get(f"{where_}/")
        until(lambda: any("123 samples" in text for text in texts(chromium, "main p")))
        assert texts(chromium, ".not-shown") == []
    chromium.get("about:blank")
    added.unlink()
    said: list[str] = []
    with run_in_background(guard_app(create_app(open_collection(run, say=said.append)))) as where_:
        chromium.get(where_)
        until(lambda: texts(chromium, ".not-shown"))
        assert texts(chromium, ".not-shown") == said[2:]
    assert f"cannot show the images of {added}" in said[2]
    chromium.get("about:blank")
