"""Successive halving: broken recipes lose, the time budget holds, and trials can be resumed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from nearfar.advise import TrialData, open_trial_data, parse_candidates, recommend, run_trials, successive_halving
from nearfar.advise.candidate import Candidate
from nearfar.advise.schedule import TrialCost, affordable_steps, needed_seconds, planned_splits, round_sizes
from nearfar.advise.trial import run_trial
from nearfar.config.defaults import OURS
from nearfar.errors import NearfarError


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit runs to twelve steps and few splits, so that the plan ends before the time."""
    monkeypatch.setitem(OURS["features"], "steps", 12)
    monkeypatch.setattr(successive_halving, "MAX_SPLITS", (2, 3))


def test_rounds_halve_and_the_plan_fits() -> None:
    assert [round_sizes(n) for n in (2, 3, 8, 9)] == [[2], [3, 2], [8, 4, 2], [9, 5, 3, 2]]
    assert [planned_splits(n) for n in (1, 2, 3)] == [[3], [1, 3], [1, 2, 3]]
    cost, trials = TrialCost(0.5, 0.01), [8, 8, 6]
    for seconds in (20.0, 60.0, 300.0):
        steps = affordable_steps(cost, trials, seconds, full=400)
        assert needed_seconds(cost, trials, steps, 400) <= seconds
        assert steps == 400 or needed_seconds(cost, trials, steps + 1, 400) > seconds


def test_broken_recipe_loses_and_failing_recipe_is_dropped(many: str, tmp_path: Path, short: None) -> None:
    data = open_trial_data(many, tmp_path, seconds=100)
    text = "contrastive, proxy-anchor optimizer.lr=100, proxy-anchor, dro-topk loss.k=-1"
    said: list[str] = []
    candidates = parse_candidates(text)
    lines = run_trials(data, candidates, tmp_path, seconds=1000, clock=time.process_time, say=said.append)
    names = [each.name for each in candidates]
    assert any(line.startswith("dro-topk loss.k=-1 failed and is dropped: ") for line in said)
    first, last = [line for line in lines if line["kind"] == "round"]
    assert first["candidates"] == names[:3]
    assert last["candidates"] == ["contrastive", "proxy-anchor"]
    found = recommend(lines, names, held_out=data.held_out)
    assert found.winner in ("contrastive", "proxy-anchor")
    assert list(found.failed) == ["dro-topk loss.k=-1"]


@pytest.mark.parametrize(
    ("data", "recipes", "budget"),
    [("many", "contrastive, proxy-anchor, supcon", 4.0), ("drawings", "contrastive, supcon", 8.0)],
)
def test_trials_stay_within_the_budget(
    data: str, recipes: str, budget: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data, candidates = open_trial_data(request.getfixturevalue(data), tmp_path, seconds=100), parse_candidates(recipes)
    run_trial(candidates[0], data, steps=2, split=0)  # the first trial of a process also pays for imports
    started = time.process_time()
    run_trials(data, candidates, tmp_path, seconds=budget, clock=time.process_time, say=lambda _: None)
    assert 0.6 * budget < time.process_time() - started < 1.2 * budget


def test_error_when_all_finalists_fail_names_working_recipes(
    many: str, tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, candidates = (
        open_trial_data(many, tmp_path, seconds=100),
        parse_candidates("contrastive, supcon, proxy-anchor"),
    )

    def breaks_late(candidate: Candidate, *args: Any, split: int, **options: Any) -> dict[str, Any]:
        line = run_trial(candidate, *args, split=split, **options)
        return {**line, "message": "it broke"} if split == 2 else line

    monkeypatch.setattr(successive_halving, "run_trial", breaks_late)
    for _ in range(2):  # the second call resumes
        with pytest.raises(
            NearfarError,
            match=r"every recipe of this round failed; .*: it broke\. To compare only the recipes that still",
        ):
            run_trials(data, candidates, tmp_path / "out", seconds=1000, clock=time.process_time, say=lambda _: None)


def test_too_little_time_suggests_minutes(many: str, tmp_path: Path) -> None:
    data = open_trial_data(many, tmp_path, seconds=100)
    with pytest.raises(
        NearfarError, match=r"--minutes 0.0001 allows only 0 steps per trial.*use --minutes \d+, or fewer"
    ):
        run_trials(data, parse_candidates("contrastive, supcon"), tmp_path, seconds=0.006, say=lambda _: None)


def test_a_budget_that_is_a_little_too_small_is_exceeded_with_a_message(
    many: str, tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the probes, a comparison that needs 1.5 times the budget is made, instead of an error after the work."""
    data, candidates = open_trial_data(many, tmp_path, seconds=100), parse_candidates("contrastive, supcon")
    monkeypatch.setattr(successive_halving, "affordable_steps", lambda *_: 3)
    said: list[str] = []
    monkeypatch.setattr(successive_halving, "needed_seconds", lambda *_: 1.5 * 1000 * 0.95)
    lines = run_trials(data, candidates, tmp_path / "a", seconds=1000, clock=time.process_time, say=said.append)
    assert any(
        line.startswith("--minutes 16.6667 is too short for these recipes: the comparison takes") for line in said
    )
    assert {line["steps"] for line in lines if line["kind"] == "trial"} == {successive_halving.MIN_STEPS}
    monkeypatch.setattr(successive_halving, "needed_seconds", lambda *_: 2.5 * 1000)
    with pytest.raises(NearfarError, match="allows only 3 steps per trial"):
        run_trials(data, candidates, tmp_path / "b", seconds=1000, clock=time.process_time, say=said.append)


def scores(data: TrialData, out: Path, stop: int | None = None) -> dict[tuple[str, int, int], float]:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if stop is not None and len(said) > stop:
            raise KeyboardInterrupt

    candidates = parse_candidates("contrastive, supcon, proxy-anchor")
    return successive_halving.collect_scores(
        run_trials(data, candidates, out, seconds=1000, clock=time.process_time, say=say)
    )


def test_resumed_trials_equal_uninterrupted_trials(many: str, tmp_path: Path, short: None) -> None:
    data = open_trial_data(many, tmp_path, seconds=100)
    uninterrupted = scores(data, tmp_path / "whole")
    assert len(uninterrupted) == 3 * 2 + 2  # three recipes on two splits; the better two on a third
    for stop in (0, 2, 5):
        with pytest.raises(KeyboardInterrupt):
            scores(data, tmp_path / "parts", stop)
    with (tmp_path / "parts" / "trials.jsonl").open("a") as file:
        file.write('{"kind": "trial", "entr')  # a line cut off by a kill
    assert scores(data, tmp_path / "parts") == uninterrupted
    lines = (tmp_path / "parts" / "trials.jsonl").read_text().splitlines()
    assert len(lines) == len((tmp_path / "whole" / "trials.jsonl").read_text().splitlines())


def test_other_recipes_or_data_need_another_out(many: str, vectors: str, tmp_path: Path, short: None) -> None:
    data = open_trial_data(many, tmp_path, seconds=100)
    scores(data, tmp_path)
    with pytest.raises(
        NearfarError, match=r"trials.jsonl contains trials with other data or other recipes: choose another --out"
    ):
        run_trials(data, parse_candidates("contrastive, supcon"), tmp_path, seconds=10)
    with pytest.raises(NearfarError, match="choose another --out"):
        scores(open_trial_data(vectors, tmp_path, seconds=100), tmp_path)
