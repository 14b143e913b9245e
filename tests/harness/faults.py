"""Fault injection: check that a killed, damaged or out-of-space run can be resumed and ends with the same weights.

    python -m tests.harness.faults --kills 50

For every recipe, a run on small vectors is trained without faults. Then the same run is trained in another process,
which is killed (SIGKILL) at random moments and resumed each time, until the run ends. About half of the kills happen
while a file is being written. Configuration, log (except times) and weights of both runs must be equal, bit for bit.
Further faults:

- Damage: one bit of the newest checkpoint is flipped, or its end is cut off. The resumed run must warn and use the
  previous checkpoint.
- Full disk: there is space for only a part of the run. The disk is a small tmpfs. If the script is not allowed to mount
  one, it limits the size of files instead. The run must end with a one-line error and leave no partly written files.
  It must be possible to resume the run when there is space.
- No write permission in the run directory. The requirements are the same as for a full disk.

The seed determines the damage and the delays before kills. The step at which a kill happens depends on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tqdm import tqdm

from nearfar.config import recipes
from nearfar.config.merge import resolve
from nearfar.data import Manifest, save_manifest
from nearfar.errors import NearfarError
from nearfar.runs import CHECKPOINT, PREVIOUS
from nearfar.training import Config, train
from nearfar.training.log import read_log
from nearfar.training.splits import open_manifest
from nearfar.training.step import train_step
from nearfar.training.trainer import Trainer

STEPS = 9
FINE, REFUSED, BROKEN = 0, 3, 4
PAGE = 4096
NOBODY = 65534
TIMES = ("samples_per_second", "seconds")
SMALL = (
    f"steps={STEPS}",
    "model.dim=8",
    "log_every=2",
    "save_every=0",
    "threads=1",
    "metrics=[recall@1]",
    "untrained=false",
)
PROFS = ("batches.classes=3", "batches.steps=3")


@dataclass
class Outcome:
    """Numbers of faults and resumed runs by kind, and a description of everything that went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def vectors(folder: Path) -> str:
    """Save 8 classes of 12 random vectors, half of the classes for training, and return the path."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 12)
    features = (rng.normal(size=(8, 10))[labels] + 0.5 * rng.normal(size=(96, 10))).astype(np.float32)
    manifest = Manifest(labels=labels, classes=tuple("abcdefgh"), split=np.full(96, "train"), features=features)
    path = folder / "vectors.npz"
    save_manifest(manifest.split_by_class_order(), path)
    return str(path)


def configured(recipe: str, source: str) -> Config:
    """Return the configuration of a short run that writes a checkpoint after every step."""
    sizes = PROFS if "profs" in recipe else ("batches.size=16",)
    if recipe == "proxy-isa":
        sizes = (*sizes, "loss.memory_size=64", "loss.memory_epoch=1", "loss.filter_epoch=2")
    return resolve("features", recipe=recipe, settings=[f"data.source={source}", *SMALL, *sizes])


def started(config: Config, out: Path, *, before: Callable[[], object] = lambda: None) -> int:
    """Fork a process that trains a run, or resumes it if it exists, and return the process id.

    Args:
        config: Configuration of the run.
        out: Run directory. The process writes its messages to the file OUT.said.
        before: Called in the process before training.
    """
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # Python 3.12 warns if a process with threads forks; the child does not need them
        process = os.fork()
    if process:
        return process
    code = BROKEN
    said = open(f"{out}.said", "w", encoding="utf-8")  # noqa: SIM115 - closed when the process exits
    said.write(" " * PAGE)  # reserve space, so that messages can be written to a full disk
    said.flush()
    said.seek(0)
    try:
        # Forked processes share tqdm's lock. If one were killed while it holds the lock, the others would wait forever.
        tqdm.set_lock(threading.RLock())
        before()
        resume = (out / "config.yaml").exists()
        train(config, out, resume=resume, progress=False, say=lambda text: print(text, file=said, flush=True))
        code = FINE
    except NearfarError as error:
        print(error, file=said)
        code = REFUSED
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=said)
    finally:
        with contextlib.suppress(OSError):
            said.flush()
        os._exit(code)


def warm_up(folder: Path, source: str) -> None:
    """Train a run in this process, so that all modules are imported before processes are forked."""
    train(configured("triplet", source), folder / "first", progress=False, say=lambda _: None)


def ended(process: int) -> int:
    """Wait for a process and return its exit code, or minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def last_words(out: Path) -> str:
    """Return the messages that the last process of a run wrote."""
    return Path(f"{out}.said").read_text(encoding="utf-8").strip()


def told(out: Path) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Return the log of a run, without times, and its weights."""
    log = [{k: v for k, v in entry.items() if k not in TIMES} for entry in read_log(out / "log.jsonl")]
    return log, load_file(out / "model.safetensors")


def difference(one: Path, other: Path) -> str:
    """Return how two finished runs differ, or an empty string if they are equal."""
    (log, a), (other_log, b) = told(one), told(other)
    if (one / "config.yaml").read_bytes() != (other / "config.yaml").read_bytes():
        return "the configurations differ"
    if log != other_log:
        return "the logs differ"
    odd = [name for name in a if name not in b or not torch.equal(a[name], b[name])]
    if odd or a.keys() != b.keys():
        return f"the weights differ: {', '.join(odd[:3]) or 'their names differ'}"
    left = drafts(other)
    return f"{left[0]} was not removed" if left else ""


def drafts(out: Path) -> list[Path]:
    """Return the partly written files of a run."""
    return list(out.rglob(".*.part"))


class Case:
    """One recipe: a run without faults (`whole`), and methods that inject faults into further runs."""

    def __init__(self, recipe: str, folder: Path, source: str, *, seed: int) -> None:
        self.recipe, self.folder, self.rng = recipe, folder / recipe, random.Random(f"{seed} {recipe}")
        self.folder.mkdir(parents=True)
        self.config, self.whole, self.outcome = configured(recipe, source), self.folder / "whole", Outcome()
        start = time.monotonic()
        train(self.config, self.whole, progress=False, say=lambda _: None)
        self.seconds = time.monotonic() - start

    def note(self, what: str, wrong: str = "") -> None:
        self.outcome.counts[what] += 1
        if wrong:
            self.outcome.wrong.append(f"{self.recipe}, {what}: {wrong}")

    def finish(self, out: Path, what: str) -> None:
        """Resume a run until it ends. Its result must equal that of `whole`, the run without faults."""
        code = ended(started(self.config, out))
        wrong = last_words(out) if code != FINE else difference(self.whole, out)
        self.note(what, wrong)
        shutil.rmtree(out, ignore_errors=True)

    def kill(self, times: int) -> None:
        """Kill and resume a run until it has been killed `times` times; start a new one whenever it finishes."""
        out, landed = self.folder / "killed", 0
        while landed < times:
            process = started(self.config, out)
            writing = self._wait(process, out, aimed=landed % 2 == 1)
            os.kill(process, signal.SIGKILL)
            code = ended(process)
            if code == -signal.SIGKILL:
                landed += 1
                left = bool(drafts(out))
                self.note("killed while a file was being written" if left or writing else "killed at another time")
            elif code == FINE:
                self.note("finished between kills", difference(self.whole, out))
                shutil.rmtree(out)
            else:
                self.note("failed after a kill", last_words(out))
                shutil.rmtree(out)
        self.finish(out, "finished after the last kill")

    def _wait(self, process: int, out: Path, *, aimed: bool) -> bool:
        """Wait for a random time; if `aimed`, wait further until a file is being written. Return whether one is."""
        until = time.monotonic() + self.rng.uniform(0, self.seconds)
        while time.monotonic() < until and not _over(process):
            time.sleep(min(0.005, max(0.0, until - time.monotonic())))
        while aimed and not _over(process):
            if drafts(out):
                return True
            time.sleep(0.0005)
        return False

    def damage(self, kind: str) -> None:
        """Stop a run in the middle, damage its newest checkpoint (`kind`: "changed" or "cut"), and resume it."""
        out = self.folder / kind
        train(self.config, out, progress=False, say=lambda _: None, stop_after=self.rng.randint(4, STEPS - 2))
        path = out / CHECKPOINT
        data = bytearray(path.read_bytes())
        if kind == "changed":
            data[self.rng.randrange(8, len(data))] ^= 1 << self.rng.randrange(8)
        path.write_bytes(data[: self.rng.randrange(len(data))] if kind == "cut" else data)
        good = (out / PREVIOUS).read_bytes()
        code = ended(started(self.config, out))
        words = last_words(out)
        wrong = words if code != FINE else difference(self.whole, out)
        if not wrong and "warning" not in words:
            wrong = "the damage was not detected"
        if not good:
            wrong = "there was no previous checkpoint"
        self.note(f"checkpoint {kind}", wrong)
        shutil.rmtree(out)

    def refuse(self, what: str, out: Path, *, before: Callable[[], object] = lambda: None) -> None:
        """Check that a run ends with a NearfarError or finishes, and that it leaves no partly written files."""
        code = ended(started(self.config, out, before=before))
        words = last_words(out)
        self.note(what, "" if code in (FINE, REFUSED) and not drafts(out) else f"exit {code}: {words} {drafts(out)}")

    def fill(self, rooms: int) -> None:
        """Train on a disk with space for only a random part of the run, `rooms` times."""
        need = sum(path.stat().st_size for path in self.whole.rglob("*") if path.is_file())
        largest = max(path.stat().st_size for path in self.whole.rglob("*") if path.is_file())
        for _ in range(rooms):
            with small_disk(self.folder / "disk") as disk:
                out = (disk or self.folder) / "full"
                if disk is not None:
                    filler, share = disk / "filler", self.rng.uniform(0, 1)
                    filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - int(share * need) - PAGE)))
                    Path(f"{out}.said").touch()
                    self.refuse("full disk", out)
                    filler.unlink()
                else:
                    most = self.rng.randrange(largest)
                    self.refuse("full disk", out, before=lambda most=most: limit_files(most))  # type: ignore[misc]
                self.finish(out, "resumed with free space")

    def lock(self) -> None:
        """Train without write permission in the run directory, from the start and from the middle of the run."""
        for stop in (0, STEPS // 2):
            out = self.folder / "locked"
            out.mkdir()
            if stop:
                train(self.config, out, progress=False, say=lambda _: None, stop_after=stop)
            places = [out, out / "checkpoint"] if stop else [out]
            for place in places:
                place.chmod(0o555)
            Path(f"{out}.said").touch(mode=0o666)
            self.refuse("no write permission", out, before=without_rights)
            for place in places:
                place.chmod(0o755)
            self.finish(out, "resumed with permission")


def _over(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a tmpfs of 8 MB and yield its folder. If mounting is not permitted, yield None."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def limit_files(size: int) -> None:
    """Limit the size of files that this process writes; larger writes raise OSError."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def without_rights() -> None:
    """Switch from root to the user nobody, because root may write everywhere."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def try_recipe(recipe: str, folder: Path, source: str, *, kills: int, rooms: int, seed: int) -> Outcome:
    """Inject all kinds of faults into runs of one recipe. If `rooms` is 0, inject only kills."""
    case = Case(recipe, folder, source, seed=seed)
    case.kill(kills)
    if rooms:
        for kind in ("changed", "cut"):
            case.damage(kind)
        case.fill(rooms)
        case.lock()
    shutil.rmtree(case.folder)
    return case.outcome


def checkpoint_cost(folder: Path, *, steps: int = 8, saves: int = 3) -> tuple[float, float]:
    """Return the CPU seconds of an epoch of the demo (estimated from the fastest step) and of writing a checkpoint."""
    settings = ["batches.size=64", f"steps={steps}", "threads=1"]
    config = resolve("pixels", recipe="proxy-anchor", settings=["data.source=sketches", *settings])
    trainer = Trainer(config, open_manifest(config.data), folder / "cost", say=lambda _: None)
    trainer.start_epoch()
    best = float("inf")
    for batch, _ in zip(trainer.batches(), range(steps), strict=False):
        start = time.process_time()
        train_step(trainer.state, batch, steps=steps)
        best = min(best, time.process_time() - start)
    cost = float("inf")
    for _ in range(saves):
        start = time.process_time()
        trainer.state.save(trainer.out)
        cost = min(cost, time.process_time() - start)
    return best * len(trainer.state.sampler), cost


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="number of kills for each recipe (default 50)")
    parser.add_argument(
        "--rooms", type=int, default=2, help="number of full-disk tests per recipe (default 2); 0 injects only kills"
    )
    parser.add_argument("--recipe", action="append", help="test only this recipe (may be repeated)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults (default 0)")
    parser.add_argument("--cost", action="store_true", help="only measure the time to write a checkpoint")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="nearfar-faults-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if options.cost:
            epoch, cost = checkpoint_cost(folder)
            print(
                f"a checkpoint takes {cost:.3f} s, which is {cost / epoch:.2%} of an epoch of the demo ({epoch:.1f} s)"
            )
            return 0
        source = vectors(folder)
        warm_up(folder, source)
        total, wrong = Counter[str](), 0
        for recipe in options.recipe or recipes.names():
            found = try_recipe(recipe, folder, source, kills=options.kills, rooms=options.rooms, seed=options.seed)
            total.update(found.counts)
            wrong += len(found.wrong)
            print(f"{recipe:20s} {found.counts.total()} checks, {len(found.wrong)} wrong", flush=True)
            for line in found.wrong[:3]:
                print("   ", line)
    print(f"seed {options.seed}:")
    for what, n in total.most_common():
        print(f"{n:8,} {what}")
    print(f"{wrong:8,} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
