"""Several processes that serve one run on the same port.

The processes share the sockets, and the kernel hands each connection to one process. The processes also share the
memory-mapped vectors. A process that ends unexpectedly is replaced.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from typing import Protocol

from nearfar.environment import environment_variable
from nearfar.errors import NearfarError

# Copied from nearfar.serve.metrics, because that module must not be imported before the variable is set.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# torch, faiss and NumPy read this variable when a process loads them. `torch.set_num_threads` is not enough, because
# OpenMP applies it only to the calling thread: faiss would use all cores in the thread that searches.
THREADS_VARIABLE = "OMP_NUM_THREADS"
START_SECONDS = 600.0
# At shutdown, requests have GRACE_SECONDS to finish. A process that is still running after END_SECONDS is killed.
GRACE_SECONDS = 25
END_SECONDS = GRACE_SECONDS + 5
# Use spawn instead of fork, because the threads of torch do not work in a forked process.
_spawn = multiprocessing.get_context("spawn")


class Work(Protocol):
    """A function that serves on sockets until a signal ends the process. It calls `on_start` once it is ready."""

    def __call__(self, sockets: list[socket.socket], on_start: Callable[[], object]) -> None: ...


class _Worker:
    """A process that serves, and an event that is set once it is ready."""

    def __init__(self, work: Work, sockets: list[socket.socket]) -> None:
        self.is_ready: Event = _spawn.Event()
        self.process: SpawnProcess = _spawn.Process(target=_run, args=(work, sockets, self.is_ready), daemon=True)
        self.process.start()


def serve_with_workers(work: Work, sockets: list[socket.socket], *, count: int, on_start: Callable[[], object]) -> None:
    """Serve with several processes until this process is interrupted.

    The processes divide the cores: unless OMP_NUM_THREADS is set, each computes with `cores / count` threads.

    Args:
        work: The function that each process runs. It must be picklable.
        sockets: Bound sockets.
        count: Number of processes.
        on_start: A function that is called once all processes accept connections.

    Raises:
        NearfarError: If a process ends before it is ready, or is not ready after ten minutes.
    """
    with environment_variable(THREADS_VARIABLE, str(threads_per_process(count)), replace=False), _metrics_folder():
        workers: list[_Worker] = []
        try:
            workers += [_Worker(work, sockets) for _ in range(count)]
            for worker in workers:
                _wait_until_ready(worker)
            on_start()
            while True:
                connection.wait([worker.process.sentinel for worker in workers])
                for position, worker in enumerate(workers):
                    if not worker.process.is_alive():
                        print(f"process {worker.process.pid} ended and is replaced", file=sys.stderr, flush=True)
                        workers[position] = _Worker(work, sockets)
                        _forget_metrics(worker.process.pid)
                        _wait_until_ready(workers[position])
        finally:
            _end(workers)


def _run(work: Work, sockets: list[socket.socket], is_ready: Event) -> None:
    """Serve in a worker process, and end this process if its parent has been killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        work(sockets, is_ready.set)
    except NearfarError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def _wait_until_ready(worker: _Worker) -> None:
    waited = 0.0
    while not worker.is_ready.wait(0.2):
        waited += 0.2
        if not worker.process.is_alive():
            raise NearfarError("a process of the server did not start: see its error message above")
        if waited > START_SECONDS:
            raise NearfarError(f"a process of the server was not ready after {START_SECONDS:g} seconds")


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(END_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def threads_per_process(count: int) -> int:
    """Return the number of threads with which each of `count` processes computes, at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))  # fewer than os.cpu_count() in a container that may not use all cores
    except AttributeError:  # only Linux has this function
        cores = os.cpu_count() or 1
    return max(1, cores // count)


@contextmanager
def _metrics_folder() -> Iterator[None]:
    """Create a temporary folder through which the processes share their metrics."""
    with (
        tempfile.TemporaryDirectory(prefix="nearfar-metrics-") as folder,
        environment_variable(FOLDER_VARIABLE, folder),
    ):
        yield


def _forget_metrics(process: int | None) -> None:
    """Remove the gauges (Prometheus metrics) of a process that has ended. `process` is its id."""
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]
