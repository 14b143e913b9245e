"""The peer's rows of a suite: the same scores where the formula is the same, in the same loop, with what was tuned."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from nearfar.cli import main
from nearfar.suites.cells import CellMaker
from nearfar.suites.peer import add_peers, peer_name
from nearfar.suites.results import read_lines, read_results
from nearfar.suites.run import run_suite
from nearfar.suites.suite import Suite
from nearfar.suites.suite_file import suite_from_dict
from nearfar.suites.table import table

pytest.importorskip(
    "pytorch_metric_learning", reason="pytorch-metric-learning is not installed: pip install -e '.[peers]'"
)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    labels = np.arange(160) // 10
    rows = rng.normal(size=(16, 12))[labels] + 0.9 * rng.normal(size=(160, 12))
    path = tmp_path_factory.mktemp("data") / "vectors.npz"
    split = np.where(labels < 10, "train", "test")
    np.savez(path, features=rows.astype(np.float32), labels=labels, split=split)
    return str(path)


def plain(source: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "data": [{"name": "here", "source": source}],
        "methods": [{"name": "ms", "recipe": "multi-similarity"}, {"name": "proxy-anchor"}, {"name": "mpa"}],
        "baseline": "ms",
        "seeds": [0, 1],
        "settings": ["steps=3", "model.dim=8", "batches.classes=4", "batches.per_class=4", "batches.size=16"],
        **changes,
    }


def suite_of(source: str, **changes: Any) -> Suite:
    return suite_from_dict(plain(source, **changes))


def test_same_formulas_end_at_the_same_scores(vectors: str, tmp_path: Path) -> None:
    out, said = tmp_path / "out.jsonl", []
    assert run_suite(suite_of(vectors), out, workers=0, peer=True, say=said.append) == 0
    assert (
        "mpa: not run with pytorch-metric-learning on here: loss: pytorch-metric-learning has no counterpart of "
        "MPALoss: remove loss.peer"
    ) in said
    results = read_results(out)
    for method in ("ms", "proxy-anchor"):
        for seed in (0, 1):
            ours, theirs = (results.cell("here", name, None, seed) for name in (method, peer_name(method)))
            assert ours is not None
            assert theirs is not None
            assert ours["id"] != theirs["id"]
            assert theirs["untrained"] == pytest.approx(ours["untrained"], abs=1e-9)
            assert theirs["test"] == pytest.approx(ours["test"], abs=1e-6)
            assert theirs["test"] != pytest.approx(ours["untrained"], abs=1e-6), "nothing was trained"
            assert theirs["seconds"] >= 0
    text = table(results)
    assert "Rows marked (pytorch-metric-learning)" in text
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(table(results, "csv")))}
    twin = rows[peer_name("proxy-anchor")]
    assert twin["baseline"] == "proxy-anchor"
    assert float(twin["difference"]) == pytest.approx(0, abs=1e-6)
    assert float(twin["seconds"]) >= 0
    assert peer_name("mpa") not in rows


def test_cells_of_ours_keep_their_ids(vectors: str) -> None:
    suite = suite_of(vectors)
    maker = CellMaker(suite)
    before = {(cell.method, cell.seed): cell.id for cell in maker.cells()}
    maker.suite, _, _ = add_peers(maker, {})
    after = {(cell.method, cell.seed): cell.id for cell in maker.cells()}
    assert before.items() <= after.items()
    assert len(after) == len(before) + 4


def test_the_peer_has_the_settings_that_were_tuned_for_ours(vectors: str, tmp_path: Path) -> None:
    methods = [{"name": "ms", "recipe": "multi-similarity", "tune": {"loss.beta": [30.0, 40.0]}}]
    suite = suite_of(vectors, methods=methods, seeds=[0], tune={"settings": ["data.validation=0.3"]})
    out = tmp_path / "out.jsonl"
    assert run_suite(suite, out, workers=0, peer=True, say=lambda _: None) == 0
    results = read_results(out)
    assert results.tuned["here", peer_name("ms")] == results.tuned["here", "ms"]
    assert sum(line["kind"] == "trial" for line in read_lines(out)) == 2, "something was tuned for the peer"


def test_methods_that_weight_samples_have_no_peer(vectors: str) -> None:
    suite = suite_of(vectors, methods=[{"name": "ms", "recipe": "multi-similarity"}, {"name": "bspml"}])
    found, _, told = add_peers(CellMaker(suite), {})
    assert [each.name for each in found.methods] == ["ms", peer_name("ms"), "bspml"]
    assert told == [
        "bspml: not run with pytorch-metric-learning on here: pacing.name=self-paced weights samples, which "
        "pytorch-metric-learning does not support"
    ]


def test_a_peer_of_another_formula_is_told_in_the_table(vectors: str, tmp_path: Path) -> None:
    suite, out = suite_of(vectors, methods=[{"name": "margin"}], baseline=None, seeds=[0]), tmp_path / "out.jsonl"
    assert run_suite(suite, out, workers=0, peer=True) == 0
    assert f"{peer_name('margin')}: the formula differs from ours: " in table(read_results(out))


def test_a_method_has_a_peer_where_any_data_allows_it_in_whatever_order(vectors: str) -> None:
    data = [{"name": "a", "source": vectors, "settings": ["loss.neg_threshold=0.3"]}, {"name": "b", "source": vectors}]
    for order in (data, data[::-1]):
        suite = suite_of(vectors, data=order, methods=[{"name": "ms", "recipe": "multi-similarity"}])
        found, _, told = add_peers(CellMaker(suite), {})
        assert [each.name for each in found.methods] == ["ms", peer_name("ms")]
        assert [line.split(": ")[:2] for line in told] == [["ms", "not run with pytorch-metric-learning on a"]]


def test_the_command(vectors: str, tmp_path: Path) -> None:
    file, out = tmp_path / "suite.yaml", tmp_path / "out.jsonl"
    file.write_text(yaml.safe_dump(plain(vectors)))
    words = ["bench", "run", str(file), "--out", str(out), "--peer", "--method", "ms", "--seed", "0"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    made = {line["method"] for line in read_lines(out) if line["kind"] == "cell"}
    assert made == {"ms", peer_name("ms")}
