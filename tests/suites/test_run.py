"""Running a suite: resumed after a kill to equal tables, in any number of processes, past cells that fail."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nearfar.cli import main
from nearfar.config.merge import resolve
from nearfar.errors import NearfarError
from nearfar.suites.cells import suite_cells
from nearfar.suites.code_state import code_state
from nearfar.suites.config_id import config_id
from nearfar.suites.results import read_lines, read_results
from nearfar.suites.run import run_suite
from nearfar.suites.suite import Suite
from nearfar.suites.suite_file import suite_from_dict
from nearfar.suites.table import table
from nearfar.suites.worker_pool import _check_files
from nearfar.suites.worker_process import WorkerProcess


def suite_of(source: str, *, steps: int = 4, seeds: tuple[int, ...] = (0, 1)) -> Suite:
    return suite_from_dict(
        {
            "name": "tiny",
            "data": [{"name": "here", "source": source}],
            "methods": [{"name": "ms", "recipe": "multi-similarity"}, {"name": "proxy-anchor"}],
            "baseline": "ms",
            "seeds": list(seeds),
            "settings": [f"steps={steps}", "data.validation=0.34", "batches.classes=2", "batches.per_class=4"],
        }
    )


def told(path: Path) -> list[dict[str, str]]:
    """The table without the seconds."""
    rows = list(csv.DictReader(io.StringIO(table(read_results(path), "csv"))))
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def cells(path: Path) -> list[str]:
    return [line["id"] for line in read_lines(path) if line["kind"] == "cell"]


def wait_for(what: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_a_cell_keeps_scores_and_how_they_came_about(vectors: str, tmp_path: Path) -> None:
    out, said = tmp_path / "r.jsonl", list[str]()
    assert run_suite(suite_of(vectors), out, workers=0, say=said.append) == 0
    assert len(said) == 5
    assert said[1].startswith("[1/4] here, ms, seed 0: recall@1 ")
    assert said[-1].endswith("; 0 s left")
    entry = read_lines(out)[1]
    assert entry["selected_by"] == "validation"
    assert set(entry["validation"]) >= {"recall@1", "map@r"}
    assert entry["threads"] == 1
    assert entry["test"]["map@r"] != entry["untrained"]["map@r"]
    assert {"nearfar", "torch", "machine", "seconds", "id"} <= set(entry)
    assert vectors not in out.read_text().split("\n", 1)[1]


def test_what_is_there_is_not_run_again(vectors: str, tmp_path: Path) -> None:
    out, said = tmp_path / "r.jsonl", list[str]()
    run_suite(suite_of(vectors, seeds=(0,)), out, workers=0, say=said.append)
    before = out.read_bytes()
    run_suite(suite_of(vectors, seeds=(0,)), out, workers=0, say=said.append)
    assert out.read_bytes() == before
    assert said[-1].startswith("tiny: 2 cells, 2 done")
    run_suite(suite_of(vectors), out, workers=0, say=said.append)
    assert len(cells(out)) == len(set(cells(out))) == 4
    run_suite(suite_of(vectors, steps=5), out, workers=0, say=said.append)
    assert len(set(cells(out))) == 8


def test_processes_give_the_same_tables(vectors: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    run_suite(suite_of(vectors), one, workers=0)
    run_suite(suite_of(vectors), two, workers=2)
    assert told(one) == told(two)
    assert len(told(one)) == 6


def test_weights_that_are_written_anew_while_it_runs_are_an_error_of_the_cell(vectors: str, tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    cell = suite_cells(suite_of(vectors))[0]
    config = replace(cell.config, model=replace(cell.config.model, pretrained=str(file)))
    for files in (False, True):
        file.write_bytes(b"one")
        mine = replace(cell, config=replace(config, threads=1, save_every=1e9), id=config_id(config, files=files))
        assert _check_files(mine) is None
        file.write_bytes(b"two")
        assert "has changed since the suite was started: run the suite again" in (_check_files(mine) or {})["message"]
    file.unlink()
    assert "cannot be read" in (_check_files(mine) or {})["message"]


@pytest.fixture(scope="module")
def whole(vectors: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Suite, Path]:
    """A suite of ten cells, and its results without an interruption."""
    suite, out = suite_of(vectors, seeds=(0, 1, 2, 3, 4)), tmp_path_factory.mktemp("whole") / "r.jsonl"
    run_suite(suite, out, workers=0)
    return suite, out


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_and_started_again_gives_equal_tables(whole: tuple[Suite, Path], tmp_path: Path, workers: int) -> None:
    (suite, uninterrupted), out, work = whole, tmp_path / "r.jsonl", tmp_path / "work"
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite.to_dict()))
    work.mkdir()
    words = ["bench", "run", str(tmp_path / "suite.yaml"), "--out", str(out)]
    command = [sys.executable, "-m", "nearfar", *words, "--workers", str(workers)]
    count = random.Random(workers).randint(1, 4)
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(work)}, stdout=subprocess.DEVNULL) as bench:
        wait_for(lambda: bench.poll() is not None or (out.is_file() and len(cells(out)) >= count))
        bench.kill()
    done = cells(out)
    assert count <= len(done) < 10
    wait_for(lambda: not list(work.iterdir()))  # the processes noticed, and left nothing
    with out.open("ab") as file:
        file.write(b'{"kind": "cell", "id": "' + done[0].encode())
    assert CliRunner().invoke(main, words).exit_code == 0
    assert cells(out)[: len(done)] == done
    assert len(cells(out)) == len(set(cells(out))) == 10
    assert told(out) == told(uninterrupted)


def test_a_cell_that_fails_is_told_and_tried_again(vectors: str, tmp_path: Path) -> None:
    out, said = tmp_path / "r.jsonl", list[str]()
    suite = suite_of(vectors, seeds=(0,))
    broken = replace(suite.methods[1], settings=("batches.name=profs", "batches.rho=-1"))
    wrong = replace(suite, methods=(suite.methods[0], broken))
    for times in (1, 2):
        assert run_suite(wrong, out, workers=0, say=said.append) == 1
        assert sum(line["kind"] == "error" for line in read_lines(out)) == times
    assert len(cells(out)) == 1
    assert "failed, batches: rho must be" in said[-1]
    assert "Missing: proxy-anchor, seed 0: batches: rho must be" in table(read_results(out))


def test_a_cell_that_diverges_does_not_name_a_file_that_is_gone(vectors: str, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    suite = suite_of(vectors, seeds=(0,))
    diverging = replace(suite.methods[0], recipe="lifted", settings=("optimizer.lr=1e30", "steps=40"))
    assert run_suite(replace(suite, methods=(diverging,), baseline=None), out, workers=0, say=lambda _: None) == 1
    message = next(line["message"] for line in read_lines(out) if line["kind"] == "error")
    assert re.fullmatch(r"at step \d+: .+; if training diverged, .+clip_norm=1", message)
    assert "failed-batch" not in message


def test_a_process_that_dies_is_an_error_of_its_cell_alone(vectors: str) -> None:
    settings = [f"data.source={vectors}", "steps=3", "batches.classes=2", "batches.per_class=4"]
    config = resolve("features", width=16, recipe="multi-similarity", settings=settings)
    worker, found = WorkerProcess(threads=1), list[dict[str, Any]]()
    try:
        thread = Thread(target=lambda: found.append(worker.run(replace(config, steps=1_000_000))))
        thread.start()
        wait_for(lambda: worker._process is not None)
        assert worker._process is not None
        worker._process.kill()
        thread.join(60)
        assert found == [{"kind": "error", "message": "the process exited with code -9"}]
        assert worker.run(config)["kind"] == "cell"
    finally:
        worker.stop()
    assert worker.run(config)["message"].endswith("the suite was stopped")


def test_data_run_one_by_one_stays_in_the_tables(vectors: str, drawings: str, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    suite = suite_of(vectors, seeds=(0,))
    both = replace(suite, data=(*suite.data, replace(suite.data[0], name="there", source=None)))
    run_suite(both, out, only=("here",), workers=0)
    assert "Datasets that were not run: there." in table(read_results(out))
    assert {row["data"] for row in told(out)} == {"here"}
    run_suite(both, out, only=("there",), sources={"there": drawings}, workers=0)
    assert [row["n"] for row in told(out)] == ["1"] * 12
    # what is asked of other data does not matter, what is asked of these does
    more = replace(both, data=(*both.data, replace(suite.data[0], name="elsewhere", source=None)))
    run_suite(more, out, only=("there",), sources={"there": drawings}, workers=0)
    assert {row["data"] for row in told(out)} == {"here", "there"}
    changed = replace(more, data=(replace(more.data[0], settings=("ema=0.5",)), *more.data[1:]))
    run_suite(changed, out, only=("there",), sources={"there": drawings}, workers=0)
    assert {row["data"] for row in told(out)} == {"there"}


def test_some_methods_and_seeds_first_and_the_rest_stays_asked_for(vectors: str, tmp_path: Path) -> None:
    out, suite = tmp_path / "r.jsonl", suite_of(vectors)
    run_suite(suite, out, methods=("ms",), seeds=(1,), workers=0)
    found = [line for line in read_lines(out) if line["kind"] == "cell"]
    assert [(line["method"], line["seed"]) for line in found] == [("ms", 1)]
    assert "not run" in table(read_results(out)).lower()
    run_suite(suite, out, workers=0)
    assert len(cells(out)) == len(set(cells(out))) == 4
    unknown = r"the suite has no method 'msx'; did you mean 'ms'\? Known: ms, proxy-anchor"
    with pytest.raises(NearfarError, match=unknown):
        run_suite(suite, out, methods=("msx",), workers=0)
    with pytest.raises(NearfarError, match=r"the suite has no seed 7. Known: 0, 1"):
        run_suite(suite, out, seeds=(7,), workers=0)


def test_from_the_command_line(vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree = suite_of("$NOWHERE", seeds=(0,)).to_dict() | {"sweep": {"data.noise.rate": [0, 0.3]}}
    Path("s.yaml").write_text(yaml.safe_dump(tree))

    def nearfar(*words: str) -> tuple[int, str]:
        found = CliRunner().invoke(main, ["bench", *words])
        return found.exit_code, found.output

    assert nearfar("run", "s.yaml", "--data", "here")[0] == 2
    code, text = nearfar("run", "s.yaml")
    assert code == 1
    assert "set $NOWHERE, pass --data here=PATH" in text
    where = ["s.yaml", "--data", f"here={vectors}", "--set", "steps=3"]
    code, text = nearfar("run", *where, "--method", "ms", "--seed", "0")
    assert code == 0, text
    assert "[2/2]" in text
    code, text = nearfar("run", *where, "--workers", "2")
    assert code == 0, text
    assert "[2/2]" in text
    assert "nearfar bench table runs/tiny.jsonl" in text
    first = json.loads(Path("runs/tiny.jsonl").read_text().splitlines()[1])
    assert (first["steps"], first["batch"], first["code"]) == (3, 8, code_state())
    code, text = nearfar("table", "runs/tiny.jsonl")
    assert code == 0
    assert "steps=3" in text
    assert f"Code hashes: {code_state()}." in text
    for options, start in (
        (("--format", "html", "--out", "t.txt"), "<!doctype html>"),
        (("--out", "t.html"), "<!doctype html>"),
        (("--out", "t.tex"), "% tiny"),
        (("--out", "t.csv"), "suite,data,"),
        (("--out", "t.md"), "# tiny"),
    ):
        assert nearfar("table", "runs/tiny.jsonl", *options) == (0, "")
        assert Path(options[-1]).read_text().startswith(start)
    code, text = nearfar("figure", "runs/tiny.jsonl", "--x", "data.noise.rate", "--metric", "map@r")
    assert code == 0
    assert "<svg" in text
    code, text = nearfar("figure", "runs/tiny.jsonl", "--x", "data.noise.rate", "--out", "f.png")
    assert code == 2
    assert "must be an .svg file, got f.png" in text
    code, text = nearfar("run", "s.yaml", "--data", f"here={vectors}", "--set", "model.head=none-such")
    assert code == 1
    assert "4 cells failed" in text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"metrics": ["recal@1", "map@r"]}, "here, ms: .*recal@1"),
        ({"settings": ["steps=3", "loss.name=tripled"]}, "here, ms: .*tripled"),
        ({"settings": ["steps=3", "loss.alfa=3"]}, "here, ms: .*'alfa'.*did you mean 'alpha'"),
        ({"settings": ["steps=3", "loss.alpha={a: 1}"]}, "here, ms: .*alpha={'a': 1}"),
    ],
)
def test_a_loss_or_metric_that_no_run_could_have_is_told_at_once(
    change: dict[str, Any], told: str, vectors: str, tmp_path: Path
) -> None:
    methods = [{"name": "ms", "recipe": "multi-similarity"}]
    tree = {"name": "t", "data": [{"name": "here", "source": vectors}], "methods": methods}
    out = tmp_path / "r.jsonl"
    with pytest.raises(NearfarError, match=told):
        run_suite(suite_from_dict({**tree, **change}), out, workers=0)
    assert not out.exists()
