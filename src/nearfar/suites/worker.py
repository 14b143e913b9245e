"""A process that trains the cells of a suite. It reads configurations from stdin and writes scores to stdout as JSON.

Stdin is closed when the suite is done or when the process that runs the suite is killed. The worker then removes its
files and exits at once.
"""

from __future__ import annotations

import _thread
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from torch import Tensor

import nearfar.compat.peer  # noqa: F401 - registers loss.peer
from nearfar.config.merge import from_dict
from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.metrics.protocols import concatenate
from nearfar.suites.code_state import code_state
from nearfar.training import Config, Run, train
from nearfar.training.allocator import keep_freed_memory
from nearfar.training.distributed.process_group import local_device
from nearfar.training.evaluate import score
from nearfar.training.initialization import InitialStateCache
from nearfar.training.step_error import SAVED

AVERAGED = ("test", "untrained", "validation", "detection")
SAVED_KEYS = (
    *("test", "test_last", "untrained", "detection", "selected_by", "epoch", "steps", "batch", "seconds"),
    *("nearfar", "torch", "machine"),
)


def train_cell(config: Config, folder: Path, initial_states: InitialStateCache | None = None) -> dict[str, Any]:
    """Train the run of a cell, or one run per fold, and return the scores.

    Args:
        config: the configuration of the cell.
        folder: run directory, which is removed at the end.
        initial_states: cache of results from before the first step, which several runs can share.
    """
    try:
        if config.data.folds is not None:
            return _train_folds(config, config.data.folds, folder, initial_states)
        return _collect(train(config, folder, say=_ignore, plan=False, initial_states=initial_states))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _collect(run: Run) -> dict[str, Any]:
    result = run.results()
    if run.config.test and "test" not in result:
        raise NearfarError("the data has no test split, which a suite needs to compare methods")
    validation = [
        entry["validation"]
        for entry in run.log()
        if entry["kind"] == "epoch" and "validation" in entry and entry["epoch"] == result["epoch"]
    ]
    return {
        **{key: result[key] for key in SAVED_KEYS if key in result},
        "validation": validation[-1] if validation else result.get("validation"),
        "threads": run.config.threads,
        "code": code_state(),
    }


def _train_folds(config: Config, folds: int, folder: Path, initial_states: InitialStateCache | None) -> dict[str, Any]:
    """Train one network per fold and return both test scores of Musgrave et al. (ECCV 2020).

    `test` is the mean score of the networks. `concatenated` is the score of their normalized embeddings, concatenated.
    Validation scores are averaged over folds; steps and seconds are summed.
    """
    runs = [
        train(
            replace(config, data=replace(config.data, fold=i)),
            folder / f"{i}",
            say=_ignore,
            plan=False,
            initial_states=initial_states,
        )
        for i in range(folds)
    ]
    parts = [_collect(run) for run in runs]
    return {
        **parts[0],
        **{key: _mean([part[key] for part in parts]) for key in AVERAGED if parts[0].get(key) is not None},
        **(_score_folds(runs, parts) if config.test else {}),
        "epoch": [part["epoch"] for part in parts],
        "steps": sum(part["steps"] for part in parts),
        "seconds": sum(part["seconds"] for part in parts),
    }


def _score_folds(runs: Sequence[Run], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    embedded = [_embed_test_split(run) for run in runs]
    embeddings = concatenate([vectors for _, vectors in embedded])
    scores = score(embeddings, embedded[0][0], runs[0].config.metrics)
    return {"concatenated": dict(scores), "folds": [part["test"] for part in parts]}


def _embed_test_split(run: Run) -> tuple[Manifest, Tensor]:
    network = run.embedder(device=local_device(run.config.device))
    manifest = run.load_split("test", network, say=_ignore)
    return manifest, run.embed(manifest, network)


def _mean(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: sum(table[key] for table in tables) / len(tables) for key in tables[0]}


def _ignore(text: str) -> None:
    """Discard a progress message."""


def run_cell(config: Config, folder: Path, initial_states: InitialStateCache | None = None) -> dict[str, Any]:
    """Train a cell and return its entry for the results file: scores, or an error message. See `train_cell`."""
    try:
        entry = {"kind": "cell", **train_cell(config, folder, initial_states)}
        json.dumps(entry, allow_nan=False)
    except NearfarError as error:
        return {"kind": "error", "message": _without_paths(str(error), folder)}
    except Exception as error:  # one failing cell must not stop the others
        return {"kind": "error", "message": _without_paths(f"{type(error).__name__}: {error}", folder)}
    return entry


def _without_paths(message: str, folder: Path) -> str:
    """Remove references to files in the temporary folder, because it is deleted after the run."""
    shorter = re.sub(rf" \([^()]*{re.escape(str(folder))}[^()]*\)", "", message).replace(SAVED, "")
    return shorter.replace(str(folder), "the run")


def main() -> None:
    """Train the cells that arrive on stdin, until stdin is closed."""
    keep_freed_memory()
    code_state()  # compute and cache the hash now, before the source files can change
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the parent closes stdin, which ends this process
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # redirect the printed output of libraries to stderr, because stdout is for results only
    folder = Path(tempfile.mkdtemp(prefix="nearfar-bench-"))
    lines: SimpleQueue[str] = SimpleQueue()
    initial_states = InitialStateCache()

    def leave(*_: object) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put("")  # wakes the main thread if it is waiting for a line
        _thread.interrupt_main(signal.SIGTERM)  # calls `leave` in the main thread, even during training

    signal.signal(signal.SIGTERM, leave)
    Thread(target=listen, daemon=True).start()
    with suppress(BrokenPipeError):  # raised by write if the parent was killed
        while line := lines.get():
            output.write(json.dumps(run_cell(from_dict(json.loads(line)), folder / "run", initial_states)) + "\n")
            output.flush()
    leave()


if __name__ == "__main__":
    main()
