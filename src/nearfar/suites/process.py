"""The process that trains cells for a bench: started when it is needed, and anew after one that died."""

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


class Worker:
    """A process of `suite_worker`, started when there is something to do and again if it died."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        self._lock = Lock()
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed in stop

    def outcome(self, config: Config) -> Outcome:
        """Train a cell; a process that dies of it is an error of this cell alone."""
        try:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(config.to_dict()) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if answer.endswith("\n"):
                found: Outcome = json.loads(answer)
                return found
            code = process.wait()
            return {"kind": "error", "message": f"the process ended with code {code}{self._last_words()}"}
        except Exception as error:  # a thread that ended without an answer would leave the bench waiting
            return {"kind": "error", "message": f"{type(error).__name__}: {error}"}

    def _running(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise NearfarError("the bench was stopped")
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "nearfar.suites.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._said,
                    encoding="utf-8",
                    env={**os.environ, "OMP_NUM_THREADS": str(self.threads)},
                )
            return self._process

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().strip().splitlines()
        self._said.seek(0)
        self._said.truncate()  # the next process has words of its own
        return f": {lines[-1]}" if lines else ""

    def stop(self) -> None:
        """End the process, whatever it is doing; its input ends, so it cleans up after itself."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                assert self._process.stdin is not None
                with suppress(OSError):  # it died before it had read everything
                    self._process.stdin.close()
                try:
                    self._process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
        self._said.close()
