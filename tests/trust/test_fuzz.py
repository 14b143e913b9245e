"""Bad input is refused by one line. The full run: python -m tests.harness.fuzz."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearfar.errors import NearfarError
from tests.harness.fuzz import Outcome, Targets, _try, attack, cpu_limit
from tests.harness.fuzz_input import changed


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Targets(tmp_path_factory.mktemp("fuzz"))
        yield found
        found.close()


def test_2000_bad_inputs(targets: Targets) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = attack(targets, 2000, seed=1)
    assert found.wrong == []
    assert sum(found.taken.values()) + sum(found.refused.values()) >= 1990
    assert set(found.refused) == set(targets.all)  # of every kind some are bad


@pytest.mark.parametrize(("target", "number"), [("tar", 1703), ("parts", 434)])
def test_what_a_full_run_found_stays_repaired(targets: Targets, target: str, number: int) -> None:
    outcome = Outcome()
    _try(outcome, target, targets.all[target][1], 0, number)
    assert outcome.wrong == []


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (KeyError("x"), "KeyError"),
        (NearfarError("fine"), ""),
        (MemoryError(), "MemoryError"),
        (AssertionError("a"), "a"),
    ],
)
def test_other_errors_are_wrong(error: Exception, wrong: str) -> None:
    def attempt(_: random.Random) -> None:
        raise error

    outcome = Outcome()
    _try(outcome, "target", attempt, 0, 7)
    assert outcome.wrong == [] if not wrong else wrong in outcome.wrong[0]
    if wrong:
        assert "target, seed 0, input 7" in outcome.wrong[0]


def test_what_takes_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.harness.fuzz.SECONDS", 0.05)

    def attempt(_: random.Random) -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    outcome = Outcome()
    with cpu_limit():
        _try(outcome, "target", attempt, 0, 0)
    assert "s of CPU" in outcome.wrong[0]


def test_an_input_is_a_function_of_its_seed() -> None:
    one, two, other = (changed(random.Random(seed), [b"some bytes 123", b"others"]) for seed in (1, 1, 2))
    assert one == two != other


def test_a_file_that_is_left_behind_is_wrong(targets: Targets) -> None:
    folder = targets.folder / "csv"

    def attempt(_: random.Random) -> None:
        (folder / ".csv.csv.1.part").touch()

    kept, targets.all["csv"] = targets.all["csv"], (1, attempt)
    try:
        assert "left behind" in attack(targets, 1, only="csv").wrong[0]
    finally:
        targets.all["csv"] = kept
        Path(folder / ".csv.csv.1.part").unlink()
