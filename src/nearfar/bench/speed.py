"""Speed of the losses: `python -m nearfar.bench.speed`.

Forward and backward of every loss against its floor, the three matrix products that no pair loss can do without
(S = X X^T, and G X and G^T X of the gradient), and against pytorch-metric-learning. All candidates of a size take turns
in one process; the best of several turns counts.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from nearfar.bench.peers import SECONDS, Guard, peer
from nearfar.bench.timing import best_ms, class_batch, machine, markdown_table, peak_bytes
from nearfar.losses import create
from nearfar.losses.margin import Margin
from nearfar.losses.pair_loss import Batch
from nearfar.mining import distance_weighted
from nearfar.pairs import Pairs

BATCHES = (80, 320, 640, 1280, 2048)
DIMS = (128, 512)


class DistanceWeightedMargin(Margin):
    """The margin loss on negatives drawn by distance-weighted sampling."""

    def cost(self, pairs: Pairs, batch: Batch) -> Tensor:
        return super().cost(distance_weighted(pairs, dim=batch.emb.shape[1]), batch)


# label -> how to make it; the first word is the loss's name
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "angular": lambda: create("angular"),
    "binomial": lambda: create("binomial"),
    "circle": lambda: create("circle"),
    "contrastive": lambda: create("contrastive"),
    "contrastive distance": lambda: create("contrastive", form="distance"),
    "contrastive cosine": lambda: create("contrastive", form="cosine"),
    "fastap": lambda: create("fastap"),
    "hap2s": lambda: create("hap2s"),
    "hap2s polynomial": lambda: create("hap2s", form="polynomial"),
    "lifted": lambda: create("lifted"),
    "lifted anchor": lambda: create("lifted", form="anchor"),
    "lifted scaled": lambda: create("lifted", form="scaled"),
    "margin": lambda: create("margin"),
    "margin distance-weighted": DistanceWeightedMargin,
    "multi-similarity": lambda: create("multi-similarity"),
    "multi-similarity unmined": lambda: create("multi-similarity", epsilon=None),
    "n-pair": lambda: create("n-pair", l2_reg=0.0),  # the peer has no such term
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
}
# N-pair batches hold an anchor and a positive of each class; everything else gets five a class.
PER_CLASS = {"n-pair": 2}


@dataclass(frozen=True)
class Row:
    """One measurement. `peer_ratio` is the peer's time over ours; a peer that was stopped counts as 60 seconds."""

    loss: str
    B: int
    d: int
    ms: float
    floor_ratio: float
    peer_ratio: float | None
    peak_mb: float
    peak_floats: float
    peer_ms: float | None
    peer_stopped: bool
    peer_same_value: bool | None


def step(loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Callable[[], None]:
    """One forward and backward pass, as a function without arguments."""

    def call() -> None:
        x.grad = None
        loss(x, y).backward()  # type: ignore[no-untyped-call]

    return call


def floor(x: Tensor) -> Callable[[], None]:
    """The three matrix products of a pair loss on these rows."""
    x = x.detach()
    g = torch.randn(len(x), len(x))

    def call() -> None:
        _ = x @ x.T, g @ x, g.T @ x

    return call


def measure(label: str, guard: Guard | None, batch: int, dim: int, repeats: int) -> Row:
    """Time one loss at one size."""
    loss = LOSSES[label]()
    x, y = class_batch(batch, dim, per_class=PER_CLASS.get(label, 5))
    stopped = guard is not None and not guard.allows(x, y)
    x.requires_grad_()
    ours = step(loss, x, y)
    candidates: dict[str, Callable[[], object]] = {"floor": floor(x), "ours": ours}
    same_value = None
    rival = peer(label) if guard is not None and not stopped else None
    if rival is not None:
        candidates["peer"] = step(rival, x, y)
        same_value = math.isclose(rival(x, y).item(), loss(x, y).item(), rel_tol=1e-4)
    ms = best_ms(candidates, repeats=repeats)
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


def run(labels: list[str], batches: list[int], dims: list[int], *, peers: bool, repeats: int) -> Iterator[Row]:
    """All measurements, a row as soon as it is there."""
    with tqdm(total=len(labels) * len(batches) * len(dims), unit="cell", disable=None) as bar:
        for label in labels:
            for dim in dims:
                rival = peers and peer(label) is not None
                guard = Guard(label, torch.get_num_threads()) if rival else None
                for batch in sorted(batches):
                    bar.set_description(f"{label} B={batch} d={dim}")
                    yield measure(label, guard, batch, dim, repeats)
                    bar.update()
                if guard is not None:
                    guard.close()


def geometric_mean(values: list[float]) -> float:
    """exp(mean(log)), nan of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def report(rows: list[Row], command: str) -> str:
    """The page docs/benchmarks/speed.md."""
    ratios = [r.peer_ratio for r in rows if r.peer_ratio is not None]
    parts = [
        "# Speed of the losses\n",
        f"Made by `{command}` on {machine()}.\n",
        "Forward and backward, best of several interleaved turns. **floor** is the time over that of the three matrix "
        "products that a pair loss needs (below 1 is possible: a batch against itself needs two of them). **peer** is "
        "pytorch-metric-learning's time over ours; `>` marks a peer that was stopped at 8 GB or 60 s and counts as "
        "60 s; `~` one whose formula differs from ours, so only the time compares. **floats** is the peak of memory "
        "allocated, in units of B^2 floats.\n",
    ]
    if ratios:
        same = [r.peer_ratio for r in rows if r.peer_ratio is not None and r.peer_same_value is not False]
        parts.append(
            f"Against the peer: {geometric_mean(ratios):.1f}x faster in the geometric mean of {len(ratios)} cells "
            f"({geometric_mean(same):.1f}x over the {len(same)} whose formula is the same or that were stopped), "
            f"at worst {min(ratios):.2f}x.\n"
        )
    for dim in sorted({r.d for r in rows}):
        batches = sorted({r.B for r in rows if r.d == dim})
        header = ["loss", *[f"B={b} ms | floor | peer | floats" for b in batches]]
        cells: dict[str, list[str]] = {}
        for r in rows:
            if r.d == dim:
                cells.setdefault(r.loss, []).append(_cell(r))
        parts.append(f"## d = {dim}\n")
        parts.append(
            markdown_table(
                " | ".join(header).split(" | "), [[k, *" | ".join(v).split(" | ")] for k, v in cells.items()]
            )
        )
        parts.append("")
    return "\n".join(parts)


def _cell(r: Row) -> str:
    if r.peer_ratio is None:
        rival = ""
    else:
        mark = ">" if r.peer_stopped else "~" if r.peer_same_value is False else ""
        rival = f"{mark}{r.peer_ratio:.1f}x"
    return f"{r.ms:.2f} | {r.floor_ratio:.2f} | {rival} | {r.peak_floats:.1f}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nearfar.bench.speed", description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument("--batch", type=int, nargs="+", default=list(BATCHES), help="batch sizes")
    parser.add_argument("--dim", type=int, nargs="+", default=list(DIMS), help="embedding dimensions")
    parser.add_argument(
        "--only", nargs="+", metavar="LOSS", help="losses by name, with all their forms, or one form in quotes"
    )
    parser.add_argument("--no-peers", action="store_true", help="leave out pytorch-metric-learning")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each candidate (default 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")
    args = parser.parse_args(argv)
    labels = [n for n in LOSSES if args.only is None or n in args.only or n.split()[0] in args.only]
    if not labels:
        parser.error(f"--only {' '.join(args.only)}: no such loss; there are {', '.join(LOSSES)}")
    torch.set_num_threads(args.threads)
    rows = []
    for row in run(labels, args.batch, args.dim, peers=not args.no_peers, repeats=args.repeats):
        rows.append(row)
        tqdm.write(f"{row.loss:26s} B={row.B:<5d} d={row.d:<4d} {_cell(row)}")
        _write(args.json, json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    command = "python -m nearfar.bench.speed" + _changed(parser, args)
    _write(args.markdown, report(rows, command))


def _changed(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """The arguments that differ from their defaults, files aside, as they would be typed."""
    words = []
    for name, value in vars(args).items():
        if name in ("json", "markdown") or value == parser.get_default(name):
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
