"""Fuzzing: check that random invalid files, settings and HTTP requests are refused with a one-line error.

    python -m tests.harness.fuzz --count 100000
    python -m tests.harness.fuzz --target csv --first 4711 --count 1     # repeat one input

Inputs are valid files with random damage (flipped bits, truncation, splices, huge numbers in headers), and files that
are made from parts that do not fit together. An input may be accepted, because some damaged inputs are still valid, or
refused with a one-line NearfarError; if it is a file, the error must name it. Everything else is a defect: another
exception, an HTTP status of 500 or above, more than five seconds of CPU time, or a temporary file that is not removed.

The seed, the target and the number of an input determine the input. The memory of the process is limited, so that a
huge allocation raises an exception instead of exhausting the machine.

Not covered: a faiss file with invalid content but a matching checksum. It can crash faiss.
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
    """Raised when an input takes too much CPU time. It is not an Exception, so `except Exception` does not catch it."""


@dataclass
class Outcome:
    """Numbers of accepted (`taken`) and refused inputs by target, and a description of each defect (`wrong`)."""

    taken: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def attack(targets: Targets, count: int, *, seed: int = 0, only: str | None = None, first: int = 0) -> Outcome:
    """Try about `count` inputs.

    Args:
        targets: The targets.
        count: Number of inputs. They are distributed over the targets in proportion to the targets' shares.
        seed: Seed of the inputs.
        only: The only target to try; None tries all.
        first: Number of the first input of each target.
    """
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
            outcome.wrong.append(f"{place}: the error is not one line: {str(error)!r}")
    except (Exception, Slow) as error:
        outcome.wrong.append(f"{place}: {type(error).__name__}: {str(error)[:300]}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _files(folder: Path) -> set[Path]:
    return {Path(root) / name for root, _, names in os.walk(folder) for name in names}


@contextmanager
def cpu_limit() -> Iterator[None]:
    """Raise Slow when the timer of an input expires (SIGPROF)."""

    def stop(*_: object) -> None:
        raise Slow(f"took more than {SECONDS:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)


@contextmanager
def memory_limit() -> Iterator[None]:
    """Limit the memory of this process, so that larger allocations fail at once."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="number of inputs (default 100000)")
    parser.add_argument("--target", help="try only this target")
    parser.add_argument("--first", type=int, default=0, help="number of the first input (default 0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs (default 0)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="nearfar-fuzz-") as folder:
        targets = Targets(Path(folder))
        outcome = attack(targets, options.count, seed=options.seed, only=options.target, first=options.first)
        targets.close()
    print(f"seed {options.seed}\n\n| target | inputs | accepted | refused | failed |\n|---|---:|---:|---:|---:|")
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
