"""Fuzzing: random bad files, settings and requests must be accepted, or refused with one line that names them.

    python -m tests.harness.fuzz --count 100000
    python -m tests.harness.fuzz --target csv --first 4711 --count 1     # repeat one input

Valid files are damaged (bits, cuts, splices, huge numbers in headers), and others are assembled from parts that do not
fit. For each target, any outcome but success or a NearfarError with the name of the file is a defect. So are an HTTP
answer of 500 or above, more than five seconds of CPU, and a file that is left behind. An input is a function of seed,
target and number. The memory of the process is limited, so that an input that asks for too much fails only here.

Not covered: the bytes of a faiss file under a matching checksum. Whoever can write both can crash faiss.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nearfar.errors import NearfarError
from tests.harness.fuzz_targets import Attempt, Targets

SECONDS = 5.0
MEMORY = 12 << 30


class Slow(BaseException):
    """Raised when an input takes too much CPU time; not an Exception, so that the tested code cannot catch it."""


@dataclass
class Outcome:
    """Number of accepted and refused inputs by target, and everything that went wrong."""

    taken: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def attack(targets: Targets, count: int, *, seed: int = 0, only: str | None = None, first: int = 0) -> Outcome:
    """Try inputs on all targets by their shares, or on one target."""
    outcome = Outcome()
    shares = {name: share for name, (share, _) in targets.all.items() if only in (None, name)}
    total = sum(shares.values())
    with cpu_limit(), memory_limit():
        for name, share in shares.items():
            attempt = targets.all[name][1]
            before = _files(targets.folder)
            for number in range(first, first + max(1, round(count * share / total))):
                _try(outcome, name, attempt, seed, number)
            left = [path for path in _files(targets.folder) - before if path.name.startswith(".")]
            if left:
                outcome.wrong.append(f"{name}: {sorted(left)[0]} was left behind")
    return outcome


def _try(outcome: Outcome, name: str, attempt: Attempt, seed: int, number: int) -> None:
    place = f"{name}, seed {seed}, input {number}"
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        attempt(random.Random(f"{seed} {name} {number}"))
        outcome.taken[name] += 1
    except NearfarError as error:
        outcome.refused[name] += 1
        if len(str(error).splitlines()) != 1:
            outcome.wrong.append(f"{place}: not one line: {str(error)!r}")
    except (Exception, Slow) as error:
        outcome.wrong.append(f"{place}: {type(error).__name__}: {str(error)[:300]}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _files(folder: Path) -> set[Path]:
    return {Path(root) / name for root, _, names in os.walk(folder) for name in names}


@contextmanager
def cpu_limit() -> Iterator[None]:
    """Raise an error at SIGPROF, when an input takes too long."""

    def stop(*_: object) -> None:
        raise Slow(f"more than {SECONDS:g} s of CPU")

    before = signal.signal(signal.SIGPROF, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)


@contextmanager
def memory_limit() -> Iterator[None]:
    """Limit the memory, so that larger allocations fail at once."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--target", help="only this one")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="nearfar-fuzz-") as folder:
        targets = Targets(Path(folder))
        outcome = attack(targets, options.count, seed=options.seed, only=options.target, first=options.first)
        targets.close()
    print(f"seed {options.seed}\n\n| target | inputs | taken | refused | wrong |\n|---|---:|---:|---:|---:|")
    for name in targets.all:
        taken, refused = outcome.taken[name], outcome.refused[name]
        wrong = sum(line.startswith(f"{name},") for line in outcome.wrong)
        if taken + refused + wrong:
            print(f"| {name} | {taken + refused + wrong:,} | {taken:,} | {refused:,} | {wrong:,} |")
    for line in outcome.wrong[:200]:
        print(line)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
