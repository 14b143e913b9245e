"""How `nearfar serve` holds up: many clients at once, and hostile requests.

    python -m benchmarks.serve RUN --seconds 60 --hostile 10000 --markdown docs/benchmarks/serve.md

Starts `nearfar serve RUN` as its own process. Each of the clients keeps one connection and asks again as soon as it has
its answer: first with a picture of the data, which the server decodes, embeds and searches, then for the neighbors of
a sample, which it only searches. Beside it stands the network's forward pass alone, of one picture and of 32 at a time,
a picture. Then the hostile requests of tests.harness.hostile, with a canary file in the run's folder.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
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
from nearfar.serve.batching import MAX_BATCH
from nearfar.serve.collection import Collection, open_collection
from nearfar.training import Run
from tests.harness.hostile import Outcome, attack, hostile_requests

STARTING = 600.0


@dataclass(frozen=True)
class Load:
    """Milliseconds of the answers, and how many came in a second."""

    name: str
    answers: int
    p50: float
    p99: float
    rate: float
    errors: int


@contextmanager
def served(run: Path) -> Iterator[int]:
    """`nearfar serve` as another process, for as long as the block takes; gives its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "nearfar", "serve", str(run), "--port", str(port)])
    try:
        end = time.monotonic() + STARTING
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{port}/api/info", timeout=5):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise NearfarError(f"{run}: nearfar serve did not start") from None
                time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def picture_requests(collection: Collection, count: int = 200) -> list[bytes]:
    """Searches with pictures of the data, as a browser sends them."""
    rows = np.random.default_rng(0).choice(collection.ids, min(count, len(collection.ids)), replace=False)
    requests = []
    for row in rows.tolist():
        image = collection.thumbnails.load_image(row, 224)
        if image is None:
            raise NearfarError(f"{collection.run.path}: has no pictures to search with")
        buffer = io.BytesIO()
        image.save(buffer, "PNG" if max(image.size) <= 64 else "JPEG")
        head = f"POST /api/search?k=24 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {buffer.tell()}\r\n\r\n"
        requests.append(head.encode() + buffer.getvalue())
    return requests


def sample_requests(collection: Collection, count: int = 200) -> list[bytes]:
    """Neighbors of samples."""
    rows = np.random.default_rng(1).choice(collection.ids, min(count, len(collection.ids)), replace=False)
    return [f"GET /api/samples/{row}/neighbors?k=24 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() for row in rows]


async def load(name: str, port: int, requests: Sequence[bytes], *, clients: int, seconds: float) -> Load:
    """Ask with so many clients for so long."""
    times: list[float] = []
    errors = 0
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
            errors += not (head.startswith(b"HTTP/1.1 200") and len(json.loads(body)["neighbors"]) == 24)
        writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    took = time.perf_counter() - start
    p50, p99 = (1e3 * float(value) for value in np.percentile(times, [50, 99]))
    return Load(name, len(times), p50, p99, len(times) / took, errors)


@torch.inference_mode()
def forward_pass(collection: Collection, batch: int, *, rounds: int = 30) -> float:
    """Milliseconds a picture of the network alone, the best of the rounds."""
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
    """Hostile requests; it is wrong as well if the server is gone afterwards, or a decision was taken."""
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
        outcome.wrong.append(f"the server is gone: {error}")
    if (decisions.read_bytes() if decisions.is_file() else None) != before:
        outcome.wrong.append("a hostile request was taken as a decision")
    return outcome


def page(loads: Sequence[Load], passes: dict[int, float], attacked: Outcome, about: str, command: str) -> str:
    """The results as Markdown."""
    rows = [f"| {each.name} | {each.answers:,} | {each.p50:.0f} | {each.p99:.0f} | {each.rate:.0f} |" for each in loads]
    cost = " and ".join(f"{value:.2f} ms a picture at {batch} a time" for batch, value in passes.items())
    count = sum(attacked.statuses.values())
    statuses = ", ".join(
        f"{number:,} {status or 'closed without an answer'}" for status, number in sorted(attacked.statuses.items())
    )
    lines = [
        "# Serving under load",
        "",
        about,
        "",
        "| what is asked | answers | p50 ms | p99 ms | a second |",
        "|---|---:|---:|---:|---:|",
        *rows,
        "",
        f"The network's forward pass alone takes {cost}. Queries that wait go through it, and then through the index, "
        f"together, up to {MAX_BATCH}.",
        "",
        f"{count:,} hostile requests (paths, numbers, methods, headers, bombs, JSON, decisions, other sites): "
        f"{len(attacked.wrong)} wrong answers, the server stayed up. By status: {statuses}.",
        "",
        "Made by",
        "",
        f"    {command}",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hostile", type=int, default=10_000)
    parser.add_argument("--note", default="", help="a sentence on the machine, for the page")
    parser.add_argument("--markdown", type=Path, help="write the page here")
    options = parser.parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    collection = open_collection(options.run)
    passes = {batch: forward_pass(collection, batch) for batch in (1, MAX_BATCH)}
    loads = []
    with served(options.run) as port:
        asked = {"a picture": picture_requests(collection), "neighbors of a sample": sample_requests(collection)}
        for name, requests in asked.items():
            loads.append(asyncio.run(load(name, port, requests, clients=options.clients, seconds=options.seconds)))
            print(loads[-1], flush=True)
        attacked = hostile(options.run, port, options.hostile)
        print(dict(attacked.statuses), attacked.wrong[:5], flush=True)
    config = Run(options.run).config
    about = (
        f"{options.clients} clients at once on loopback for {options.seconds:g} s each, "
        f"{len(collection.ids):,} samples of {Path(config.data.source).name}, "
        f"{collection.vectors.shape[1]} dimensions, {config.model.backbone}. Server and clients share "
        f"{os.cpu_count()} cores, torch {torch.__version__} with "
        f"{torch.get_num_threads()} thread(s). {options.note}"
    ).strip()
    command = (
        f"python -m benchmarks.serve RUN --clients {options.clients} --seconds {options.seconds:g} "
        f"--hostile {options.hostile}"
    )
    if attacked.wrong or any(each.errors for each in loads):
        raise SystemExit(f"{len(attacked.wrong)} wrong answers, {sum(each.errors for each in loads)} failed searches")
    if options.markdown:
        options.markdown.write_text(page(loads, passes, attacked, about, command), encoding="utf-8")


if __name__ == "__main__":
    main()
