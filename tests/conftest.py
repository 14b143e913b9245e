import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# One thread for numpy, faiss and torch, in this process and in those that tests start: the data are tiny, and threads
# that wait for each other take the time of the other tests. The libraries read this when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

from nearfar.data import Manifest, save_manifest
from training_cases import saved_vectors

# Assertions in the modules that tests/test_golden.py uses show their values, as in test modules.
pytest.register_assert_rewrite(
    *(f"golden_{part}" for part in ("bspml", "cases", "dro", "identities", "metrics", "profs", "proxy"))
)

# These modules must be imported before torch, in a process of their own.
collect_ignore = ["harness/pretend_cuda.py", "harness/device_checks.py", "harness/device_ranks.py"]

# One thread, because the batches are tiny, and so that sums have the same order on every machine.
torch.set_num_threads(1)

# Checks of images are cached per user. Tests, and the processes that they start, have a cache of their own.
_cache = TemporaryDirectory(prefix="nearfar-test-cache-")
os.environ["NEARFAR_CACHE"] = _cache.name

CHROMIUM_FLAGS = (
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that are marked slow, unless they are asked for: pytest -m slow."""
    if "slow" in (config.option.markexpr or ""):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: pytest -m slow"))


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a window. Tests that use it are skipped if Chromium is not installed."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        warnings.warn("THE PAGES ARE NOT TESTED: there is no chromium with chromedriver (make browser)", stacklevel=1)
        pytest.skip("no chromium with chromedriver: make browser installs them")
    pytest.importorskip("selenium.webdriver")
    from benchmarks.serve_map import browser

    found = browser(*CHROMIUM_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    yield found
    found.quit()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    """12 classes of 20 vectors in 16 dimensions, half of the classes for training."""
    return saved_vectors(tmp_path_factory.mktemp("data") / "vectors.npz", classes=12, per_class=20, noise=0.8)


@pytest.fixture(scope="session")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """8 classes of 12 images of 12 x 12 pixels."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(8), 12)
    kinds = rng.integers(0, 2, (8, 12, 12)) * 200
    pixels = np.clip(kinds[labels] + rng.normal(0, 20, (96, 12, 12)), 0, 255).astype(np.uint8)
    classes = tuple(f"kind {i}" for i in range(8))
    manifest = Manifest(labels=labels, classes=classes, split=["train"] * 96, pixels=pixels)
    path: Path = tmp_path_factory.mktemp("data") / "drawings.npz"
    save_manifest(manifest.split_by_class_order(), path)
    return str(path)
