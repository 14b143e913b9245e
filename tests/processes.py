"""Run functions in forked processes, which start in milliseconds because everything is imported already."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

FORK = get_context("fork")


def start(function: Callable[..., object], *arguments: Any) -> BaseProcess:
    """Call a function in a forked process. Its exit code is 1 if the function raises an exception."""

    def call() -> None:
        try:
            function(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    process = FORK.Process(target=call)
    process.start()
    return process


def exit_codes(processes: list[BaseProcess], seconds: float = 60) -> list[int | None]:
    """Wait for processes and return their exit codes. A process that does not end in time has None, and is killed."""
    for process in processes:
        process.join(seconds)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes
