"""Time and memory on large datasets, and the cost of training with several processes.

    python -m benchmarks.scale whole --samples 200000       evaluate every sample against all others
    python -m benchmarks.scale xi --samples 200000          compute BSPML's hardness (xi) of every sample
    python -m benchmarks.scale gallery --samples 1000000    evaluate 10,000 queries, exactly and with an IVF index
    torchrun --nproc-per-node 2 -m benchmarks.scale step    train the small network, with and without communication
    torchrun --nproc-per-node 2 -m benchmarks.scale shards  train a million proxies that are split over the processes

With `--json docs/benchmarks/scale.json`, the result is also written to that file, under the name of the part.

Embeddings are read from a memory-mapped file. In the results, `peak_mb` is the peak memory of the process, including
Python, torch and the pages of the file that it has read; `before_mb` is the peak memory before the measurement.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.timing import machine
from nearfar.config.merge import resolve
from nearfar.files import atomic
from nearfar.losses import create
from nearfar.losses.proxies.sharded import ShardedProxies
from nearfar.metrics import evaluate
from nearfar.pacing.xi import hardness
from nearfar.training.distributed import process_group
from nearfar.training.distributed.gradient_buckets import GradientBuckets
from nearfar.training.evaluate import to_device
from nearfar.training.splits import open_manifest
from nearfar.training.step import train_step
from nearfar.training.trainer import Trainer
from nearfar.validation import Ints

DIM, PER_CLASS, QUERIES, BLOCK = 128, 10, 10_000, 50_000
METRICS = ("recall@1", "recall@10", "r-precision", "map@r")
Result = dict[str, Any]


def written(path: Path, samples: int, *, seed: int = 0) -> tuple[NDArray[np.float32], Ints]:
    """Write random unit vectors in classes of ten to a file. Return the vectors as a memory map, and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) // PER_CLASS)
    centers = np.random.default_rng(1).standard_normal((samples // PER_CLASS + 1, DIM), dtype=np.float32)
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(samples, DIM))
    for start in range(0, samples, BLOCK):
        ids = labels[start : start + BLOCK]
        rows = centers[ids] + 1.6 * rng.standard_normal((len(ids), DIM), dtype=np.float32)
        file[start : start + BLOCK] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    file.flush()
    return np.load(path, mmap_mode="r"), labels


def peak_mb() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(work: Callable[[], Result]) -> Result:
    """Call `work` and return its result, with the seconds and the memory that it took."""
    before, start, cpu = peak_mb(), time.perf_counter(), time.process_time()
    result = work()
    spent = {"seconds": round(time.perf_counter() - start, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    return result | spent | {"peak_mb": round(peak_mb()), "before_mb": round(before)}


def whole(folder: Path, samples: int, memory_mb: int) -> Result:
    """Evaluate every sample against all others."""
    rows, labels = written(folder / "rows.npy", samples)
    return measured(lambda: dict(evaluate(rows, labels, metrics=METRICS, memory_mb=memory_mb)))


def xi(folder: Path, samples: int, memory_mb: int) -> Result:
    """Compute BSPML's hardness of every sample: xi+ from its positive pairs, and xi- from its negative pairs."""
    rows, labels = written(folder / "rows.npy", samples)

    def work() -> Result:
        pos, neg = hardness(torch.tensor(rows), torch.from_numpy(labels), memory_mb=memory_mb)
        return {"mean xi+": float(pos.mean()), "mean xi-": float(neg.mean())}

    return measured(work)


def gallery(folder: Path, samples: int, memory_mb: int) -> Result:
    """Evaluate queries against a gallery: exactly, and with an IVF index that searches 1/64 or 1/8 of its lists."""
    rows, labels = written(folder / "rows.npy", samples)
    queries, ids = written(folder / "queries.npy", QUERIES, seed=2)
    exact = measured(lambda: dict(evaluate(rows, labels, queries=(queries, ids), metrics=METRICS, memory_mb=memory_mb)))
    lists = 1024
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(DIM), DIM, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = 10

    def build() -> Result:
        index.train(np.ascontiguousarray(rows[: 40 * lists]))
        for start in range(0, samples, BLOCK):
            index.add(np.ascontiguousarray(rows[start : start + BLOCK]))
        return {}

    built = measured(build)
    by_index: Result = {}
    for probes in (lists // 64, lists // 8):
        index.nprobe = probes

        def search() -> Result:
            scores = evaluate(
                rows,
                labels,
                queries=(queries, ids),
                metrics=METRICS,
                index=index,
                index_sample=500,
                memory_mb=memory_mb,
            )
            return dict(scores) | {"error": scores.approximation}

        by_index[f"nprobe {probes} of {lists}"] = measured(search)
    return {"exact": exact, "build": built, **by_index}


def interleaved(candidates: dict[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
    """Return the best milliseconds of each candidate: wall-clock time ("clock") and CPU time of this process ("own").

    A barrier before each call makes all processes run the same candidate at the same time. Other work on the machine
    affects the wall-clock time much more than the CPU time.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for turn in range(repeats + 2):
        for name, call in candidates.items():
            process_group.barrier()
            start = time.perf_counter(), time.process_time()
            call()
            if turn > 1:
                times[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    best = {name: np.array(taken).min(0) * 1e3 for name, taken in times.items()}
    return {name: {"clock": round(float(clock), 3), "own": round(float(own), 3)} for name, (clock, own) in best.items()}


def step(folder: Path, batch: int, repeats: int) -> Result:
    """Measure a step of the small network, the same step without communication, and the communication alone."""
    settings = ["data.source=sketches", f"batches.size={batch}", "threads=1", "untrained=false"]
    config = resolve("pixels", recipe="proxy-anchor", settings=settings)
    trainers = [Trainer(config, open_manifest(config.data), folder, say=lambda _: None) for _ in range(2)]
    for trainer in trainers:
        trainer.start_epoch()
    ours, alone = (trainer.state for trainer in trainers)
    for norm in alone.embedder.modules():
        if hasattr(norm, "num_batches_tracked"):  # replace synchronized batch norm, which communicates
            norm.__class__ = torch.nn.BatchNorm2d
    given = next(trainers[0].batches())
    x = to_device(given.x, ours.device)

    def without() -> None:
        """Train on this process's samples without communication; the loss gets a batch of the full size."""
        alone.optimizer.zero_grad(set_to_none=True)
        rows = alone.embedder(x)
        everybody = torch.cat([rows, rows.detach().repeat(process_group.world_size() - 1, 1)])[:batch]
        alone.loss(everybody, given.labels).backward()
        alone.optimizer.step()

    rows = torch.randn(len(x), ours.embedder.dim, requires_grad=True)
    whole_gradient = torch.randn(batch, ours.embedder.dim)
    parameters = [torch.nn.Parameter(torch.zeros_like(p)) for p in ours.embedder.parameters()]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    buckets = GradientBuckets(parameters)

    def sum_gradients() -> None:
        with buckets.reduce():
            pass

    times = interleaved(
        {
            "step": lambda: train_step(ours, given, steps=trainers[0].steps),
            "step without communication": without,
            "gather of embeddings": lambda: torch.autograd.backward(
                process_group.gather_parts(rows, batch), whole_gradient
            ),
            "sum of gradients": sum_gradients,
        },
        repeats,
    )
    sizes = {
        "embeddings": 4 * batch * ours.embedder.dim,
        "gradients": 4 * sum(p.numel() for p in parameters),
    }
    return {"ranks": process_group.world_size(), "batch": batch, "milliseconds": times, "bytes": sizes}


def shards(classes: int, dim: int, batch: int, repeats: int) -> Result:
    """Measure training steps of normalized softmax with Adam, with proxies that are split over the processes."""
    torch.manual_seed(0)
    loss = ShardedProxies(create("normalized-softmax", classes=classes, dim=dim))  # type: ignore[arg-type]
    adam = torch.optim.Adam(loss.parameters(), lr=1e-2, fused=True)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(batch, dim, generator=generator)
    labels = torch.randint(0, classes, (batch,), generator=generator)
    values: list[float] = []

    def one() -> None:
        adam.zero_grad(set_to_none=True)
        value: Tensor = loss(rows.requires_grad_(), labels)
        value.backward()  # type: ignore[no-untyped-call]
        adam.step()
        values.append(float(value.detach()))

    times = interleaved({"step": one}, repeats)["step"]
    mine = loss.stop - loss.start
    return {
        "ranks": process_group.world_size(),
        "classes": classes,
        "of this rank": mine,
        "dim": dim,
        "batch": batch,
    } | {
        "milliseconds": times,
        "first loss": values[0],
        "last loss": values[-1],
        "peak_mb": round(peak_mb()),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["whole", "xi", "gallery", "step", "shards"], help="what to measure, see above")
    parser.add_argument("--samples", type=int, default=200_000, help="number of embeddings (default 200000)")
    parser.add_argument(
        "--memory-mb", type=int, default=256, help="memory limit of whole, xi and gallery (default 256)"
    )
    parser.add_argument("--batch", type=int, default=256, help="batch size of step and shards (default 256)")
    parser.add_argument("--classes", type=int, default=1_000_000, help="number of classes of shards (default 1000000)")
    parser.add_argument("--repeats", type=int, default=30, help="timed repeats of step and shards (default 30)")
    parser.add_argument(
        "--json", type=Path, help="file to add the result to; an earlier result of the same part is replaced"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    with process_group.join_process_group(), tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        if options.part == "step":
            result = step(where, options.batch, options.repeats)
        elif options.part == "shards":
            result = shards(options.classes, 64, options.batch, options.repeats)
        else:
            work = {"whole": whole, "xi": xi, "gallery": gallery}[options.part]
            result = {"samples": options.samples, "dim": DIM, "memory_mb": options.memory_mb}
            result |= work(where, options.samples, options.memory_mb)
        if not process_group.is_main_process():
            return
        result["machine"] = machine()
        print(json.dumps(result, indent=2))
        if options.json is not None:
            known = json.loads(options.json.read_text()) if options.json.exists() else {}
            name = (
                f"{options.part}, {process_group.world_size()} rank(s)"
                if options.part in ("step", "shards")
                else options.part
            )
            with atomic(options.json) as draft:
                draft.write_text(json.dumps(known | {name: result}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
