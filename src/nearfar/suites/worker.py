"""A process that trains cells: a configuration as a line of JSON on its input, scores as a line on its output.

When the input ends, because the bench is done or was killed, it removes what it wrote and ends, at once.
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

from nearfar.config.merge import from_dict
from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.metrics.protocols import concatenated
from nearfar.suites.code_state import code_state
from nearfar.training import Config, Run, train
from nearfar.training.allocator import keep_freed_memory
from nearfar.training.distributed.process_group import local_device
from nearfar.training.evaluate import score
from nearfar.training.initialization import InitialStateCache
from nearfar.training.prepare import readable, side_of
from nearfar.training.trainer import SAVED

AVERAGED = ("test", "untrained", "validation", "detection")
KEPT = (
    *("test", "untrained", "detection", "selected_by", "epoch", "steps", "batch", "seconds"),
    *("nearfar", "torch", "machine"),
)


def cell_scores(config: Config, folder: Path, initial_states: InitialStateCache | None = None) -> dict[str, Any]:
    """Train in a folder that is removed afterwards; gives what is kept of the run, or of the runs of all folds."""
    try:
        if config.data.folds is not None:
            return _fold_scores(config, config.data.folds, folder, initial_states)
        return _kept(train(config, folder, say=_nothing, initial_states=initial_states))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kept(run: Run) -> dict[str, Any]:
    result = run.results()
    if run.config.test and "test" not in result:
        raise NearfarError("the data has no test split to compare methods on")
    looks = [entry for entry in run.log() if entry["kind"] == "epoch" and "validation" in entry]
    chosen = [entry["validation"] for entry in looks if entry["epoch"] == result["epoch"]]
    return {
        **{key: result[key] for key in KEPT if key in result},
        "validation": chosen[-1] if chosen else result.get("validation"),
        "threads": run.config.threads,
        "code": code_state(),
    }


def _fold_scores(config: Config, folds: int, folder: Path, initial_states: InitialStateCache | None) -> dict[str, Any]:
    """MLRC's two test scores (Musgrave et al., ECCV 2020): `test` is the mean of the folds' models, `concatenated` is
    that of their embeddings, each normalized, side by side. Validation is the mean over folds, seconds are their sum.
    """
    runs = [
        train(
            replace(config, data=replace(config.data, fold=i)),
            folder / f"{i}",
            say=_nothing,
            initial_states=initial_states,
        )
        for i in range(folds)
    ]
    parts = [_kept(run) for run in runs]
    return {
        **parts[0],
        **{key: _mean([part[key] for part in parts]) for key in AVERAGED if parts[0].get(key) is not None},
        **(_tested(runs, parts) if config.test else {}),
        "epoch": [part["epoch"] for part in parts],
        "steps": sum(part["steps"] for part in parts),
        "seconds": sum(part["seconds"] for part in parts),
    }


def _tested(runs: Sequence[Run], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = [_test_embeddings(run) for run in runs]
    together = score(concatenated([rows for _, rows in found]), found[0][0], runs[0].config.metrics)
    return {"concatenated": dict(together), "folds": [part["test"] for part in parts]}


def _test_embeddings(run: Run) -> tuple[Manifest, Tensor]:
    network, manifest = run.embedder(device=local_device(run.config.device)), run.manifest().subset("test")
    side = side_of(run.config, network, manifest)
    manifest = readable(manifest, run.config.data, size=side or network.input_size, say=_nothing)
    return manifest, run.embed(manifest, network)


def _mean(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: sum(each[key] for each in tables) / len(tables) for key in tables[0]}


def _nothing(text: str) -> None:
    """What a cell says."""


def outcome(config: Config, folder: Path, initial_states: InitialStateCache | None = None) -> dict[str, Any]:
    """`cell_scores` as an entry of the results, or the error in its place."""
    try:
        entry = {"kind": "cell", **cell_scores(config, folder, initial_states)}
        json.dumps(entry, allow_nan=False)
    except NearfarError as error:
        return {"kind": "error", "message": _lasting(str(error), folder)}
    except Exception as error:  # whatever a cell does, the others go on
        return {"kind": "error", "message": _lasting(f"{type(error).__name__}: {error}", folder)}
    return entry


def _lasting(message: str, folder: Path) -> str:
    """Without what it says of files in the folder, which is gone by then."""
    shorter = re.sub(rf" \([^()]*{re.escape(str(folder))}[^()]*\)", "", message).replace(SAVED, "")
    return shorter.replace(str(folder), "the run")


def main() -> None:
    """Serve until the input ends."""
    keep_freed_memory()
    code_state()  # now, while the files are what was imported
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bench, which ends the input
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # nothing that a library prints gets among the answers
    work = Path(tempfile.mkdtemp(prefix="nearfar-bench-"))
    lines: SimpleQueue[str] = SimpleQueue()
    initial_states = InitialStateCache()

    def leave(*_: object) -> None:
        shutil.rmtree(work, ignore_errors=True)
        os._exit(0)

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put("")  # wakes the main thread where it waits
        _thread.interrupt_main(signal.SIGTERM)  # and stops it in a cell, so that nothing is written while it cleans up

    signal.signal(signal.SIGTERM, leave)
    Thread(target=listen, daemon=True).start()
    with suppress(BrokenPipeError):  # the bench was killed, which the listener may not have seen yet
        while line := lines.get():
            answers.write(json.dumps(outcome(from_dict(json.loads(line)), work / "run", initial_states)) + "\n")
            answers.flush()
    leave()


if __name__ == "__main__":
    main()
