"""Folds: MLRC's separated and concatenated scores, known by ids that leave those of other cells alone."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.config.schema import Cache
from nearfar.errors import NearfarError
from nearfar.metrics.protocols import evaluate_folds
from nearfar.suites.cells import suite_cells
from nearfar.suites.config_id import config_id
from nearfar.suites.results import read_lines, read_results
from nearfar.suites.run import run_suite
from nearfar.suites.suite import Suite
from nearfar.suites.suite_file import suite_from_dict
from nearfar.suites.table import table
from nearfar.suites.worker import train_cell
from nearfar.training import Config, train
from nearfar.training.splits import open_manifest, split_manifest
from training_cases import configured


def suite_of(source: str, **changes: Any) -> Suite:
    tree = {
        "name": "tiny",
        "data": [{"name": "here", "source": source}],
        "methods": [{"name": "ms", "recipe": "multi-similarity"}, {"name": "proxy-anchor"}],
        "baseline": "ms",
        "folds": 3,
        "settings": ["steps=4", "model.dim=8", "batches.classes=2", "batches.per_class=4", "data.validation=0.3"],
    }
    return suite_from_dict({**tree, **changes})


def test_ids_of_cells_without_folds_are_what_they_were() -> None:
    assert config_id(Config(loss={"name": "proxy-anchor"})) == "e1b3d6e397b5dd35"


def test_frozen_blocks_and_cached_activations_are_in_the_id_but_not_the_folder_of_the_cache() -> None:
    whole = Config(loss={"name": "proxy-anchor"})
    part = replace(whole, model=replace(whole.model, train_from="head"))
    cached, elsewhere = (replace(part, cache=Cache(activations=folder)) for folder in ("a", "b"))
    wide = replace(part, cache=Cache(activations="a", dtype="float32"))
    decayed = replace(whole, optimizer=replace(whole.optimizer, layer_decay=0.9))
    assert len({config_id(config) for config in (whole, part, cached, wide, decayed)}) == 5
    assert config_id(cached) == config_id(elsewhere)


def test_folds_are_in_the_id_and_replace_the_validation_share(vectors: str) -> None:
    ids = {suite_cells(suite_of(vectors, folds=folds))[0].id for folds in (None, 2, 3)}
    assert len(ids) == 3
    config = suite_cells(suite_of(vectors))[0].config
    assert (config.data.folds, config.data.fold, config.data.validation) == (3, None, 0)


def test_each_fold_holds_out_its_part_of_the_training_classes_in_order(vectors: str) -> None:
    config = configured("features", vectors, "proxy-anchor", "data.folds=4")
    manifest = open_manifest(config.data)
    held_out = []
    for fold in range(4):
        parts = split_manifest(manifest, replace(config, data=replace(config.data, fold=fold)))
        assert parts.validation is not None
        assert parts.test is not None
        kept = {parts.train.classes[i] for i in parts.train.labels}
        out = np.unique(parts.validation.labels).tolist()
        assert not kept & {manifest.classes[i] for i in out}
        assert len(kept) + len(out) == 6
        assert np.array_equal(parts.test.labels, manifest.subset("test").labels)
        held_out.append(out)
    assert held_out == [[0, 1], [2, 3], [4], [5]]


def test_the_scores_are_those_of_runs_made_one_by_one(vectors: str, tmp_path: Path) -> None:
    config = replace(suite_cells(suite_of(vectors))[0].config, threads=1)
    found = train_cell(config, tmp_path / "cell")
    assert not (tmp_path / "cell").exists()
    runs = [train(replace(config, data=replace(config.data, fold=i)), tmp_path / f"{i}") for i in range(3)]
    test = runs[0].manifest().subset("test")
    wanted = evaluate_folds([run.embed(test) for run in runs], test.labels, metrics=config.metrics)
    assert found["test"] == pytest.approx(wanted.mean(), abs=1e-12)
    assert found["concatenated"] == pytest.approx(dict(wanted.concatenated), abs=1e-12)
    assert found["test"] != found["concatenated"]
    assert found["folds"] == [run.results()["test"] for run in runs]
    assert found["epoch"] == [run.results()["epoch"] for run in runs]
    validation = [run.results()["validation"]["map@r"] for run in runs]
    assert found["validation"]["map@r"] == pytest.approx(sum(validation) / 3)
    assert found["selected_by"] == "validation"


def test_folds_that_choose_the_epoch_on_test_have_scores_too(vectors: str, tmp_path: Path) -> None:
    suite = suite_from_dict({**suite_of(vectors).to_dict(), "override": ["select.by=test"]})
    found = train_cell(replace(suite_cells(suite)[0].config, threads=1), tmp_path / "cell")
    assert found["selected_by"] == "test"
    assert len(found["folds"]) == 3


def test_tables_have_both_forms_and_trials_are_judged_on_all_folds(vectors: str, tmp_path: Path) -> None:
    suite = suite_of(vectors, tune={"space": {"optimizer.lr": [1e-3, 1e-2]}})
    out, said = tmp_path / "r.jsonl", list[str]()
    assert run_suite(suite, out, workers=0) == 0
    results = read_results(out)
    text = table(results)
    assert "## here, separated\n" in text
    assert "## here, concatenated\n" in text
    assert "One run for each of 3 contiguous class-disjoint folds" in text
    assert text.count("| untrained |") == 1
    rows = list(csv.DictReader(io.StringIO(table(results, "csv"))))
    cell = next(line for line in read_lines(out) if line["kind"] == "cell" and line["method"] == "ms")
    for form, key in (("separated", "test"), ("concatenated", "concatenated")):
        (row,) = [r for r in rows if (r["method"], r["metric"], r["form"]) == ("ms", "map@r", form)]
        assert float(row["mean"]) == cell[key]["map@r"]
    trials = [line for line in read_lines(out) if line["kind"] == "trial"]
    assert [len(line["epoch"]) for line in trials] == [3] * 4
    run_suite(suite, out, workers=0, say=said.append)
    assert said[-1] == f"tiny: 2 cells, 2 done; writing to {out}"


def test_mistakes_are_named(vectors: str, tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match="folds must be at least 2, got 1"):
        suite_of(vectors, folds=1)
    with pytest.raises(NearfarError, match=r"data.fold=2 must be below data.folds, which is 2"):
        configured("features", vectors, "proxy-anchor", "data.folds=2", "data.fold=2")
    with pytest.raises(NearfarError, match=r"data.folds=2 already holds out classes: set data.validation=0"):
        configured("features", vectors, "proxy-anchor", "data.folds=2", "data.fold=1", "data.validation=0.2")
    config = configured("features", vectors, "proxy-anchor", "data.folds=2")
    with pytest.raises(NearfarError, match=r"data.folds=2 needs data.fold: choose which fold"):
        train(config, tmp_path / "run")
    config = configured("features", vectors, "proxy-anchor", "data.folds=7", "data.fold=0")
    with pytest.raises(NearfarError, match=r"data.folds=7 needs at least 7 training classes, got 6"):
        train(config, tmp_path / "run")
