"""Frame times of the embedding map with many samples while it is dragged and zoomed in a browser.

    python -m benchmarks.serve_map --samples 60000 --markdown docs/benchmarks/serve-map.md

The script trains a run on random vectors for a few steps and serves it. It drags and zooms the map in headless chromium
without a GPU, with one mouse event per frame. It measures, inside the page, the time between frames and the time that
the page takes to draw a frame. The script needs selenium, chromium and chromedriver (`make browser` installs them).
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
# JavaScript that sends one event per frame and records the time between frames and the time to draw each frame
MOVES = """
const done = arguments[arguments.length - 1], kind = arguments[0], count = arguments[1];
const plane = document.querySelector('canvas.plane'), box = plane.getBoundingClientRect();
const at = (type, x, y) => plane.dispatchEvent(new PointerEvent(type, {pointerId: 1, isPrimary: true, button: 0,
  buttons: 1, bubbles: true, clientX: box.left + x, clientY: box.top + y}));
plane.setPointerCapture = () => {};  // the pointer of a synthetic event cannot be captured
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
    """Train a run on random vectors around class centers and return its run directory."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, samples)
    centers = rng.standard_normal((CLASSES, DIM), dtype=np.float32)
    features = centers[labels] + 1.2 * rng.standard_normal((samples, DIM), dtype=np.float32)
    np.savez(folder / "vectors.npz", features=features, labels=labels)
    settings = [f"data.source={folder / 'vectors.npz'}", "steps=5", f"model.dim={DIM}", "untrained=false"]
    train(resolve("features", width=DIM, recipe="proxy-anchor", settings=settings), folder / "run", say=lambda _: None)
    return folder / "run"


def browser(*flags: str) -> Any:
    """Start headless chromium with these flags. Messages of the browser console are logged."""
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        raise NearfarError("selenium is not installed: pip install 'nearfar[dev]'") from None
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        raise NearfarError("chromium or chromedriver was not found: install them with `make browser`")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


def moved(page: Any, port: int, frames: int) -> dict[str, dict[str, list[float]]]:
    """Return the milliseconds between frames ("gaps") and of drawing ("work"), while dragging and while zooming."""
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
    parser.add_argument("--samples", type=int, default=60_000, help="number of samples on the map (default 60000)")
    parser.add_argument("--frames", type=int, default=120, help="number of frames for each kind of move (default 120)")
    parser.add_argument("--screenshot", type=Path, help="save a screenshot of the map to this PNG file")
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    options = parser.parse_args()
    page = browser(f"--window-size={WINDOW[0]},{WINDOW[1]}")
    page.set_script_timeout(300)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = trained(Path(folder), options.samples)
            started = time.monotonic()
            with served(run) as (port, _):
                found = moved(page, port, options.frames)
                print(f"starting the server, computing the map and moving it took {time.monotonic() - started:.0f} s")
                if options.screenshot is not None:
                    page.save_screenshot(str(options.screenshot))
    finally:
        page.quit()
    rows = []
    for kind, times in found.items():
        gaps, work = np.array(times["gaps"]), np.array(times["work"])
        values = (*np.percentile(work, [50, 95]), *np.percentile(gaps, [50, 95]))
        rows.append([kind, str(len(gaps)), *(f"{value:.1f}" for value in values)])
    head = ["move", "frames", "drawing, median ms", "95th percentile", "between frames, median ms", "95th percentile"]
    text = markdown_table(head, rows)
    print(text)
    if options.markdown is not None:
        lines = [
            "# Frame times of the embedding map",
            "",
            f"The map of `nearfar serve` shows {options.samples:,} samples in a window of {WINDOW[0]} x {WINDOW[1]} "
            f"pixels, in headless chromium without a GPU ({machine()}). The browser receives one mouse event per "
            "frame.",
            "",
            text,
            "",
            f"Generated by `python -m benchmarks.serve_map --samples {options.samples}`",
        ]
        with atomic(options.markdown) as draft:
            draft.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
