"""The parent's side of a worker process. The process is started when it is needed, and restarted if it has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from threading import Lock
from typing import Any

from nearfar.errors import NearfarError
from nearfar.training import Config

Outcome = dict[str, Any]


class WorkerProcess:
    """A worker process (`nearfar.suites.worker`) that runs one cell at a time.

    Args:
        threads: number of torch threads of the process.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        self._lock = Lock()
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed in stop

    def run(self, config: Config) -> Outcome:
        """Train a cell and return its scores or an error. If the process is killed, only this cell fails."""
        try:
            process = self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(config.to_dict()) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if answer.endswith("\n"):
                outcome: Outcome = json.loads(answer)
                return outcome
            code = process.wait()
            return {"kind": "error", "message": f"the process exited with code {code}{self._last_line()}"}
        except Exception as error:  # without an outcome for each cell, the parent would wait forever
            return {"kind": "error", "message": f"{type(error).__name__}: {error}"}

    def _start(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise NearfarError("the suite was stopped")
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "nearfar.suites.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._stderr,
                    encoding="utf-8",
                    env={**os.environ, "OMP_NUM_THREADS": str(self.threads)},
                )
            return self._process

    def _last_line(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().strip().splitlines()
        self._stderr.seek(0)
        self._stderr.truncate()  # so that the next process starts with an empty file
        return f": {lines[-1]}" if lines else ""

    def stop(self) -> None:
        """End the worker process.

        The worker removes its files and exits when its stdin is closed. If it is still running after 10 seconds, it is
        killed.
        """
        with self._lock:
            self._stopped = True
            if self._process is not None:
                assert self._process.stdin is not None
                with suppress(OSError):  # the process died with unread input
                    self._process.stdin.close()
                try:
                    self._process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
        self._stderr.close()
