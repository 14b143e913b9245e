"""Take the screenshots of web pages for the documentation.

    python -m benchmarks.page_images runs/start docs/images --split train --audit runs/audit-start

The first argument is a calibrated run on the built-in drawings, the second is the output folder, and --audit is the
output of `nearfar audit` for this run:

    nearfar train sketches --recipe normalized-softmax --set steps=600 --set model.dim=128 --set batches.size=64 \\
        --set data.validation=0.2 --set threads=1 --out runs/start
    nearfar audit runs/start
    nearfar calibrate runs/start

The script needs selenium, and chromium with chromedriver (`make browser` installs them). It takes several minutes,
because it computes the map and the audit of the split.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.serve_map import browser
from nearfar.errors import NearfarError
from nearfar.serve.api import create_app
from nearfar.serve.collection import open_collection
from nearfar.serve.server import guard_app, run_in_background

# A drawing of an envelope, as in the URLs of the page: strokes of points, two hexadecimal digits per coordinate.
ENVELOPE = "06046e00fc06ff54fc98809c069800500604-0608805cfa08"
MAP_READY = "return !!document.querySelector('canvas.plane')?.width && !document.querySelector('.busy')"
# Scroll to the section on decisions once its diagrams are there.
DECISIONS_READY = """
const title = [...document.querySelectorAll('h2')].find(each => each.textContent === 'Decisions');
title?.scrollIntoView({behavior: 'instant'});
return !!title && document.querySelectorAll('.curves svg').length >= 2;
"""
# For each image: the address of the view, and a script that returns whether the view is complete.
VIEWS = {
    "serve-search": (f"#/drawing/{ENVELOPE}", "return document.querySelectorAll('.cards img').length >= 24"),
    "serve-map": ("#/map", MAP_READY),
    "serve-audit": ("#/audit", "return document.querySelectorAll('article img').length >= 10"),
    "serve-duplicates": ("#/duplicates", "return document.querySelectorAll('.groups img').length >= 4"),
    "serve-decisions": ("#/run", DECISIONS_READY),
}
COLORS = 128
WAIT = 900.0


def take_image(page: Any, path: Path, *, width: int, height: int, is_complete: str) -> None:
    """Wait until a view and its images are complete, and save a screenshot with few colors."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    loaded = "return [...document.images].filter(i => i.loading !== 'lazy').every(i => i.complete)"
    end = time.monotonic() + WAIT
    while not (page.execute_script(is_complete) and page.execute_script(loaded)):
        if time.monotonic() > end:
            raise NearfarError(f"{path.name}: the page was not complete within {WAIT:.0f} s")
        time.sleep(0.5)
    time.sleep(3)  # wait for images that fade in
    page.save_screenshot(str(path))
    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="directory of a calibrated run on drawings")
    parser.add_argument("out", type=Path, help="folder of the images")
    parser.add_argument("--split", default="all", help="the split to serve (default all); a small split is faster")
    parser.add_argument("--audit", type=Path, help="output of `nearfar audit`; without it, there is no audit.png")
    options = parser.parse_args()
    page = browser()
    try:
        if options.audit:
            page.get((options.audit / "index.html").resolve().as_uri())
            done = "return document.querySelectorAll('img').length >= 10"
            take_image(page, options.out / "audit.png", width=900, height=780, is_complete=done)
        collection = open_collection(options.run, split=options.split)
        collection.map.wait()
        collection.audit.wait()
        with run_in_background(guard_app(create_app(collection))) as address:
            for name, (place, is_complete) in VIEWS.items():
                page.get("about:blank")
                page.get(f"{address}/{place}")
                take_image(page, options.out / f"{name}.png", width=1280, height=820, is_complete=is_complete)
            page.get("about:blank")
    finally:
        page.quit()


if __name__ == "__main__":
    main()
