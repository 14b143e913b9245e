"""Run the cells of a suite, in this process or in several worker processes."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from nearfar.errors import NearfarError
from nearfar.suites.cells import Cell
from nearfar.suites.config_id import config_id
from nearfar.suites.worker import run_cell
from nearfar.suites.worker_process import Outcome, WorkerProcess
from nearfar.training import Config
from nearfar.training.initialization import InitialStateCache


def run_cells(cells: list[Cell], workers: int, threads: int) -> Iterator[tuple[Cell, Outcome]]:
    """Run cells, and yield each cell and its outcome when it finishes. With 0 workers, cells run in this process."""
    cells = [replace(cell, config=_without_extras(cell.config, threads)) for cell in cells]
    if workers == 0:
        initial_states = InitialStateCache()
        with tempfile.TemporaryDirectory(prefix="nearfar-bench-") as folder:
            for cell in cells:
                yield cell, _check_files(cell) or run_cell(cell.config, Path(folder) / "run", initial_states)
        return
    pending = deque(cells)
    finished: SimpleQueue[tuple[Cell, Outcome]] = SimpleQueue()
    pool = [WorkerProcess(threads) for _ in range(min(workers, len(cells)))]

    def serve(worker: WorkerProcess) -> None:
        while True:
            try:
                cell = pending.popleft()
            except IndexError:
                return
            finished.put((cell, _check_files(cell) or worker.run(cell.config)))

    serving = [Thread(target=serve, args=(worker,), daemon=True) for worker in pool]
    try:
        for thread in serving:
            thread.start()
        for _ in cells:
            yield finished.get()
    finally:
        pending.clear()
        for worker in pool:
            worker.stop()


def _check_files(cell: Cell) -> Outcome | None:
    """Return an error if the cell's weight file or image archive has changed since its id was computed, else None."""
    try:
        if cell.id in (config_id(cell.config), config_id(cell.config, files=True)):
            return None
        weights, source = cell.config.model.pretrained, cell.config.data.source
        setting = f"model.pretrained={weights}" if isinstance(weights, str) else f"data.source={source}"
        message = f"{setting}: the file has changed since the suite was started: run the suite again"
    except NearfarError as error:
        message = str(error)
    return {"kind": "error", "message": message}


def _without_extras(config: Config, threads: int) -> Config:
    """Return a configuration with this number of threads, and without periodic checkpoints and trackers."""
    return replace(config, threads=threads, save_every=1e9, track=())
