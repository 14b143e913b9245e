"""`import nearfar` gives access to everything and loads nothing before it is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import nearfar

ROOT = Path(__file__).parent.parent


def test_submodules_load_on_first_use() -> None:
    code = (
        "import sys, nearfar; assert 'torch' not in sys.modules; dir(nearfar); assert 'torch' not in sys.modules; "
        "nearfar.losses.MultiSimilarityLoss(); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_dir_shows_every_package() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "nearfar").glob("*/__init__.py")} - {"cli"}
    assert packages <= set(dir(nearfar))
    assert {"evaluate", "Scores", "mining", "runs", "__version__"} <= set(dir(nearfar))
    for name in dir(nearfar):
        assert getattr(nearfar, name) is not None


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'nearfar' has no attribute 'nonsense'"):
        _ = nearfar.nonsense


def test_the_version_has_one_source() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in pyproject
    assert not re.search(r"^version =", pyproject, re.MULTILINE)
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    assert cited[1] == nearfar.__version__
