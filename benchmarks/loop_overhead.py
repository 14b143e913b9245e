"""Overhead of the training loop compared with a minimal loop that does only loading, forward, loss, backward and step.

    python -m benchmarks.loop_overhead --markdown docs/benchmarks/loop.md

Both loops train the same network on the same batches, in turn in one process. The script reports the best CPU time
over the rounds, because other work on the machine hardly affects it. The training loop of nearfar also schedules the
learning rate, logs every 20 steps, monitors the embeddings, shows progress, and checks whether to save a checkpoint.
The evaluation and the last checkpoint are not part of an epoch and are not measured.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from nearfar.config.merge import resolve
from nearfar.data import Manifest, save_manifest
from nearfar.formatting import counted
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer


def vectors(folder: Path, samples: int = 6400, classes: int = 100, width: int = 1280) -> str:
    """Save random vectors of about the same number and length as the features of CUB's training images.

    Return the path of the file.
    """
    rng = np.random.default_rng(0)
    labels = np.arange(samples) % classes
    features = rng.normal(size=(samples, width)).astype(np.float32)
    names = tuple(f"{i:03d}" for i in range(classes))
    path = folder / "vectors.npz"
    save_manifest(Manifest(labels=labels, classes=names, split=np.full(samples, "train"), features=features), path)
    return str(path)


def make_trainer(kind: str, source: str, recipe: str, steps: int, out: Path, *settings: str) -> Trainer:
    fixed = [f"data.source={source}", "data.split=all", f"steps={steps}", "save_every=1000000"]
    config = resolve(kind, recipe=recipe, settings=[*fixed, *settings])
    return Trainer(config, open_manifest(config.data), out, say=lambda _: None)


def time_bare_loop(trainer: Trainer) -> float:
    """Return the CPU seconds that the trainer's steps take in a minimal loop."""
    state = trainer.state
    state.set_train_mode()
    done = 0
    start = time.process_time()
    while done < trainer.steps:
        for batch in trainer.train_loader.load(state.sampler, epoch=state.sampler.epoch):
            state.optimizer.zero_grad(set_to_none=True)
            x = batch.x.to(memory_format=torch.channels_last) if batch.x.ndim == 4 else batch.x
            state.loss(state.embedder(x), batch.labels).backward()
            state.optimizer.step()
            done += 1
            if done == trainer.steps:
                break
    return time.process_time() - start


def time_trainer(trainer: Trainer) -> float:
    """Return the CPU seconds of the training loop, up to the end of the last epoch."""
    end = start = time.process_time()

    def record_time(*_: object) -> None:
        nonlocal end
        end = time.process_time()

    trainer.on_epoch_end = record_time
    trainer.fit()
    return end - start


CASES = {
    "vectors, multi-similarity": ("features", "multi-similarity", 200),
    "vectors, proxy-anchor": ("features", "proxy-anchor", 200),
    "drawings, proxy-anchor": ("pixels", "proxy-anchor", 40),
}


def measure(rounds: int, folder: Path) -> list[tuple[str, float, float]]:
    """Return (case, milliseconds per step of the minimal loop, milliseconds per step of the training loop) per case."""
    source = vectors(folder)
    rows = []
    for name, (kind, recipe, steps) in CASES.items():
        data = source if kind == "features" else "sketches"
        best = {"bare": float("inf"), "ours": float("inf")}
        for i in range(rounds):
            best["bare"] = min(
                best["bare"], time_bare_loop(make_trainer(kind, data, recipe, steps, folder / f"{name}-b{i}"))
            )
            best["ours"] = min(
                best["ours"], time_trainer(make_trainer(kind, data, recipe, steps, folder / f"{name}-o{i}"))
            )
        rows.append((name, 1e3 * best["bare"] / steps, 1e3 * best["ours"] / steps))
        print(f"{name}: {rows[-1][1]:.2f} ms, {rows[-1][2]:.2f} ms, {rows[-1][2] / rows[-1][1] - 1:+.1%}", flush=True)
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="number of rounds (default 15)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options.rounds, Path(folder))
    lines = [
        "# Overhead of the training loop",
        "",
        "The table shows the CPU milliseconds per training step of a minimal loop (loading, forward, loss, backward, "
        "step) and of `nearfar train`, which also schedules the learning rate, logs every 20 steps and monitors the "
        "embeddings. "
        f"{counted(options.threads, 'thread')}, best of {options.rounds} interleaved rounds, torch "
        f"{torch.__version__}, {platform.machine()}. The goal is an overhead of at most 5%.",
        "",
        "| case | minimal loop | nearfar | overhead |",
        "|---|---:|---:|---:|",
        *(f"| {name} | {plain:.2f} | {loop:.2f} | {loop / plain - 1:+.1%} |" for name, plain, loop in rows),
        "",
        "Generated by",
        "",
        f"    python -m benchmarks.loop_overhead --rounds {options.rounds} --threads {options.threads} "
        "--markdown docs/benchmarks/loop.md",
        "",
    ]
    if options.markdown:
        options.markdown.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
