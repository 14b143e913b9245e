"""The hint for missing packages is a command that works where nearfar runs."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from nearfar import errors
from nearfar.errors import install_hint


def test_in_a_source_tree_the_hint_installs_the_extra() -> None:
    project = Path(errors.__file__).parents[2]
    assert install_hint("web") == f"pip install -e '.[web]' in {project}"


def test_elsewhere_the_hint_names_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    required = ["click>=8.1", "fastapi>=0.110; extra == 'web'", 'uvicorn>=0.29 ; extra == "web"', "x; extra == 'webs'"]
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "nearfar" / "errors.py"))
    monkeypatch.setattr(metadata, "requires", lambda name: required)
    assert install_hint("web") == "pip install 'fastapi>=0.110' 'uvicorn>=0.29'"
