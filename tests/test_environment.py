"""Environment variables that are set for a `with` block."""

from __future__ import annotations

import os

import pytest

from nearfar.environment import environment_variable

NAME = "NEARFAR_TEST_VARIABLE"


def fail_in_a_block() -> None:
    with environment_variable(NAME, "new"):
        assert os.environ[NAME] == "new"
        raise KeyError


@pytest.mark.parametrize("before", [None, "old"])
def test_the_variable_is_restored_also_after_an_error(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    if before is None:
        monkeypatch.delenv(NAME, raising=False)
    else:
        monkeypatch.setenv(NAME, before)
    with pytest.raises(KeyError):
        fail_in_a_block()
    assert os.environ.get(NAME) == before


def test_a_value_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "old")
    with environment_variable(NAME, "new", replace=False):
        assert os.environ[NAME] == "old"
    monkeypatch.delenv(NAME)
    with environment_variable(NAME, "new", replace=False):
        assert os.environ[NAME] == "new"
    assert NAME not in os.environ
