"""Tuning: as many trials for every method, chosen on validation alone, kept and told."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.suites import run
from nearfar.suites.cells import CellMaker, suite_cells
from nearfar.suites.results import read_lines, read_results
from nearfar.suites.run import run_suite
from nearfar.suites.suite import Suite
from nearfar.suites.suite_file import suite_from_dict
from nearfar.suites.table import table
from nearfar.suites.tuning import choose, combinations, describe_choice, suite_trials
from nearfar.training.evaluate import Evaluator


def suite_of(source: str, **tune: Any) -> Suite:
    return suite_from_dict(
        {
            "name": "tiny",
            "data": [{"name": "here", "source": source}],
            "methods": [
                {"name": "ms", "recipe": "multi-similarity"},
                {"name": "proxy-anchor", "tune": {"loss.alpha": [16, 32]}},
            ],
            "seeds": [0],
            "settings": ["steps=3", "data.validation=0.34", "batches.classes=2", "batches.per_class=4"],
            "tune": {"space": {"optimizer.lr": [1e-3, 1e-2, 1e-1]}, **tune},
        }
    )


def test_every_method_gets_as_many_trials(vectors: str) -> None:
    suite = suite_of(vectors, trials=3)
    trials = suite_trials(CellMaker(suite))
    by_method = {name: [each for each in trials if each.cell.method == name] for name in ("ms", "proxy-anchor")}
    assert [len(each) for each in by_method.values()] == [3, 3]
    assert len({trial.cell.id for trial in trials}) == 6
    for trial in trials:
        assert trial.cell.seed == trial.cell.config.seed == 1000
        assert trial.cell.config.untrained is False
        for setting in trial.settings:
            key, _, value = setting.partition("=")
            config = trial.cell.config
            assert (config.loss["alpha"] if key == "loss.alpha" else attrgetter(key)(config)) == float(value)


def test_the_draw_is_without_replacement_and_the_same_each_time(vectors: str) -> None:
    suite = suite_of(vectors, trials=4)
    data, method = suite.data[0], suite.methods[1]
    drawn = combinations(suite, data, method)
    assert len(set(drawn)) == len(drawn) == 4
    assert drawn == combinations(suite, data, method)
    others = [combinations(suite_of(vectors, trials=4, seed=seed), data, method) for seed in range(100, 110)]
    assert any(each != drawn for each in others)


def test_the_best_by_validation_is_what_the_cells_are_made_of(vectors: str) -> None:
    suite = suite_of(vectors)
    trials = suite_trials(CellMaker(suite))
    values = {trial.cell.id: float(i % 3 == 1) for i, trial in enumerate(trials) if trial.cell.method == "ms"}
    values |= {trial.cell.id: float(i) for i, trial in enumerate(trials) if trial.cell.method == "proxy-anchor"}
    chosen = choose(suite, trials, values)
    assert chosen["here", "ms"] == ("optimizer.lr=0.01",)
    assert chosen["here", "proxy-anchor"] == trials[-1].settings == ("optimizer.lr=0.1", "loss.alpha=32")
    ms, anchor = suite_cells(suite, tuned=chosen)
    assert ms.config.optimizer.lr == 0.01
    assert (anchor.config.optimizer.lr, anchor.config.loss["alpha"]) == (0.1, 32)
    assert ms.config.untrained


@pytest.mark.parametrize("folds", [None, 2])
def test_a_trial_does_not_look_at_the_test_split(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folds: int | None
) -> None:
    seen: list[tuple[int, str]] = []  # seed and split of what was scored
    score = Evaluator.score

    def spy(self: Evaluator, embeddings: Tensor, manifest: Manifest) -> dict[str, float]:
        seen.append((self.config.seed, str(manifest.split[0])))
        return score(self, embeddings, manifest)

    monkeypatch.setattr(Evaluator, "score", spy)
    suite = replace(suite_of(vectors, trials=2), folds=folds)
    assert run_suite(suite, tmp_path / "r.jsonl", workers=0, say=lambda _: None) == 0
    assert {split for seed, split in seen if seed == suite.tune.seed} == {"val"}
    assert {split for seed, split in seen if seed == 0} == {"val", "test"}


def test_a_run_keeps_trials_without_their_test_scores_and_does_not_repeat_them(vectors: str, tmp_path: Path) -> None:
    suite, out, said = suite_of(vectors, trials=2), tmp_path / "r.jsonl", list[str]()
    assert run_suite(suite, out, workers=0, say=said.append) == 0
    lines = read_lines(out)
    trials = [line for line in lines if line["kind"] == "trial"]
    assert len(trials) == 4
    assert not any("test" in line for line in trials)
    results = read_results(out)
    best = max((line for line in trials if line["method"] == "ms"), key=lambda line: line["value"])
    assert results.tuned["here", "ms"] == tuple(best["settings"])
    page = table(results, "markdown")
    assert f"ms: {', '.join(best['settings'])}" in page
    assert "at most 2 combinations of the search space, scored by map@r on validation classes, with seed 1000" in page

    said.clear()
    assert run_suite(suite, out, workers=0, say=said.append) == 0
    assert said == [
        "tiny: 4 trials on validation classes, 4 done",
        f"tiny: 2 cells, 2 done; writing to {out}",
    ]
    assert read_lines(out) == lines


def test_trials_that_fail_lose_and_if_all_do_there_is_no_choice(vectors: str) -> None:
    suite = suite_of(vectors)
    trials = suite_trials(CellMaker(suite))
    only = {trial.cell.id: 0.1 for trial in (trials[2], trials[3])}
    assert choose(suite, trials, only)["here", "ms"] == trials[2].settings
    assert ("here", "proxy-anchor") not in choose(suite, trials, {trials[0].cell.id: 0.1})


def test_a_method_whose_trials_all_fail_leaves_the_others_alone(vectors: str, tmp_path: Path) -> None:
    tree = suite_of(vectors, trials=2).to_dict()
    tree["methods"][1]["settings"] = ["model.head=nonsense"]
    out, said = tmp_path / "r.jsonl", list[str]()
    assert run_suite(suite_from_dict(tree), out, workers=0, say=said.append) == 1
    assert [line["method"] for line in read_lines(out) if line["kind"] == "cell"] == ["ms"]
    (line,) = [line for line in said if "all trials failed" in line]
    assert line.startswith("here, proxy-anchor: ")
    assert "nonsense" in line
    assert "Missing: proxy-anchor, seed 0: all trials failed" in table(read_results(out))


def test_a_run_with_the_same_settings_does_not_stand_for_a_tuned_one(vectors: str, tmp_path: Path) -> None:
    suite, out = suite_of(vectors, trials=2), tmp_path / "r.jsonl"
    untuned = replace(suite, methods=(replace(suite.methods[0], tune={}), replace(suite.methods[1], tune={})))
    assert run_suite(replace(untuned, tune=replace(suite.tune, space={})), out, workers=0) == 0
    assert read_results(out).cell("here", "ms", None, 0) is not None
    assert run_suite(suite, out, workers=0, methods=("proxy-anchor",)) == 0
    found = read_results(out)
    assert found.cell("here", "proxy-anchor", None, 0) is not None
    assert found.cell("here", "ms", None, 0) is None
    assert "Missing: ms, seed 0: not run" in table(found)


def test_values_that_yaml_takes_for_words_are_numbers(vectors: str) -> None:
    suite = suite_of(vectors, space={"optimizer.lr": ["1e-3", "1e-2"]})
    assert combinations(suite, suite.data[0], suite.methods[0]) == [("optimizer.lr=0.001",), ("optimizer.lr=0.01",)]
    (told,) = describe_choice(suite, {("here", "ms"): ("optimizer.lr=0.01",)}, suite.data[0])
    assert "optimizer.lr=0.01 (largest tried)" in told


def test_one_value_is_set_and_not_tuned(vectors: str, tmp_path: Path) -> None:
    tree = suite_of(vectors, space={"optimizer.lr": [1e-2]}).to_dict()
    tree["methods"][1]["tune"] = {}
    out = tmp_path / "r.jsonl"
    assert run_suite(suite_from_dict(tree), out, workers=0) == 0
    assert "Settings are tuned" not in table(read_results(out))


def test_a_table_group_on_the_command_line_is_not_searched_either(vectors: str) -> None:
    suite = replace(suite_of(vectors), override=("optimizer={lr: 0.5}",))
    assert combinations(suite, suite.data[0], suite.methods[0]) == []


def test_only_the_methods_that_are_run_are_tuned_now(vectors: str, tmp_path: Path) -> None:
    suite, out = suite_of(vectors, trials=2), tmp_path / "r.jsonl"
    for method in ("ms", "proxy-anchor"):
        assert run_suite(suite, out, workers=0, methods=(method,)) == 0
        last = [line for line in read_lines(out) if line["kind"] == "trial"][-2:]
        assert [line["method"] for line in last] == [method] * 2
    apart = read_results(out)
    together = tmp_path / "together.jsonl"
    assert run_suite(suite, together, workers=0) == 0
    assert apart.tuned == read_results(together).tuned
    assert apart.places == read_results(together).places


def test_a_trial_that_failed_does_not_undo_the_choice_when_another_method_is_run(vectors: str, tmp_path: Path) -> None:
    tree = suite_of(vectors).to_dict()
    tree["methods"][0]["tune"] = {"optimizer.lr": [1e-3, 1e-2], "loss.beta": [50, -1]}  # -1 is an error
    suite, out = suite_from_dict(tree), tmp_path / "r.jsonl"
    assert run_suite(suite, out, workers=0, methods=("ms",)) == 0
    before = read_results(out).tuned["here", "ms"]
    assert run_suite(suite, out, workers=0, methods=("proxy-anchor",)) == 0
    after = read_results(out)
    assert after.tuned["here", "ms"] == before
    assert after.cell("here", "ms", None, 0) is not None


def test_another_metric_is_read_from_the_same_trials(vectors: str, tmp_path: Path) -> None:
    out, said = tmp_path / "r.jsonl", list[str]()
    assert run_suite(suite_of(vectors, trials=2), out, workers=0) == 0
    assert run_suite(suite_of(vectors, trials=2, metric="recall@1"), out, workers=0, say=said.append) == 0
    assert said[0] == "tiny: 4 trials on validation classes, 4 done"
    trials = [line for line in read_lines(out) if line["kind"] == "trial"]
    assert [line["metric"] for line in trials] == ["map@r"] * 4
    best = max((line for line in trials if line["method"] == "ms"), key=lambda line: line["validation"]["recall@1"])
    assert read_results(out).tuned["here", "ms"] == tuple(best["settings"])
    with pytest.raises(NearfarError, match=r"tune\.metric=recal@1 is not measured: choose from recall@1, "):
        run_suite(suite_of(vectors, metric="recal@1"), tmp_path / "other.jsonl", workers=0)


def test_a_range_whose_end_wins_is_extended_until_it_does_not_win(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The score of a trial is replaced by a curve with a known peak, at a rate of 3 and at any alpha."""

    def fake(outcome_of: Any, trial: Any, outcome: dict[str, Any], metric: str) -> dict[str, Any]:
        rate = trial.cell.config.optimizer.lr
        return outcome_of(trial, {**outcome, "validation": {metric: -abs(math.log10(rate / 3.0))}}, metric)

    monkeypatch.setattr(run, "trial_entry", partial(fake, run.trial_entry))
    out, said = tmp_path / "r.jsonl", list[str]()
    suite = suite_of(vectors, extend=4)
    assert run_suite(suite, out, workers=0, methods=("ms",), say=said.append) == 0
    results = read_results(out)
    assert results.tuned["here", "ms"] == ("optimizer.lr=1.0",)
    assert results.tried["here", "ms"] == {"optimizer.lr": [0.001, 0.01, 0.1, 1.0, 10.0]}
    line = describe_choice(suite, results.tuned, suite.data[0], results.tried)
    assert line == ["Chosen settings: ms: optimizer.lr=1.0"]
    assert [text for text in said if "on validation classes" in text] == [
        "tiny: 3 trials on validation classes, 0 done",
        *["tiny: 1 trial on validation classes, 0 done"] * 2,
    ]
    ids = [entry["id"] for entry in read_lines(out) if entry["kind"] == "trial"]
    assert run_suite(suite, out, workers=0, methods=("ms",)) == 0  # nothing is repeated
    assert [entry["id"] for entry in read_lines(out) if entry["kind"] == "trial"] == ids
    assert run_suite(suite, out, workers=0, methods=("proxy-anchor",)) == 0  # and nothing of the other method is lost
    assert read_results(out).tuned["here", "ms"] == ("optimizer.lr=1.0",)


def test_settings_are_tuned_one_after_the_other(vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(entry_of: Any, trial: Any, outcome: dict[str, Any], metric: str) -> dict[str, Any]:
        config = trial.cell.config
        value = -abs(math.log10(config.optimizer.lr / 0.01)) + config.loss["alpha"] / 100
        return entry_of(trial, {**outcome, "validation": {metric: value}}, metric)

    monkeypatch.setattr(run, "trial_entry", partial(fake, run.trial_entry))
    out = tmp_path / "r.jsonl"
    suite = suite_of(vectors, one_by_one=True)
    assert run_suite(suite, out, workers=0, methods=("proxy-anchor",)) == 0
    trials = [tuple(line["settings"]) for line in read_lines(out) if line["kind"] == "trial"]
    assert trials == [
        *((f"optimizer.lr={rate}", "loss.alpha=16") for rate in (0.001, 0.01, 0.1)),
        ("optimizer.lr=0.01", "loss.alpha=32"),
    ]
    assert read_results(out).tuned["here", "proxy-anchor"] == ("optimizer.lr=0.01", "loss.alpha=32")


def test_the_end_of_an_extended_range_is_still_marked(vectors: str) -> None:
    suite = suite_of(vectors, extend=1)
    tuned = {("here", "ms"): ("optimizer.lr=1.0",)}
    tried = {("here", "ms"): {"optimizer.lr": [0.001, 0.01, 0.1, 1.0]}}
    assert describe_choice(suite, tuned, suite.data[0], tried) == [
        "Chosen settings: ms: optimizer.lr=1.0 (largest tried)"
    ]


def with_override(suite: Suite, *settings: str) -> Suite:
    return suite_from_dict({**suite.to_dict(), "override": list(settings)})


def test_what_is_set_by_hand_is_not_searched(vectors: str) -> None:
    suite = with_override(suite_of(vectors), "optimizer.lr=0.003")
    assert combinations(suite, suite.data[0], suite.methods[0]) == []
    trials = suite_trials(CellMaker(suite))
    assert [trial.settings for trial in trials] == [("loss.alpha=16",), ("loss.alpha=32",)]
    assert {trial.cell.config.optimizer.lr for trial in trials} == {0.003}
    chosen = choose(suite, trials, {trials[0].cell.id: 1.0})
    assert {cell.config.optimizer.lr for cell in suite_cells(suite, tuned=chosen)} == {0.003}


def test_trials_keep_their_own_settings_and_look_at_validation_alone(vectors: str, tmp_path: Path) -> None:
    suite = with_override(suite_of(vectors, trials=2, settings=["steps=2"]), "steps=4", "select.by=test")
    assert {trial.cell.config.steps for trial in suite_trials(CellMaker(suite))} == {2}
    assert {trial.cell.config.select.by for trial in suite_trials(CellMaker(suite))} == {"auto"}
    out, said = tmp_path / "r.jsonl", list[str]()
    assert run_suite(suite, out, workers=0, say=said.append) == 0
    cells = [line for line in read_lines(out) if line["kind"] == "cell"]
    assert {(line["steps"], line["selected_by"]) for line in cells} == {(4, "test")}
    assert "(epoch selected on the test set, as in the paper), " in said[-1]


def test_the_table_says_where_a_choice_is_the_last_that_was_tried(vectors: str) -> None:
    suite = suite_of(vectors)
    (data,) = suite.data
    chosen = {("here", "ms"): ("optimizer.lr=0.1",), ("here", "proxy-anchor"): ("optimizer.lr=0.01", "loss.alpha=16")}
    assert describe_choice(suite, chosen, data) == [
        "Chosen settings: ms: optimizer.lr=0.1 (largest tried) (of 3 trials); "
        "proxy-anchor: optimizer.lr=0.01, loss.alpha=16 (smallest tried) (of 6 trials)"
    ]
    equal = suite_of(vectors, trials=3)
    assert describe_choice(equal, {("here", "ms"): ("optimizer.lr=0.01",)}, data) == [
        "Chosen settings: ms: optimizer.lr=0.01"
    ]


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"space": {"optimizer.lr": 0.1}}, "tune needs a non-empty list of values for optimizer.lr, got 0.1"),
        ({"seed": 0}, "tune.seed=0 is also in seeds"),
        ({"trials": 0}, "tune.trials must be at least 1, got 0"),
        ({"space": {"seed": [1, 2]}}, "remove seed from the settings and from tune: .* from seeds"),
        ({"spaces": {}}, "did you mean 'space'"),
    ],
)
def test_mistakes_are_named(vectors: str, tune: dict[str, Any], message: str) -> None:
    with pytest.raises(NearfarError, match=message):
        suite_of(vectors, **tune)


def test_without_validation_classes_there_is_nothing_to_choose_by(vectors: str) -> None:
    suite = suite_from_dict({**suite_of(vectors).to_dict(), "settings": ["steps=3"]})
    with pytest.raises(NearfarError, match="tuning needs validation classes"):
        suite_trials(CellMaker(suite))


def test_settings_of_trials_are_theirs_alone_and_told(vectors: str, tmp_path: Path) -> None:
    plain = suite_of(vectors, settings=["steps=2", "data.validation=0.34"], trials=2).to_dict()
    suite = suite_from_dict({**plain, "settings": ["steps=3", "batches.classes=2", "batches.per_class=4"]})
    for trial in suite_trials(CellMaker(suite)):
        assert (trial.cell.config.steps, trial.cell.config.data.validation) == (2, 0.34)
        assert trial.settings[0].startswith("optimizer.lr=")
    out = tmp_path / "r.jsonl"
    assert run_suite(suite, out, workers=0) == 0
    cell = next(line for line in read_lines(out) if line["kind"] == "cell")
    assert cell["steps"] == 3
    assert not cell["validation"]
    assert "which no table uses, with steps=2, data.validation=0.34." in table(read_results(out), "markdown")


def two_data(source: str) -> Suite:
    plain = suite_of(source).to_dict()
    here = plain["data"][0]
    # a grid of its own, so that a choice made here would show
    there = {**here, "name": "there", "tune": {"optimizer.lr": [5.0, 6.0]}, "tuned_on": "here", "settings": ["steps=2"]}
    return suite_from_dict({**plain, "data": [here, there]})


def test_data_may_take_what_was_chosen_on_other_data(vectors: str, tmp_path: Path) -> None:
    suite, out = two_data(vectors), tmp_path / "r.jsonl"
    assert run_suite(suite, out, workers=0) == 0
    lines = read_lines(out)
    assert {line["data"] for line in lines if line["kind"] == "trial"} == {"here"}
    chosen = read_results(out).tuned
    for method in ("ms", "proxy-anchor"):
        assert chosen["there", method] == chosen["here", method]
    (text,) = describe_choice(suite, chosen, suite.data[1])
    assert text.startswith("Chosen settings on here: ms: optimizer.lr=")
    before = len(lines)
    assert run_suite(suite, out, only=("here", "there"), workers=0) == 0
    assert len(read_lines(out)) == before


def test_a_choice_that_is_missing_is_missing_where_it_is_taken_over(vectors: str, tmp_path: Path) -> None:
    plain = two_data(vectors).to_dict()
    plain["methods"][1]["settings"] = ["model.head=nonsense"]
    said: list[str] = []
    assert run_suite(suite_from_dict(plain), tmp_path / "r.jsonl", workers=0, say=said.append) == 2
    lines = [line for line in said if "all trials failed" in line]
    assert [line.split(":")[0] for line in lines] == ["here, proxy-anchor", "there, proxy-anchor"]
    assert all("nonsense" in line for line in lines)


def test_taking_over_a_choice_needs_the_data_it_was_made_on_unless_nothing_is_searched(vectors: str) -> None:
    suite = two_data(vectors)
    with pytest.raises(
        NearfarError, match=r"there uses the settings that are tuned on here: add --only here .*--set optimizer.lr"
    ):
        suite_trials(CellMaker(suite, only=("there",)))
    given = replace(suite, override=("optimizer.lr=0.1", "loss.alpha=16"), methods=suite.methods[1:])
    assert suite_trials(CellMaker(given, only=("there",))) == []
    plain = suite.to_dict()
    plain["data"][1]["tuned_on"] = "her"
    with pytest.raises(NearfarError, match=r"there has tuned_on 'her', which is not a dataset.*did you mean 'here'"):
        suite_from_dict(plain)
