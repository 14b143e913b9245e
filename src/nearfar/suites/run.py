"""`nearfar bench run`: run the cells of a suite that have no scores yet, in one or several processes.

A cell is a combination of dataset, method, seed and value of the swept setting.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.formatting import counted, duration
from nearfar.suites.cells import Cell, CellMaker, TunedSettings, check_losses_and_metrics, check_names
from nearfar.suites.columns import ON_TEST
from nearfar.suites.peer import add_peers, method_of
from nearfar.suites.results import ResultsFile
from nearfar.suites.suite import Suite
from nearfar.suites.suite_file import suite_from_dict
from nearfar.suites.tuning import (
    TriedValues,
    choose,
    suite_trials,
    trial_entry,
    trial_values,
    tried_values,
    tuned_places,
)
from nearfar.suites.tuning_rounds import following_trials
from nearfar.suites.worker_pool import run_cells
from nearfar.suites.worker_process import Outcome

ALL_TRIALS_FAILED = "all trials failed, so no settings could be chosen; last error"


def run_suite(
    suite: Suite,
    out: Path,
    *,
    sources: Mapping[str, str] | None = None,
    only: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    workers: int = 1,
    threads: int = 1,
    peer: bool = False,
    say: Callable[[str], object] = print,
) -> int:
    """Run the cells that have no scores in `out` yet and append their scores to `out`. Failed cells are run again.

    Args:
        suite: the suite.
        out: results file.
        sources: paths by dataset name.
        only: datasets to run; all if empty.
        methods: methods to run now; all if empty. In the tables, other methods without scores are marked as not run.
        seeds: seeds to run now; all if empty.
        workers: number of worker processes; 0 trains in this process.
        threads: torch threads per process.
        peer: whether to also run the same losses from pytorch-metric-learning (see `nearfar.suites.peer`).
        say: function that is called with progress messages.

    Returns:
        The number of cells that failed.
    """
    check_names("method", methods, [method.name for method in suite.methods])
    for seed in seeds:
        if seed not in suite.seeds:
            raise NearfarError(f"the suite has no seed {seed}. Known: {', '.join(map(str, suite.seeds))}")
    maker = CellMaker(suite, sources=sources, only=only)
    check_losses_and_metrics(maker.cells())
    with ResultsFile(out) as file:
        tuned, untuned, tried = _tune(file, maker, methods, workers=workers, threads=threads, say=say)
        if peer:
            suite, tuned, messages = add_peers(maker, tuned)
            maker.suite = suite
            for message in messages:
                say(message)
        cells = [_mark_untuned(cell) if _tuned_place(cell) in untuned else cell for cell in maker.cells(tuned)]
        _write_suite(file, suite, cells, only, tuned, tried)
        done = {line["id"] for line in file.lines if line["kind"] == "cell"}
        ids = {cell.id for cell in cells}
        say(f"{suite.name}: {counted(len(ids), 'cell')}, {len(ids & done)} done; writing to {out}")
        selected = (
            cell
            for cell in cells
            if (not methods or method_of(cell.method) in methods) and (not seeds or cell.seed in seeds)
        )
        pending = list({cell.id: cell for cell in selected if cell.id not in done}.values())
        skipped = {cell.id: cell for cell in pending if _tuned_place(cell) in untuned}
        for cell in skipped.values():
            message = f"{ALL_TRIALS_FAILED}: {untuned[_tuned_place(cell)]}"
            file.append({"kind": "error", "id": cell.id, **cell.place, "message": message})
        for (data, method), message in untuned.items():
            if not methods or method in methods:
                say(f"{data}, {method}: {ALL_TRIALS_FAILED}: {message}")
        failed = len(skipped)
        runnable = [cell for cell in pending if cell.id not in skipped]
        for count, cell, outcome, remaining in _run_timed(runnable, workers, threads):
            file.append({"kind": outcome["kind"], "id": cell.id, **cell.place, **outcome})
            failed += outcome["kind"] == "error"
            say(f"{count} {cell}: {_describe(outcome, suite.compared)}; {remaining}")
    return failed


def _tune(
    file: ResultsFile,
    maker: CellMaker,
    methods: tuple[str, ...],
    *,
    workers: int,
    threads: int,
    say: Callable[[str], object],
) -> tuple[TunedSettings, dict[tuple[str, str], str], TriedValues]:
    """Run the trials of `methods` (of all methods if empty) that have no score yet, and choose settings.

    Returns:
        The tuned settings, including those of methods that were tuned earlier; a dictionary whose keys are the
        (dataset, method) pairs that need tuning but have no tuned settings; and the values that were tried. The
        dictionary maps each pair to the error message of its last failed trial, or to an empty string if its trials
        have not been run.
    """
    suite, all_trials = maker.suite, suite_trials(maker)
    values = trial_values(file.lines, suite.tune.metric)
    messages: dict[tuple[str, str], str] = {}
    trials = [trial for trial in all_trials if not methods or trial.cell.method in methods]
    requested = {trial.place for trial in trials}
    for make_trials in (lambda: trials, *following_trials(maker, all_trials, values)):
        # keep the finished trials of methods that were not requested: their tuned settings are returned too
        current = [trial for trial in make_trials() if trial.place in requested or trial.cell.id in values]
        by_id = {trial.cell.id: trial for trial in current}
        pending = [trial.cell for id_, trial in by_id.items() if id_ not in values]
        if current:
            trials_text = counted(len(by_id), "trial")
            say(f"{suite.name}: {trials_text} on validation classes, {len(by_id) - len(pending)} done")
        for count, cell, outcome, remaining in _run_timed(pending, workers, threads):
            entry = trial_entry(by_id[cell.id], outcome, suite.tune.metric)
            file.append(entry)
            if entry["kind"] == "error":
                messages[by_id[cell.id].place] = entry["message"]
                text = f"failed, {entry['message']}"
            else:
                values[cell.id] = entry["value"]
                text = f"{suite.tune.metric} {entry['value']:.4f}"
            say(f"{count} {by_id[cell.id]}: validation {text}; {remaining}")
        known = {trial.cell.id for trial in all_trials}
        all_trials += [trial for trial in current if trial.cell.id not in known]
    attempted = {*values, *(line["id"] for line in file.lines if line["kind"] == "error")}
    unfinished = {trial.place for trial in all_trials if trial.cell.id not in attempted} - requested
    tuned = choose(suite, [trial for trial in all_trials if trial.place not in unfinished], values)
    leaders = tuned_places(maker, all_trials)
    untuned = {place: messages.get(leaders[place], "") for place in sorted(set(leaders) - set(tuned))}
    return tuned, untuned, tried_values(all_trials, values)


def _write_suite(
    file: ResultsFile, suite: Suite, cells: list[Cell], only: tuple[str, ...], tuned: TunedSettings, tried: TriedValues
) -> None:
    """Append a line of the kind "suite" with the suite and its cells, unless the last such line is the same.

    If `only` names the datasets to run, the cells and tuned settings of the other datasets are copied from the last
    such line, if these datasets have not changed. Nothing is copied if anything else in the suite has changed.
    """
    previous = next((line for line in reversed(file.lines) if line["kind"] == "suite"), None)
    current = _to_plain(suite)
    places = [{**cell.place, "id": cell.id} for cell in cells]
    chosen: list[dict[str, Any]] = [
        {"data": data, "method": method, "settings": list(value)} for (data, method), value in tuned.items()
    ]
    for choice in chosen if suite.tune.extend else ():
        choice["tried"] = tried.get((choice["data"], choice["method"]), {})
    if only and previous is not None:
        # parse the old line and convert it back, so that keys that are newer than the line get their defaults
        before = _to_plain(suite_from_dict(previous["suite"], str(file.path)))
        unchanged = _unchanged_data(before, current) - set(only)
        places += [place for place in previous["places"] if place["data"] in unchanged]
        chosen += [choice for choice in previous.get("chosen", []) if choice["data"] in unchanged]
    entry: dict[str, Any] = {"kind": "suite", "suite": current, "places": places}
    if chosen:
        entry["chosen"] = chosen
    if entry != previous:
        file.append(entry)


def _unchanged_data(before: dict[str, Any], current: dict[str, Any]) -> set[str]:
    """Return the names of datasets that are the same in both suites; none if the suites differ in anything else."""
    if {**before, "data": []} != {**current, "data": []}:
        return set()
    return {dataset["name"] for dataset in before["data"] if dataset in current["data"]}


def _tuned_place(cell: Cell) -> tuple[str, str]:
    """Return the dataset and method whose tuned settings a cell uses.

    A loss of pytorch-metric-learning uses the settings that were tuned for our loss.
    """
    return cell.data, method_of(cell.method)


def _mark_untuned(cell: Cell) -> Cell:
    """Return a cell with another id, because its tuned settings are missing.

    The original id is a hash of the configuration without tuned settings. If the cell kept this id, the tables would
    show the scores of any earlier run with these untuned settings.
    """
    return replace(cell, id=f"untuned {cell.id}")


def _to_plain(suite: Suite) -> Any:
    return json.loads(json.dumps(suite.to_dict()))


def _describe(outcome: Outcome, metrics: Iterable[str]) -> str:
    if outcome["kind"] == "error":
        return f"failed, {outcome['message']}"
    scores = ", ".join(f"{name} {100 * outcome['test'][name]:.1f}" for name in metrics if name in outcome["test"])
    note = f" ({ON_TEST})" if outcome["selected_by"] == "test" else ""
    return f"{scores}{note}, {outcome['seconds']:.0f} s"


def _run_timed(cells: list[Cell], workers: int, threads: int) -> Iterator[tuple[str, Cell, Outcome, str]]:
    """Run cells. For each finished cell, yield a count such as "[3/10]", the cell, its outcome and the time left."""
    started = time.monotonic()
    for count, (cell, outcome) in enumerate(run_cells(cells, workers, threads), start=1):
        remaining = (time.monotonic() - started) / count * (len(cells) - count)
        yield f"[{count}/{len(cells)}]", cell, outcome, f"{duration(remaining)} left"
