"""Frame times of the embedding map with many samples, dragged and zoomed in a browser.

    python -m benchmarks.serve_map --samples 60000 --markdown docs/benchmarks/serve-map.md

The script trains a run on vectors for a few steps and serves it. Headless chromium without a GPU drags the map and
zooms in and out, with one mouse move per frame. The clock of the page gives the time between frames and the part of it
that the page itself works. Needs chromium and chromedriver (make browser) and selenium.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serve import served
from benchmarks.timing import machine
from nearfar.config.merge import resolve
from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.formatting import markdown_table
from nearfar.training import train

DIM, CLASSES, WAIT = 64, 300, 900.0
WINDOW = (1400, 900)
# one event per frame; records the time between frames and the time to paint one
MOVES = """
const done = arguments[arguments.length - 1], kind = arguments[0], count = arguments[1];
const plane = document.querySelector('canvas.plane'), box = plane.getBoundingClientRect();
const at = (type, x, y) => plane.dispatchEvent(new PointerEvent(type, {pointerId: 1, isPrimary: true, button: 0,
  buttons: 1, bubbles: true, clientX: box.left + x, clientY: box.top + y}));
plane.setPointerCapture = () => {};  // there is no such pointer
const gaps = [], work = [];
let last = 0, frame = 0;
const request = window.requestAnimationFrame;
window.requestAnimationFrame = paint => request(now => {
  const start = performance.now();
  paint(now);
  work.push(performance.now() - start);
});
if (kind === 'drag') at('pointerdown', box.width / 2, box.height / 2);
const next = now => {
  if (last) gaps.push(now - last);
  last = now;
  if (frame === count) {
    if (kind === 'drag') at('pointerup', box.width / 2, box.height / 2);
    window.requestAnimationFrame = request;
    return done({gaps, work});
  }
  const turn = 2 * Math.PI * frame / count;
  const [x, y] = [box.width * (0.5 + 0.2 * Math.sin(turn)), box.height * (0.3 + 0.2 * Math.cos(turn))];
  if (kind === 'drag') at('pointermove', x, y);
  else plane.dispatchEvent(new WheelEvent('wheel', {bubbles: true, cancelable: true,
    deltaY: frame < count / 2 ? -60 : 60, clientX: box.left + box.width / 2, clientY: box.top + box.height / 2}));
  frame += 1;
  request(next);
};
request(next);
"""


def trained(folder: Path, samples: int) -> Path:
    """Train a run on noisy groups of vectors."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, samples)
    centers = rng.standard_normal((CLASSES, DIM), dtype=np.float32)
    features = centers[labels] + 1.2 * rng.standard_normal((samples, DIM), dtype=np.float32)
    np.savez(folder / "vectors.npz", features=features, labels=labels)
    settings = [f"data.source={folder / 'vectors.npz'}", "steps=5", f"model.dim={DIM}", "untrained=false"]
    train(resolve("features", width=DIM, recipe="proxy-anchor", settings=settings), folder / "run", say=lambda _: None)
    return folder / "run"


def browser(*flags: str) -> Any:
    """Start headless chromium with these flags and a readable console."""
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        raise NearfarError("selenium is not installed: pip install 'nearfar[dev]'") from None
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        raise NearfarError("there is no chromium with chromedriver: make browser installs them")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


def moved(page: Any, port: int, frames: int) -> dict[str, dict[str, list[float]]]:
    """Measure the milliseconds between frames and of the page's work, for each kind of move."""
    page.get(f"http://127.0.0.1:{port}/#/map")
    end = time.monotonic() + WAIT
    there = "return !!document.querySelector('canvas.plane')?.width && !document.querySelector('.busy')"
    while not page.execute_script(there):
        if time.monotonic() > end:
            raise NearfarError(f"the map did not appear within {WAIT:.0f} s")
        time.sleep(0.5)
    time.sleep(2)
    return {kind: page.execute_async_script(MOVES, kind, frames) for kind in ("drag", "zoom")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--frames", type=int, default=120)
    parser.add_argument("--screenshot", type=Path, help="save a screenshot of the map as PNG")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    page = browser(f"--window-size={WINDOW[0]},{WINDOW[1]}")
    page.set_script_timeout(300)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = trained(Path(folder), options.samples)
            started = time.monotonic()
            with served(run) as port:
                found = moved(page, port, options.frames)
                print(f"served, laid out and moved in {time.monotonic() - started:.0f} s")
                if options.screenshot is not None:
                    page.save_screenshot(str(options.screenshot))
    finally:
        page.quit()
    rows = []
    for kind, times in found.items():
        gaps, work = np.array(times["gaps"]), np.array(times["work"])
        values = (*np.percentile(work, [50, 95]), *np.percentile(gaps, [50, 95]))
        rows.append([kind, str(len(gaps)), *(f"{value:.1f}" for value in values)])
    head = ["move", "frames", "page work, median ms", "95%", "between frames, median ms", "95%"]
    text = markdown_table(head, rows)
    print(text)
    if options.markdown is not None:
        lines = [
            "# Frame times of the embedding map",
            "",
            f"{options.samples:,} samples in a window of {WINDOW[0]} x {WINDOW[1]} pixels, headless chromium without "
            f"a GPU, {machine()}. One mouse move per frame.",
            "",
            text,
            "",
            f"Made by `python -m benchmarks.serve_map --samples {options.samples}`",
        ]
        with atomic(options.markdown) as draft:
            draft.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
