"""A process that trains cells: a configuration as a line of JSON on its input, scores as a line on its output.

When the input ends, because the bench is done or was killed, it removes what it wrote and ends, at once.
"""

from __future__ import annotations

import _thread
import json
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from nearfar.errors import NearfarError
from nearfar.training import Config, train
from nearfar.training.resolve import from_dict

KEPT = ("test", "untrained", "detection", "selected_by", "epoch", "steps", "seconds", "nearfar", "torch", "machine")


def cell_scores(config: Config, folder: Path) -> dict[str, Any]:
    """Train in a folder that is removed afterwards; gives what is kept of the run."""
    try:
        run = train(config, folder, say=lambda _: None)
        result = run.results()
        if "test" not in result:
            raise NearfarError("the data has no test split to compare methods on")
        looks = [entry for entry in run.log() if entry["kind"] == "epoch" and "validation" in entry]
        chosen = [entry["validation"] for entry in looks if entry["epoch"] == result["epoch"]]
        return {
            **{key: result[key] for key in KEPT if key in result},
            "validation": chosen[-1] if chosen else result.get("validation"),
            "threads": config.threads,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def outcome(config: Config, folder: Path) -> dict[str, Any]:
    """`cell_scores` as an entry of the results, or the error in its place."""
    try:
        entry = {"kind": "cell", **cell_scores(config, folder)}
        json.dumps(entry, allow_nan=False)
    except NearfarError as error:
        return {"kind": "error", "message": str(error)}
    except Exception as error:  # whatever a cell does, the others go on
        return {"kind": "error", "message": f"{type(error).__name__}: {error}"}
    return entry


def main() -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bench, which ends the input
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # nothing that a library prints gets among the answers
    work = Path(tempfile.mkdtemp(prefix="nearfar-bench-"))
    lines: SimpleQueue[str] = SimpleQueue()

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
            answers.write(json.dumps(outcome(from_dict(json.loads(line)), work / "run")) + "\n")
            answers.flush()
    leave()


if __name__ == "__main__":
    main()
