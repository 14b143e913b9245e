"""The losses of pytorch-metric-learning that correspond to ours, and a guard that limits their memory and time.

The guard first tries each call in another process, with limits of 8 GB and 20 seconds of CPU time. Only calls that stay
within the limits are timed. This module needs the extra `peers`.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.compat.peer import peer_loss, peer_modules
from nearfar.errors import NearfarError

SECONDS = 20
BYTES = 8 * 2**30
SMALL = 256

Loss = Callable[[Tensor, Tensor], Tensor]


def peer(label: str) -> Loss | None:
    """Return the loss from pytorch-metric-learning for a label of `benchmarks.speed`, or None if there is none."""
    from benchmarks.speed import LOSSES

    # Losses without an exact counterpart are compared with the most similar loss of pytorch-metric-learning.
    closest: dict[str, Callable[[Any], Loss]] = {
        "contrastive": lambda peers: peers.losses.ContrastiveLoss(),
        "lifted anchor": lambda peers: peers.losses.GeneralizedLiftedStructureLoss(),
        "margin distance-weighted": _distance_weighted_margin,
    }
    return closest[label](load_peers()) if label in closest else counterpart(LOSSES[label]())


def counterpart(loss: nn.Module) -> Loss | None:
    """Return the loss from pytorch-metric-learning with the same options as ours, or None if there is none."""
    load_peers()
    try:
        return peer_loss(loss)  # type: ignore[arg-type]
    except ValueError:
        return None


def load_peers() -> Any:
    """Return the modules of pytorch-metric-learning, or exit with instructions if it is not installed."""
    try:
        return peer_modules()
    except NearfarError as error:
        raise SystemExit(f"cannot measure pytorch-metric-learning: {error}") from error


def _distance_weighted_margin(peers: Any) -> Loss:
    loss, miner = peers.losses.MarginLoss(margin=0.2, beta=1.2, learn_beta=True), peers.miners.DistanceWeightedMiner()
    return lambda x, y: loss(x, y, miner(x, y))


class Guard:
    """A process that tries a loss from pytorch-metric-learning on batches of increasing size, until a limit is hit.

    Batches of fewer than `SMALL` samples are not tried: no loss comes near the limits there.
    """

    def __init__(self, label: str, threads: int) -> None:
        self._label, self._threads = label, threads
        self._process: BaseProcess | None = None
        self._failed = False

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_try_sizes, args=(self._label, self._threads, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def allows(self, x: Tensor, y: Tensor) -> bool:
        """Return whether one step on this batch stays within the limits. After a failure, return False at once."""
        if self._failed or len(x) < SMALL:
            return not self._failed
        if self._process is None:
            self._start()
        self._pipe.send((x.numpy(), y.numpy()))
        try:
            self._failed = self._pipe.recv() > SECONDS
        except EOFError:
            self._failed = True
        if self._failed:
            self.close()
        return not self._failed

    def close(self) -> None:
        """Stop the other process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


def _try_sizes(label: str, threads: int, pipe: Connection) -> None:
    torch.set_num_threads(threads)
    loss = peer(label)
    assert loss is not None
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (own + BYTES, own + BYTES))
    while True:
        rows, labels = pipe.recv()
        x, y = torch.from_numpy(rows).requires_grad_(), torch.from_numpy(labels)
        start = time.process_time()
        limit = math.ceil(start) + SECONDS * threads + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))  # ends this process
        loss(x, y).backward()  # type: ignore[no-untyped-call]
        pipe.send((time.process_time() - start) / threads)
