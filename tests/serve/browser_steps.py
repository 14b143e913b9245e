"""Steps of tests in a browser: find elements, wait for them, press keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

Browser = Any


def size(browser: Browser, width: int, height: int, *, phone: bool = False) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def until(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until a function returns a true value, and return it; retry if an element disappears meanwhile."""
    from selenium.common.exceptions import StaleElementReferenceException

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := what():
                return found
        except StaleElementReferenceException:
            pass
        time.sleep(0.05)
    raise AssertionError(f"timed out after {seconds:g} s")


def all_of(browser: Browser, selector: str) -> list[Any]:
    return list(browser.find_elements("css selector", selector))


def one(browser: Browser, selector: str) -> Any:
    return until(lambda: (all_of(browser, selector) or [None])[0])


def texts(browser: Browser, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
    return list(browser.execute_script(script, selector))


def title(browser: Browser, words: str) -> None:
    until(lambda: any(words in each for each in texts(browser, "h1")))


def where(browser: Browser) -> str:
    return str(browser.execute_script("return location.hash"))


def loaded(browser: Browser, selector: str) -> bool:
    script = "return [...document.querySelectorAll(arguments[0])].every(e => e.complete && e.naturalWidth > 0)"
    return bool(browser.execute_script(script, selector))


def pressed(browser: Browser, key: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(key).perform()
