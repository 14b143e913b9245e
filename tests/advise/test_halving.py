"""Races within a time: the broken lose, the budget is kept, and a kill changes nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from nearfar.advise.entrant import Entrant
from nearfar.advise.halving import Cost, affordable_steps, needed_seconds, planned_splits, round_sizes
from nearfar.advise.race import race

from nearfar.advise import Course, halving, open_course, parse_entrants, race_all, verdict_of
from nearfar.config.merge import OURS
from nearfar.errors import NearfarError


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of twelve steps and few splits, so that the plan ends before the time does."""
    monkeypatch.setitem(OURS["features"], "steps", 12)
    monkeypatch.setattr(halving, "MOST_SPLITS", (2, 3))


def test_rounds_halve_and_a_plan_fits_exactly() -> None:
    assert [round_sizes(n) for n in (2, 3, 8, 9)] == [[2], [3, 2], [8, 4, 2], [9, 5, 3, 2]]
    assert [planned_splits(n) for n in (1, 2, 3)] == [[3], [1, 3], [1, 2, 3]]
    cost, races = Cost(0.5, 0.01), [8, 8, 6]
    for seconds in (20.0, 60.0, 300.0):
        steps = affordable_steps(cost, races, seconds, full=400)
        assert needed_seconds(cost, races, steps, 400) <= seconds
        assert steps == 400 or needed_seconds(cost, races, steps + 1, 400) > seconds


def test_a_broken_recipe_loses_and_one_that_fails_is_out(many: str, tmp_path: Path, short: None) -> None:
    course = open_course(many, tmp_path, seconds=100)
    text = "contrastive, proxy-anchor optimizer.lr=100, proxy-anchor, dro-topk loss.uncertainty.k=-1"
    said: list[str] = []
    entrants = parse_entrants(text)
    lines = race_all(course, entrants, tmp_path, seconds=1000, clock=time.process_time, say=said.append)
    names = [each.name for each in entrants]
    assert any(line.startswith("dro-topk loss.uncertainty.k=-1 is out: ") for line in said)
    first, last = [line for line in lines if line["kind"] == "round"]
    assert first["entrants"] == names[:3]
    assert last["entrants"] == ["contrastive", "proxy-anchor"]
    found = verdict_of(lines, names, held_out=course.held_out)
    assert found.winner in ("contrastive", "proxy-anchor")
    assert list(found.failed) == ["dro-topk loss.uncertainty.k=-1"]


@pytest.mark.parametrize(
    ("data", "recipes", "budget"),
    [("many", "contrastive, proxy-anchor, supcon", 4.0), ("drawings", "contrastive, supcon", 8.0)],
)
def test_the_budget_is_kept(
    data: str, recipes: str, budget: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    course, entrants = open_course(request.getfixturevalue(data), tmp_path, seconds=100), parse_entrants(recipes)
    race(entrants[0], course, steps=2, split=0)  # what only the first race of a process pays for
    started = time.process_time()
    race_all(course, entrants, tmp_path, seconds=budget, clock=time.process_time, say=lambda _: None)
    assert 0.6 * budget < time.process_time() - started < 1.2 * budget


def test_finalists_that_all_fail_are_an_error_that_says_who_still_runs(
    many: str, tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    course, entrants = open_course(many, tmp_path, seconds=100), parse_entrants("contrastive, supcon, proxy-anchor")

    def breaks_late(entrant: Entrant, *args: Any, split: int, **options: Any) -> dict[str, Any]:
        line = race(entrant, *args, split=split, **options)
        return {**line, "message": "it broke"} if split == 2 else line

    monkeypatch.setattr(halving, "race", breaks_late)
    for _ in range(2):  # again when it is started again
        with pytest.raises(NearfarError, match=r"every recipe of this round failed; .* says: it broke\. Race others"):
            race_all(course, entrants, tmp_path / "out", seconds=1000, clock=time.process_time, say=lambda _: None)


def test_too_little_time_says_how_much_would_do(many: str, tmp_path: Path) -> None:
    course = open_course(many, tmp_path, seconds=100)
    with pytest.raises(NearfarError, match=r"0.0001 minutes allow 0 steps a race.*take --minutes \d+, or fewer"):
        race_all(course, parse_entrants("contrastive, supcon"), tmp_path, seconds=0.006, say=lambda _: None)


def scores(course: Course, out: Path, stop: int | None = None) -> dict[tuple[str, int, int], float]:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if stop is not None and len(said) > stop:
            raise KeyboardInterrupt

    entrants = parse_entrants("contrastive, supcon, proxy-anchor")
    return halving.scores_of(race_all(course, entrants, out, seconds=1000, clock=time.process_time, say=say))


def test_stopped_and_started_again_gives_the_same_races(many: str, tmp_path: Path, short: None) -> None:
    course = open_course(many, tmp_path, seconds=100)
    whole = scores(course, tmp_path / "whole")
    assert len(whole) == 3 * 2 + 2  # two splits of three recipes; the better two have a third
    for stop in (0, 2, 5):
        with pytest.raises(KeyboardInterrupt):
            scores(course, tmp_path / "parts", stop)
    with (tmp_path / "parts" / "races.jsonl").open("a") as file:
        file.write('{"kind": "race", "entr')  # as a kill would leave it
    assert scores(course, tmp_path / "parts") == whole
    lines = (tmp_path / "parts" / "races.jsonl").read_text().splitlines()
    assert len(lines) == len((tmp_path / "whole" / "races.jsonl").read_text().splitlines())


def test_other_recipes_or_data_need_another_folder(many: str, vectors: str, tmp_path: Path, short: None) -> None:
    course = open_course(many, tmp_path, seconds=100)
    scores(course, tmp_path)
    with pytest.raises(NearfarError, match=r"races.jsonl: holds races of other data or recipes: choose another --out"):
        race_all(course, parse_entrants("contrastive, supcon"), tmp_path, seconds=10)
    with pytest.raises(NearfarError, match="choose another --out"):
        scores(open_course(vectors, tmp_path, seconds=100), tmp_path)
