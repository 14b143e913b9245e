"""Speed of the losses: `python -m benchmarks.speed`.

Measures the time of the forward and backward pass of every loss on a batch of embeddings X [B, d]. The time is compared
with that of pytorch-metric-learning and with the floor: the time of the three matrix products that every pair loss
needs, S = X X^T for the similarities, and G X and G^T X for the gradient, where G = dL/dS. All candidates of a size run
in turn in one process, and the best time of each is reported.

With `--resume`, the measurements in the file `--json` are kept and only the missing ones are made, so that a long run
can be interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from benchmarks.memory_speed import MEMORY, run_memory
from benchmarks.peers import SECONDS, Guard, peer
from benchmarks.proxy_speed import CLASSES, PROXY_LOSSES, run_proxies
from benchmarks.speed_report import Row, Size, cell, report
from benchmarks.timing import best_ms, class_batch, floor, peak_bytes, step, step_clock
from nearfar.losses import create
from nearfar.losses.margin import MarginLoss
from nearfar.losses.pair_loss import PairLoss
from nearfar.mining import distance_weighted

BATCHES = (32, 128, 512, 2048)
DIMS = (128, 512)


def distance_weighted_margin() -> PairLoss:
    """Create the margin loss with distance-weighted sampling of negatives."""
    loss = MarginLoss()
    # the similarities of this loss are negative distances
    loss.mine = lambda pairs: distance_weighted(pairs, dim=512, distances=-pairs.sim)
    return loss


# label -> function that creates the loss; the first word of a label is the registered name of the loss
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "angular": lambda: create("angular"),
    "binomial": lambda: create("binomial"),
    "circle": lambda: create("circle"),
    "contrastive": lambda: create("contrastive"),
    "contrastive distance": lambda: create("contrastive", form="distance"),
    "contrastive cosine": lambda: create("contrastive", form="cosine"),
    "dro topk": lambda: create("dro", uncertainty="topk"),
    "dro topk-pn": lambda: create("dro", uncertainty="topk-pn"),
    "dro kl": lambda: create("dro", uncertainty="kl"),
    "dro kl-g": lambda: create("dro", uncertainty="kl-g"),
    "dro chi2": lambda: create("dro", uncertainty="chi2"),
    "fastap": lambda: create("fastap"),
    "hap": lambda: create("hap"),
    "hap2s": lambda: create("hap2s"),
    "hap2s polynomial": lambda: create("hap2s", form="polynomial"),
    "lifted": lambda: create("lifted"),
    "lifted anchor": lambda: create("lifted", form="anchor"),
    "lifted scaled": lambda: create("lifted", form="scaled"),
    "margin": lambda: create("margin"),
    "margin distance-weighted": distance_weighted_margin,
    "multi-similarity": lambda: create("multi-similarity"),
    "multi-similarity unmined": lambda: create("multi-similarity", epsilon=None),
    "n-pair": lambda: create("n-pair", l2_reg=0.0),  # the loss in pytorch-metric-learning has no such regularization
    "n-pair all pairs": lambda: create("n-pair", all_pairs=True),
    "nt-xent": lambda: create("nt-xent"),
    "pair-margin": lambda: create("pair-margin"),
    "rdml": lambda: create("rdml"),
    "rdml margin": lambda: create("rdml", hinge="margin"),
    "smooth-ap": lambda: create("smooth-ap"),
    "snr": lambda: create("snr"),
    "supcon": lambda: create("supcon"),
    "triplet": lambda: create("triplet"),
    "triplet smooth": lambda: create("triplet", smooth=True, squared=False, margin=0.0),
    "triplet hard": lambda: create("triplet", mining="hard"),
    "triplet semi-hard": lambda: create("triplet", mining="semi-hard"),
    "generalized-lifted": lambda: create("generalized-lifted"),
    "histogram": lambda: create("histogram"),
    "intra-pair-variance": lambda: create("intra-pair-variance"),
    "nca": lambda: create("nca"),
    "pnp": lambda: create("pnp"),
    "ranked-list": lambda: create("ranked-list"),
    "threshold-consistent-margin": lambda: create("threshold-consistent-margin"),
    "tuplet-margin": lambda: create("tuplet-margin"),
}
# Samples per class in a batch. N-pair needs an anchor and a positive of each class. The default is four, which divides
# the default batch sizes, because smooth-ap of pytorch-metric-learning needs classes of equal size.
PER_CLASS = {"n-pair": 2}


def measure(label: str, guard: Guard | None, batch: int, dim: int, *, repeats: int, budget: float) -> Row:
    """Time one loss at one size. If the guard allows it, also time the loss in pytorch-metric-learning."""
    loss = LOSSES[label]()
    x, y = class_batch(batch, dim, per_class=PER_CLASS.get(label, 4))
    stopped = guard is not None and not guard.allows(x, y)
    x.requires_grad_()
    ours = step(loss, x, y)
    candidates: dict[str, Callable[[], object]] = {"floor": floor(x), "ours": ours}
    same_value = None
    rival = peer(label) if guard is not None and not stopped else None
    if rival is not None:
        candidates["peer"] = step(rival, x, y)
        same_value = math.isclose(rival(x, y).item(), loss(x, y).item(), rel_tol=1e-4)
    ms = best_ms(candidates, repeats=repeats, budget=budget, clock=step_clock())
    peer_ms = SECONDS * 1e3 if stopped else ms.get("peer")
    peak = peak_bytes(ours)
    return Row(
        loss=label,
        B=batch,
        d=dim,
        ms=round(ms["ours"], 3),
        floor_ratio=round(ms["ours"] / ms["floor"], 3),
        peer_ratio=None if peer_ms is None else round(peer_ms / ms["ours"], 2),
        peak_mb=round(peak / 2**20, 2),
        peak_floats=round(peak / 4 / batch**2, 2),
        peer_ms=None if peer_ms is None else round(peer_ms, 2),
        peer_stopped=stopped,
        peer_same_value=same_value,
    )


def run(
    labels: list[str],
    batches: list[int],
    dims: list[int],
    *,
    done: Collection[Size],
    peers: bool,
    repeats: int,
    budget: float,
) -> Iterator[Row]:
    """Measure all losses at all sizes that are not in `done`, and yield one row per measurement."""
    with tqdm(total=len(labels) * len(batches) * len(dims), unit="cell", disable=None) as bar:
        for label in labels:
            for dim in dims:
                rival = peers and peer(label) is not None
                guard = Guard(label, torch.get_num_threads()) if rival else None
                for batch in sorted(batches):
                    bar.set_description(f"{label} B={batch} d={dim}")
                    if (label, batch, dim, None, None) not in done:
                        yield measure(label, guard, batch, dim, repeats=repeats, budget=budget)
                    bar.update()
                if guard is not None:
                    guard.close()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument("--batch", type=int, nargs="+", default=list(BATCHES), help="batch sizes")
    parser.add_argument("--dim", type=int, nargs="+", default=list(DIMS), help="embedding dimensions")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="LOSS",
        help="losses to measure: a name, such as dro, for all its variants, or a quoted label, such as 'dro topk'",
    )
    parser.add_argument("--no-peers", action="store_true", help="do not measure pytorch-metric-learning")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--repeats", type=int, default=200, help="largest number of timed calls of each candidate")
    parser.add_argument(
        "--budget", type=float, default=1.0, help="maximum seconds of timed calls per candidate, at least one call"
    )
    parser.add_argument("--classes", type=int, nargs="+", default=list(CLASSES), help="classes of the proxy losses")
    parser.add_argument("--memory", type=int, nargs="+", default=list(MEMORY), help="sizes of the cross-batch memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to this file as JSON")
    parser.add_argument("--resume", action="store_true", help="keep the measurements in the file --json")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report to this file")
    args = parser.parse_args(argv)
    labels = [n for n in LOSSES if args.only is None or n in args.only or n.split()[0] in args.only]
    proxied = [n for n in PROXY_LOSSES if args.only is None or n in args.only]
    with_memory = args.only is None or "cross-batch-memory" in args.only
    known = {"cross-batch-memory", *LOSSES, *PROXY_LOSSES, *(name.split()[0] for name in LOSSES)}
    for name in args.only or ():
        if name not in known:
            all_names = ", ".join([*LOSSES, *PROXY_LOSSES, "cross-batch-memory"])
            parser.error(f"--only {name}: there is no such loss. Known: {all_names}")
    torch.set_num_threads(args.threads)
    rows = _read(parser, args.json) if args.resume else []
    limits = {"repeats": args.repeats, "budget": args.budget, "done": {row.size for row in rows}}
    options = {"peers": not args.no_peers, **limits}
    sizes = args.batch, args.dim
    measured = chain(
        run(labels, *sizes, **options),
        run_proxies(proxied, *sizes, args.classes, **options),
        run_memory(*sizes, args.memory, **limits) if with_memory and not args.no_peers else (),
    )
    for row in measured:
        rows.append(row)
        size = "" if row.C is None else f" C={row.C}"
        tqdm.write(f"{row.loss:26s} B={row.B:<5d} d={row.d:<4d}{size} {cell(row)}")
        _write(args.json, json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    command = "python -m benchmarks.speed" + _changed(parser, args)
    _write(args.markdown, report(_sorted(rows), command))


def _read(parser: argparse.ArgumentParser, path: Path | None) -> list[Row]:
    """Return the measurements of an earlier run, or an empty list if the file does not exist yet."""
    if path is None:
        parser.error("--resume continues the file --json: pass --json FILE")
    return [Row(**row) for row in json.loads(path.read_text())] if path.exists() else []


def _sorted(rows: list[Row]) -> list[Row]:
    """Return the measurements in the order of one run, also if they were made in several parts."""
    order = {label: i for i, label in enumerate([*LOSSES, *PROXY_LOSSES])}
    return sorted(rows, key=lambda r: (r.C or 0, r.M or 0, r.d, order.get(r.loss, 0) if r.C is None else 0, r.B))


def _changed(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """Return the arguments that differ from their defaults, except output files, in command line syntax."""
    words = []
    for name, value in vars(args).items():
        if name in ("json", "markdown", "resume") or value == parser.get_default(name):
            continue
        flag = "--" + name.replace("_", "-")
        words.append(
            flag if value is True else f"{flag} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        )
    return "".join(" " + w for w in words)


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(path.suffix + ".part")
        temporary.write_text(text)
        temporary.replace(path)


if __name__ == "__main__":
    main()
