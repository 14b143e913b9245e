"""Test `nearfar serve` with many concurrent clients and with hostile requests.

    python -m benchmarks.serve RUN --seconds 60 --hostile 10000 --workers 1 2 --markdown docs/benchmarks/serve.md

The script starts `nearfar serve RUN` in other processes, once for each value of --workers. Each client keeps one
connection open and sends the next request when it has received an answer. There are two kinds of requests: a search
with an image, which the server must decode and embed before it searches, and a search for the neighbors of a sample,
whose embedding the server already has. For comparison, the script measures the forward pass of the network alone,
with one image and with 32. The report also shows how many cores the server and the clients used: if their sum is the
number of cores of the machine, more processes of the server cannot help. Finally, the script sends the hostile
requests of tests.harness.hostile. During these requests, the run directory contains a file with a secret, which no
answer may reveal.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import torch

from nearfar.errors import NearfarError
from nearfar.formatting import counted
from nearfar.serve.batching import MAX_BATCH
from nearfar.serve.collection import Collection, open_collection
from nearfar.training import Run
from tests.harness.hostile import Outcome, attack, hostile_requests


@dataclass(frozen=True)
class Load:
    """The result of one load test.

    Attributes:
        name: Kind of request.
        workers: Number of processes of the server.
        answers: Number of answers.
        p50: Median response time in milliseconds.
        p99: 99th percentile of the response time in milliseconds.
        rate: Answers per second.
        server_cores: CPU seconds of all processes of the server per second.
        client_cores: CPU seconds of all clients per second.
        errors: Number of answers that are not successful or lack neighbors.
    """

    name: str
    workers: int
    answers: int
    p50: float
    p99: float
    rate: float
    server_cores: float
    client_cores: float
    errors: int


@contextmanager
def served(run: Path, *, workers: int = 1) -> Iterator[tuple[int, int]]:
    """Run `nearfar serve` in other processes for the duration of a `with` block. Yield its port and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    options = ["--port", str(port), "--workers", str(workers)]
    command = [sys.executable, "-m", "nearfar", "serve", str(run), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        # The address is printed once all processes accept connections. Before that, the process that is ready first
        # would accept all clients and keep them.
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("http"):
                break
        else:
            raise NearfarError(f"{run}: `nearfar serve` did not start, see its output above")
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(30)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its descendants so far."""
    # after the name of the program, which ends with a parenthesis, fields 12 and 13 are user and system time
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_seconds(int(child)) for child in children)


def image_requests(collection: Collection, count: int = 200) -> list[bytes]:
    """Return HTTP requests that search with images of random samples, as a browser sends them."""
    rows = np.random.default_rng(0).choice(collection.ids, min(count, len(collection.ids)), replace=False)
    requests = []
    for row in rows.tolist():
        image = collection.thumbnails.load_image(row, 224)
        if image is None:
            raise NearfarError(f"{collection.run.path}: has no images to search with: choose a run on images")
        buffer = io.BytesIO()
        image.save(buffer, "PNG" if max(image.size) <= 64 else "JPEG")
        head = f"POST /api/search?k=24 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {buffer.tell()}\r\n\r\n"
        requests.append(head.encode() + buffer.getvalue())
    return requests


def sample_requests(collection: Collection, count: int = 200) -> list[bytes]:
    """Return HTTP requests for the neighbors of random samples."""
    rows = np.random.default_rng(1).choice(collection.ids, min(count, len(collection.ids)), replace=False)
    return [f"GET /api/samples/{row}/neighbors?k=24 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() for row in rows]


async def load(
    name: str, server: tuple[int, int], requests: Sequence[bytes], *, workers: int, clients: int, seconds: float
) -> Load:
    """Send requests from `clients` concurrent clients for `seconds` seconds, and return the measurements.

    `server` is the port and the process id of the server.
    """
    port, pid = server
    times: list[float] = []
    errors = 0
    cpu, own_cpu = cpu_seconds(pid), time.process_time()
    start = time.perf_counter()
    end = start + seconds

    async def client(number: int) -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        turn = number
        while (begun := time.perf_counter()) < end:
            writer.write(requests[turn % len(requests)])
            turn += clients
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            times.append(time.perf_counter() - begun)
            # Each neighbor has a distance. Parsing the JSON would take CPU time from the server.
            errors += not (head.startswith(b"HTTP/1.1 200") and body.count(b'"distance":') == 24)
        writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    took = time.perf_counter() - start
    server_cores, client_cores = (cpu_seconds(pid) - cpu) / took, (time.process_time() - own_cpu) / took
    p50, p99 = (1e3 * float(value) for value in np.percentile(times, [50, 99]))
    return Load(name, workers, len(times), p50, p99, len(times) / took, server_cores, client_cores, errors)


@torch.inference_mode()
def forward_pass(collection: Collection, batch: int, *, rounds: int = 30) -> float:
    """Return the milliseconds per image of the network alone, the best of the rounds."""
    x = collection.queries.read_image(_png(collection, int(collection.ids[0]))).x
    stacked = torch.stack([x] * batch).contiguous(memory_format=torch.channels_last)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        collection.embedder(stacked)
        best = min(best, time.perf_counter() - start)
    return 1e3 * best / batch


def _png(collection: Collection, row: int) -> bytes:
    image = collection.thumbnails.load_image(row, 224)
    assert image is not None
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def hostile(run: Path, port: int, count: int) -> Outcome:
    """Send hostile requests and return the outcome.

    The outcome also reports an error if the server is down afterwards, or if it stored a decision.
    """
    canary = run / "canary.txt"
    decisions = run / "decisions.csv"
    before = decisions.read_bytes() if decisions.is_file() else None
    secret = secrets.token_hex(16)
    canary.write_text(secret)
    try:
        known = [secret.encode(), b"root:", (run / "config.yaml").read_bytes()[:80]]
        requests = hostile_requests(count, f"127.0.0.1:{port}")
        outcome = asyncio.run(attack(f"http://127.0.0.1:{port}", requests, known))
    finally:
        canary.unlink()
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/info", timeout=30):
            pass
    except OSError as error:
        outcome.wrong.append(f"the server is down: {error}")
    if (decisions.read_bytes() if decisions.is_file() else None) != before:
        outcome.wrong.append("a hostile request was stored as a decision")
    return outcome


def page(loads: Sequence[Load], passes: dict[int, float], attacked: Outcome, about: str, command: str) -> str:
    """Format the results as Markdown."""
    rows = [
        f"| {load.workers} | {load.name} | {load.answers:,} | {load.p50:.0f} | {load.p99:.0f} | {load.rate:.0f} | "
        f"{load.server_cores:.2f} | {load.client_cores:.2f} |"
        for load in loads
    ]
    cost = " and ".join(f"{value:.2f} ms per image in batches of {batch}" for batch, value in passes.items())
    count = sum(attacked.statuses.values())
    statuses = "; ".join(
        f"{status or 'none (connection closed)'}: {number:,}" for status, number in sorted(attacked.statuses.items())
    )
    hostile_text = (
        f"The script sent {count:,} hostile requests: malformed paths, numbers, methods, headers and JSON, "
        "decompression bombs, invalid label-review decisions, and requests from other sites. The server gave "
        f"{len(attacked.wrong)} wrong answers and stayed up. Number of requests by HTTP status: {statuses}."
    )
    lines = [
        "# Serving under load",
        "",
        about,
        "",
        "| processes | request | answers | median ms | 99th percentile ms | answers/s | server cores | client cores |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
        *rows,
        "",
        f"The forward pass of the network alone takes {cost}. Waiting queries are embedded and searched together, up "
        f"to {MAX_BATCH} at a time.",
        "",
        *([hostile_text, ""] if count else []),
        "Generated by",
        "",
        f"    {command}",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="directory of a run on images")
    parser.add_argument("--clients", type=int, default=50, help="number of concurrent clients (default 50)")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration for each kind of request (default 60)")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1], help="numbers of processes of the server (default 1)"
    )
    parser.add_argument("--hostile", type=int, default=10_000, help="number of hostile requests (default 10000)")
    parser.add_argument(
        "--note", default="", help="a sentence to add to the report, for example what else ran on the machine"
    )
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    collection = open_collection(options.run)
    passes = {batch: forward_pass(collection, batch) for batch in (1, MAX_BATCH)}
    loads = []
    attacked = Outcome()
    asked = {
        "search with an image": image_requests(collection),
        "neighbors of a sample": sample_requests(collection),
    }
    for workers in options.workers:
        with served(options.run, workers=workers) as server:
            for name, requests in asked.items():
                result = asyncio.run(
                    load(name, server, requests, workers=workers, clients=options.clients, seconds=options.seconds)
                )
                loads.append(result)
                print(result, flush=True)
            if workers == options.workers[-1] and options.hostile:
                attacked = hostile(options.run, server[0], options.hostile)
                print(dict(attacked.statuses), attacked.wrong[:5], flush=True)
    config = Run(options.run).config
    about = (
        f"{options.clients} concurrent clients on the same machine send each kind of request for "
        f"{options.seconds:g} s. The data are {len(collection.ids):,} samples of {Path(config.data.source).name} with "
        f"embeddings of {collection.vectors.shape[1]} dimensions; the backbone is {config.model.backbone}. "
        f"The server and the clients share {os.cpu_count()} cores, torch {torch.__version__} with "
        f"{counted(torch.get_num_threads(), 'thread')}. The load average was {os.getloadavg()[1]:.0f}. {options.note}"
    ).strip()
    command = (
        f"python -m benchmarks.serve RUN --clients {options.clients} --seconds {options.seconds:g} "
        f"--hostile {options.hostile} --workers {' '.join(map(str, options.workers))}"
    )
    if attacked.wrong or any(each.errors for each in loads):
        raise SystemExit(f"{len(attacked.wrong)} wrong answers, {sum(load.errors for load in loads)} failed searches")
    if options.markdown:
        options.markdown.write_text(page(loads, passes, attacked, about, command), encoding="utf-8")


if __name__ == "__main__":
    main()
