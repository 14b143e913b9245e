"""The choice of defaults: values are chosen on the other datasets, and finished runs are not repeated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.default_vectors import limit_samples, read_texts
from benchmarks.defaults import CANDIDATES, FLOOR, Group, Settings, check_jobs, main, read_groups
from benchmarks.defaults_runs import Job, Runner, read_outcomes, split_training_classes
from nearfar.config import recipes
from nearfar.config.merge import resolve
from nearfar.data import Manifest, save_manifest
from nearfar.errors import NearfarError

FAST, SLOW = ("optimizer.lr=0.1",), ("optimizer.lr=0.001",)
GROUP = Group(("triplet",), (FAST, SLOW))
# FAST is best on a and b, and does harm on c
FOUND = {("triplet", each, name): gain for each, gains in {FAST: (5, 4, -1), SLOW: (1, 2, 3)}.items()
         for name, gain in zip("abc", gains, strict=True)}  # fmt: skip


def toy(classes: int = 12, per_class: int = 6, dim: int = 8) -> Manifest:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), per_class)
    features = rng.normal(size=(classes, dim))[labels] + rng.normal(size=(len(labels), dim))
    names = tuple(f"{label:02d}" for label in range(classes))
    return Manifest(labels=labels, classes=names, split=["train"] * len(labels), features=features)


def test_a_value_that_does_harm_on_any_dataset_is_not_chosen() -> None:
    assert GROUP.choose(FOUND, "ab") == FAST
    assert GROUP.choose(FOUND, "abc") == SLOW
    worse = {**FOUND, ("triplet", SLOW, "c"): -2}
    assert GROUP.choose(worse, "abc") == FAST  # all do harm: the least


def test_values_are_chosen_without_the_dataset_that_is_scored() -> None:
    jobs = check_jobs([GROUP], FOUND, ["a", "b", "c"], ["kept"], [0, 1])
    assert [(job.data, job.settings) for job in jobs if job.seed == 1] == [
        *(("a", SLOW), ("b", SLOW), ("c", FAST)),
        ("kept", ()),
    ]
    assert {job.part for job in jobs} == {"test"}


def test_every_recipe_is_in_one_group_and_candidates_set_the_same_keys(tmp_path: Path) -> None:
    groups = read_groups(CANDIDATES)
    assert sorted(name for group in groups for name in group.recipes) == recipes.names()
    for group in groups:
        assert len({tuple(each.partition("=")[0] for each in settings) for settings in group.candidates}) == 1
    twice = tmp_path / "twice.yaml"
    twice.write_text("- {recipes: [triplet, triplet], keys: [loss.margin], values: [[0.1]]}\n")
    with pytest.raises(NearfarError, match="'triplet' is not a recipe or is listed twice"):
        read_groups(twice)


def test_search_splits_the_training_classes_and_never_sees_the_test_classes() -> None:
    manifest = toy().split_by_class_order()
    split = split_training_classes(manifest, seed=0)
    assert len(split) == len(manifest.rows("train"))
    train, held_out = ({split.classes[i] for i in split.labels[split.rows(part)]} for part in ("train", "test"))
    assert len(train) == len(held_out) == 3
    assert train | held_out == set(manifest.classes[:6])


def test_a_finished_run_is_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        save_manifest(toy().split_by_class_order(), tmp_path / f"{name}.npz")
    candidates = tmp_path / "candidates.yaml"
    candidates.write_text("- {recipes: [supcon], keys: [steps], values: [[1], [2]]}\n")
    out = tmp_path / "runs.jsonl"
    command = [*("check", "--recipes", "supcon", "--candidates", str(candidates), "--seeds", "0", "--out", str(out))]
    command += ["--data", f"a={tmp_path / 'a.npz'}", "--data", f"b={tmp_path / 'b.npz'}"]
    main(command)
    table = capsys.readouterr().out
    assert "| supcon | " in table
    done = read_outcomes(out)
    # the two datasets are equal, so that each candidate is one validation run; then one test run
    assert [outcome.job.part for outcome in done] == ["validation", "validation", "test"]
    main(command)
    assert capsys.readouterr().out == table
    assert read_outcomes(out) == done


def test_the_defaults_of_the_recipes_are_the_chosen_values(capsys: pytest.CaptureFixture[str]) -> None:
    file, data = CANDIDATES.parents[1] / "docs/results/defaults.jsonl", ["cub", "omniglot", "drawings", "clinc"]
    done = [outcome for outcome in read_outcomes(file) if outcome.job.part == "validation"]
    found = {(each.job.recipe, each.job.settings, each.job.data): each.gain() for each in done}
    tried = sorted({recipe for recipe, _, _ in found})  # recipes that were added later have no runs yet
    for group in read_groups(CANDIDATES, tried):
        chosen = group.choose(found, data)
        assert min(group.gains(found, chosen, data)) >= FLOOR
        for recipe in group.recipes:
            assert resolve("features", recipe=recipe) == resolve("features", recipe=recipe, settings=chosen), recipe
    main(["table", *(word for name in data for word in ("--data", name)), "--out", str(file), "--recipes", *tried])
    printed, page = capsys.readouterr().out, (file.with_suffix(".md")).read_text()
    search, left_out = printed.split("\n\n")[:2]
    assert search in page
    assert left_out in page


def test_texts_and_samples_of_a_dataset(tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text('text,label\n"a, b",second\nc,first\n')
    texts, manifest = read_texts(file)
    assert texts == ["a, b", "c"]
    assert [manifest.classes[label] for label in manifest.labels] == ["second", "first"]
    assert manifest.split.tolist() == ["test", "train"]
    file.write_text("words,label\nc,first\n")
    with pytest.raises(NearfarError, match="needs the columns 'text' and 'label'"):
        read_texts(file)
    limited = limit_samples(toy(per_class=6), 4)
    assert np.bincount(limited.labels).tolist() == [4] * 12


@pytest.fixture(scope="module")
def easy_vectors(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Vectors whose untrained head is nearly perfect (MAP@R 98.6): a method can do harm more easily than good."""
    rng = np.random.default_rng(0)
    scale = np.linspace(1.5, 0.2, 48)
    labels = np.repeat(np.arange(60), 20)
    features = (rng.normal(size=(60, 48))[labels] + 0.7 * rng.normal(size=(len(labels), 48))) * scale
    names = tuple(f"{label:02d}" for label in range(60))
    manifest = Manifest(labels=labels, classes=names, split=["train"] * len(labels), features=features)
    folder = tmp_path_factory.mktemp("easy")
    save_manifest(manifest.split_by_class_order(), folder / "easy.npz")
    return Runner({"easy": folder / "easy.npz"}, folder / "runs.jsonl")


@pytest.mark.parametrize("recipe", ["contrastive", "c-profs", "mpa", "proxy-anchor", "bspml", "supcon"])
def test_defaults_do_no_harm_to_good_vectors(easy_vectors: Runner, recipe: str) -> None:
    assert easy_vectors.run(Job("test", "easy", recipe)).gain() > -0.5


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [("contrastive", ("loss.pos_margin=0", "loss.neg_margin=1")), ("proxy-anchor", ("loss.alpha=32",))],
)
def test_values_of_the_papers_do_harm_to_good_vectors(easy_vectors: Runner, recipe: str, settings: Settings) -> None:
    assert easy_vectors.run(Job("test", "easy", recipe, settings)).gain() < -0.5
