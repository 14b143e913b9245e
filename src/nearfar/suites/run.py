"""`nearfar bench run`: the cells of a suite that have no scores yet, in one or several processes."""

from __future__ import annotations

import json
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from nearfar.errors import NearfarError
from nearfar.formatting import duration
from nearfar.suites.cells import Cell, CellMaker, Chosen, check_named, check_parts, config_id
from nearfar.suites.columns import ON_TEST
from nearfar.suites.peer import method_of, with_peers
from nearfar.suites.process import Outcome, Worker
from nearfar.suites.results import ResultsFile
from nearfar.suites.suite import Suite, suite_from_dict
from nearfar.suites.tune import choose, suite_trials, trial_entry, tuned_places
from nearfar.suites.worker import outcome
from nearfar.training import Config
from nearfar.training.initialization import InitialStateCache

NO_TRIAL = "every trial failed, so nothing can be chosen; the last"


def run_suite(
    suite: Suite,
    out: Path,
    *,
    given: Mapping[str, str] | None = None,
    only: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    workers: int = 1,
    threads: int = 1,
    peer: bool = False,
    say: Callable[[str], object] = print,
) -> int:
    """Run what has no scores in `out` yet and append it there; gives the number of cells that failed.

    given, only: see `CellMaker`. methods, seeds: those to run now; the rest stays asked for. workers: processes; 0
    trains in this one. threads: of torch in each. peer: see `suite_peer`. A cell that failed before is tried again.
    """
    check_named("method", methods, [each.name for each in suite.methods])
    for seed in seeds:
        if seed not in suite.seeds:
            raise NearfarError(f"the suite has no seed {seed}. Known: {', '.join(map(str, suite.seeds))}")
    maker = CellMaker(suite, given=given, only=only)
    check_parts(maker.cells())  # a mistake in the suite shows before the first trial
    with ResultsFile(out) as file:
        chosen, without = _tune(file, maker, methods, workers=workers, threads=threads, say=say)
        if peer:
            suite, chosen, told = with_peers(maker, chosen)
            maker.suite = suite
            for line in told:
                say(line)
        cells = [_untuned(cell) if _tuned_as(cell) in without else cell for cell in maker.cells(chosen)]
        _ask(file, suite, cells, only, chosen)
        done = {line["id"] for line in file.lines if line["kind"] == "cell"}
        ids = {cell.id for cell in cells}
        say(f"{suite.name}: {len(ids)} cells, {len(ids & done)} of them done, to {out}")
        now = (
            cell
            for cell in cells
            if (not methods or method_of(cell.method) in methods) and (not seeds or cell.seed in seeds)
        )
        left = list({cell.id: cell for cell in now if cell.id not in done}.values())
        hopeless = {cell.id: cell for cell in left if _tuned_as(cell) in without}
        for cell in hopeless.values():
            message = f"{NO_TRIAL}: {without[_tuned_as(cell)]}"
            file.append({"kind": "error", "id": cell.id, **cell.place, "message": message})
        for (data, method), message in without.items():
            if not methods or method in methods:
                say(f"{data}, {method}: {NO_TRIAL}: {message}")
        failed = len(hopeless)
        for head, cell, found, rest in _timed([each for each in left if each.id not in hopeless], workers, threads):
            file.append({"kind": found["kind"], "id": cell.id, **cell.place, **found})
            failed += found["kind"] == "error"
            say(f"{head} {cell}: {_told(found, suite.compared)}; {rest}")
    return failed


def _tune(
    file: ResultsFile,
    maker: CellMaker,
    methods: tuple[str, ...],
    *,
    workers: int,
    threads: int,
    say: Callable[[str], object],
) -> tuple[Chosen, dict[tuple[str, str], str]]:
    """Run the trials of these methods, or of all, that have no value yet, and choose.

    Gives also the data and methods that are tuned and have no choice, with the message of a trial that failed: of
    these methods all trials did, others may not have been tried yet. What other methods chose is kept.
    """
    suite, every = maker.suite, suite_trials(maker)
    values = {
        line["id"]: float(line["value"])
        for line in file.lines
        if line["kind"] == "trial" and line["metric"] == suite.tune.metric
    }
    trials = [each for each in every if not methods or each.cell.method in methods]
    by_id = {trial.cell.id: trial for trial in trials}
    left = [trial.cell for id_, trial in by_id.items() if id_ not in values]
    if trials:
        say(f"{suite.name}: {len(by_id)} trials on validation classes, {len(by_id) - len(left)} of them done")
    messages: dict[tuple[str, str], str] = {}
    for head, cell, found, rest in _timed(left, workers, threads):
        entry = trial_entry(by_id[cell.id], found, suite.tune.metric)
        file.append(entry)
        if entry["kind"] == "error":
            messages[by_id[cell.id].place] = entry["message"]
            told = f"failed, {entry['message']}"
        else:
            values[cell.id] = entry["value"]
            told = f"{suite.tune.metric} {entry['value']:.4f}"
        say(f"{head} {by_id[cell.id]}: validation {told}; {rest}")
    asked = {each.place for each in trials}
    tried = {*values, *(line["id"] for line in file.lines if line["kind"] == "error")}  # one that failed is no gap
    unfinished = {each.place for each in every if each.cell.id not in tried} - asked
    chosen = choose(suite, [each for each in every if each.place not in unfinished], values)
    led = tuned_places(maker, every)
    return chosen, {place: messages.get(led[place], "") for place in sorted(set(led) - set(chosen))}


def _ask(file: ResultsFile, suite: Suite, cells: list[Cell], only: tuple[str, ...], chosen: Chosen) -> None:
    """Write what is asked for, unless it stands there; the places of data left out now stay as they were asked for."""
    before = next((line for line in reversed(file.lines) if line["kind"] == "suite"), None)
    asked = _plain(suite)
    places = [{**cell.place, "id": cell.id} for cell in cells]
    found = [{"data": data, "method": method, "settings": list(each)} for (data, method), each in chosen.items()]
    if only and before is not None:
        # read again, as what it was asked for with may lack what suites say by now
        kept = _alike(_plain(suite_from_dict(before["suite"], str(file.path))), asked) - set(only)
        places += [each for each in before["places"] if each["data"] in kept]
        found += [each for each in before.get("chosen", []) if each["data"] in kept]
    entry: dict[str, Any] = {"kind": "suite", "suite": asked, "places": places}
    if found:
        entry["chosen"] = found
    if entry != before:
        file.append(entry)


def _alike(before: dict[str, Any], now: dict[str, Any]) -> set[str]:
    """The names of data that are asked for as before; none, where the suite differs in anything but its data."""
    if {**before, "data": []} != {**now, "data": []}:
        return set()
    return {each["name"] for each in before["data"] if each in now["data"]}


def _tuned_as(cell: Cell) -> tuple[str, str]:
    """The data and method whose choice a cell takes; a peer takes that of the method it is against."""
    return cell.data, method_of(cell.method)


def _untuned(cell: Cell) -> Cell:
    """With an id of its own: a run with the same settings, of another suite say, does not stand for a tuned one."""
    return replace(cell, id=f"untuned {cell.id}")


def _plain(suite: Suite) -> Any:
    return json.loads(json.dumps(suite.to_dict()))


def _told(found: Outcome, metrics: Iterable[str]) -> str:
    if found["kind"] == "error":
        return f"failed, {found['message']}"
    scores = ", ".join(f"{name} {100 * found['test'][name]:.1f}" for name in metrics if name in found["test"])
    chosen = f" ({ON_TEST})" if found["selected_by"] == "test" else ""
    return f"{scores}{chosen}, {found['seconds']:.0f} s"


def _timed(cells: list[Cell], workers: int, threads: int) -> Iterator[tuple[str, Cell, Outcome, str]]:
    """Cells with their outcome as they finish, between how many are done and how long the rest will take."""
    started = time.monotonic()
    for count, (cell, found) in enumerate(_outcomes(cells, workers, threads), start=1):
        rest = (time.monotonic() - started) / count * (len(cells) - count)
        yield f"[{count}/{len(cells)}]", cell, found, f"{duration(rest)} left"


def _outcomes(cells: list[Cell], workers: int, threads: int) -> Iterator[tuple[Cell, Outcome]]:
    """Cells with their outcome as they finish."""
    cells = [replace(cell, config=_as_cell(cell.config, threads)) for cell in cells]
    if workers == 0:
        initial_states = InitialStateCache()
        with tempfile.TemporaryDirectory(prefix="nearfar-bench-") as work:
            for cell in cells:
                yield cell, _changed(cell) or outcome(cell.config, Path(work) / "run", initial_states)
        return
    waiting = deque(cells)
    finished: SimpleQueue[tuple[Cell, Outcome]] = SimpleQueue()
    pool = [Worker(threads) for _ in range(min(workers, len(cells)))]

    def serve(worker: Worker) -> None:
        while True:
            try:
                cell = waiting.popleft()
            except IndexError:
                return
            finished.put((cell, _changed(cell) or worker.outcome(cell.config)))

    serving = [Thread(target=serve, args=(worker,), daemon=True) for worker in pool]
    try:
        for thread in serving:
            thread.start()
        for _ in cells:
            yield finished.get()
    finally:
        waiting.clear()
        for worker in pool:
            worker.stop()


def _changed(cell: Cell) -> Outcome | None:
    """The error of a cell whose file of weights or archive of pictures is not what its id says any more."""
    try:
        if cell.id in (config_id(cell.config), config_id(cell.config, files=True)):
            return None
        start, source = cell.config.model.pretrained, cell.config.data.source
        which = f"model.pretrained={start}" if isinstance(start, str) else f"data.source={source}"
        message = f"{which} was written anew meanwhile: start the bench again"
    except NearfarError as error:
        message = str(error)
    return {"kind": "error", "message": message}


def _as_cell(config: Config, threads: int) -> Config:
    """Without what only costs time here: checkpoints on the way and trackers."""
    return replace(config, threads=threads, save_every=1e9, track=())
