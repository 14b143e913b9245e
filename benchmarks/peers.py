"""The losses of pytorch-metric-learning that match ours (extra `peers`), and a guard against their memory and time.

A call is first tried in another process with limits of 8 GB and 60 seconds. Only calls within the limits are timed.
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

SECONDS = 60.0
BYTES = 8 * 2**30

Loss = Callable[[Tensor, Tensor], Tensor]


def peer(label: str) -> Loss | None:
    """Return the peer's loss with the options of the row of this label, or None if it has no such loss."""
    try:
        from pytorch_metric_learning import distances, losses, miners, reducers
    except ImportError as error:
        raise SystemExit("the peers' columns need pytorch-metric-learning: pip install 'nearfar[peers]'") from error

    def mined(loss: Any, miner: Any) -> Loss:
        return lambda x, y: loss(x, y, miner(x, y))

    mean = reducers.MeanReducer
    squared = {"distance": distances.LpDistance(power=2), "reducer": mean()}
    make: dict[str, Callable[[], Loss]] = {
        "angular": lambda: losses.AngularLoss(alpha=45),
        "circle": lambda: losses.CircleLoss(m=0.4, gamma=80),
        "contrastive": lambda: losses.ContrastiveLoss(),
        "contrastive distance": lambda: losses.ContrastiveLoss(),
        "contrastive cosine": lambda: losses.ContrastiveLoss(1, 0, distance=distances.CosineSimilarity()),
        "fastap": lambda: losses.FastAPLoss(num_bins=10),
        "lifted": lambda: losses.LiftedStructureLoss(neg_margin=1, pos_margin=0),
        "lifted anchor": lambda: losses.GeneralizedLiftedStructureLoss(),
        "margin": lambda: losses.MarginLoss(margin=0.2, beta=1.2, learn_beta=True),
        "margin distance-weighted": lambda: mined(
            losses.MarginLoss(margin=0.2, beta=1.2, learn_beta=True), miners.DistanceWeightedMiner()
        ),
        "multi-similarity": lambda: mined(losses.MultiSimilarityLoss(2, 50, 0.5), miners.MultiSimilarityMiner(0.1)),
        "multi-similarity unmined": lambda: losses.MultiSimilarityLoss(2, 50, 0.5),
        "n-pair": lambda: losses.NPairsLoss(),
        "nt-xent": lambda: losses.NTXentLoss(temperature=0.07),
        "smooth-ap": lambda: losses.SmoothAPLoss(temperature=0.01),
        "snr": lambda: losses.SignalToNoiseRatioContrastiveLoss(),
        "supcon": lambda: losses.SupConLoss(temperature=0.1),
        "triplet": lambda: losses.TripletMarginLoss(margin=0.2, **squared),
        "triplet smooth": lambda: losses.TripletMarginLoss(margin=0, smooth_loss=True, reducer=mean()),
        "triplet hard": lambda: mined(losses.TripletMarginLoss(margin=0.2, **squared), miners.BatchHardMiner()),
    }
    return make[label]() if label in make else None


def proxy_peer(label: str, classes: int, dim: int, k: int) -> Loss | None:
    """Return the peer's proxy loss with our defaults, or None if it has no such loss."""
    from pytorch_metric_learning import losses

    make: dict[str, Callable[[], Loss]] = {
        "arcface": lambda: losses.ArcFaceLoss(classes, dim),
        "cosface": lambda: losses.CosFaceLoss(classes, dim),
        "normalized-softmax": lambda: losses.NormalizedSoftmaxLoss(classes, dim),
        "proxy-anchor": lambda: losses.ProxyAnchorLoss(classes, dim),
        "proxy-nca": lambda: losses.ProxyNCALoss(classes, dim),
        "soft-triple": lambda: losses.SoftTripleLoss(classes, dim, centers_per_class=k),
        "subcenter-arcface": lambda: losses.SubCenterArcFaceLoss(
            num_classes=classes, embedding_size=dim, sub_centers=k
        ),
    }
    return make[label]() if label in make else None


class Guard:
    """Tries the peer's loss of one label in another process, with growing sizes, until one exceeds the limits."""

    def __init__(self, label: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_try_sizes, args=(label, threads, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._failed = False

    def allows(self, x: Tensor, y: Tensor) -> bool:
        """Return whether one step on this batch stays within the limits. After a failure, nothing larger is tried."""
        if self._failed:
            return False
        self._pipe.send((x.numpy(), y.numpy()))
        try:
            # the first call also waits for the other process to import torch
            self._failed = not (self._pipe.poll(SECONDS + 30) and self._pipe.recv() <= SECONDS)
        except EOFError:
            self._failed = True
        if self._failed:
            self.close()
        return not self._failed

    def close(self) -> None:
        """Stop the other process."""
        self._process.kill()
        self._process.join()


def _try_sizes(label: str, threads: int, pipe: Connection) -> None:
    import time

    torch.set_num_threads(threads)
    loss = peer(label)
    assert loss is not None
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (own + BYTES, own + BYTES))
    while True:
        rows, labels = pipe.recv()
        x, y = torch.from_numpy(rows).requires_grad_(), torch.from_numpy(labels)
        start = time.perf_counter()
        loss(x, y).backward()  # type: ignore[no-untyped-call]
        pipe.send(time.perf_counter() - start)
