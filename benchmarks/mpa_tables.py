"""Tables 1 to 3 and Fig. 1 of MPA (Saeki et al., arXiv 2110.03997): `python -m benchmarks.mpa_tables`.

- Table 1 and Fig. 1 show which similarities a gradient depends on. The script computes the second derivatives of each
  loss with respect to the similarities S(x, c) of the samples x of a batch to the classes c.
- Table 2 gives training complexities. The script measures how the time of a loss grows when the number of samples M,
  classes C or proxies per class P is doubled.
- Table 3 compares metrics on five rankings.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import best_ms, class_batch, machine, step
from nearfar.formatting import markdown_table
from nearfar.losses import ProxyLoss, create, loss_class
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.metrics import evaluate

PROXY = ("proxy-nca", "proxy-anchor", "soft-triple", "mpa", "mpa-dw", "mpa-ap")
PERSPECTIVES = ("stability", "manifold", "similarity", "P-P", "N-N", "P-N")
# Table 1 of the paper. The paper's mark (✓), "not necessarily taken into account", counts as true here, because our
# batch has classes with two samples.
PRINTED: dict[str, set[str]] = {
    "proxy-nca": {"stability", "N-N"},
    "proxy-anchor": {"similarity", "P-P", "N-N"},
    "soft-triple": {"stability", "manifold", "N-N", "P-N"},
    "mpa": {"manifold", "similarity", "P-P", "N-N"},
    "mpa-dw": {"stability", "manifold", "similarity", "N-N"},
    "mpa-ap": {"stability", "manifold", "similarity", "N-N", "P-N"},
}
LABELS = (0, 0, 1, 2, 2)  # labels of the batch for Table 1; there are four classes
# Table 2 of the paper: complexities
ORDERS = {
    "contrastive": "M^2",
    **dict.fromkeys(("triplet", "multi-similarity"), "M^3"),
    **dict.fromkeys(("proxy-nca", "proxy-anchor"), "M C"),
    **dict.fromkeys(("soft-triple", "mpa", "mpa-dw", "mpa-ap"), "M C P^2"),
}
# Table 3 of the paper: positions of the positives among the first ten results, for a query with four positives
RANKINGS = ((1,), (1, 10), (1, 3), (1, 3, 7, 10), (1, 2, 3, 4))
METRICS = ("recall@10", "precision@10", "map@r", "map@10", "ndcg@10")


def influences(name: str) -> Tensor:
    """Compute d^2 L / (dS_ci dS_ej), [C, B, C, B], by central differences.

    S_ci is the similarity of sample i to class c, for C = 4 classes and the B samples of LABELS. The similarities are
    chosen so that no term of the losses is saturated.
    """
    labels = torch.tensor(LABELS)
    loss = create(name, classes=4, dim=2)
    assert isinstance(loss, ProxyLoss)
    noise = torch.randn(4, len(labels), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = -0.1 + 0.02 * noise
    start[labels, torch.arange(len(labels))] += 0.2

    def gradient(sim: Tensor) -> Tensor:
        sim = sim.detach().requires_grad_()
        value = loss.cost(ClassSimilarities(sim, labels, None, torch.zeros(len(labels), 2, dtype=torch.float64)))
        return torch.autograd.grad(value, sim)[0]

    size, h = start.numel(), 1e-5
    moves = h * torch.eye(size, dtype=torch.float64).reshape(size, *start.shape)
    columns = [(gradient(start + move) - gradient(start - move)) / (2 * h) for move in moves]
    return torch.stack(columns, dim=-1).reshape(*start.shape, *start.shape)


def characteristics(name: str) -> set[str]:
    """Return the properties of Table 1 (PERSPECTIVES) that a loss has."""
    found = influences(name)
    size = found[0, 0].numel()
    matrix, labels = found.reshape(size, size), torch.tensor(LABELS)
    sample = torch.arange(len(labels)).repeat(4)
    positive = torch.arange(4).repeat_interleave(len(labels)) == labels[sample]
    other = ~torch.eye(size, dtype=torch.bool)
    both, neither = positive[:, None] & positive, ~positive[:, None] & ~positive
    floor = 1e-6 * matrix.abs().max()

    def some(mask: Tensor) -> bool:
        return bool((matrix.abs()[mask] > floor).any())

    holds = {
        "stability": not some(sample[:, None] != sample),
        "manifold": hasattr(create(name, classes=4, dim=2), "proxies_per_class"),
        # gradients change if all similarities grow by the same amount
        "similarity": bool((matrix.sum(1).abs() > floor).any()),
        "P-P": some(both & other),
        "N-N": some(neither & other),
        "P-N": some(~both & ~neither),
    }
    return {key for key, value in holds.items() if value}


def exponents(*, samples: int, classes: int, proxies: int, dim: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return log2 of the slowdown of each loss when M, C or P is doubled."""
    sizes = {"": (samples, classes, proxies), "M": (2 * samples, classes, proxies)}
    sizes |= {"C": (samples, 2 * classes, proxies), "P": (samples, classes, 2 * proxies)}
    candidates: dict[str, Callable[[], object]] = {}
    for name in ORDERS:
        for key, (m, c, p) in sizes.items():
            if key and key not in ORDERS[name]:
                continue
            options: dict[str, Any] = {}
            if issubclass(loss_class(name), ProxyLoss):
                options = {"classes": c, "dim": dim} | ({"proxies_per_class": p} if "P" in ORDERS[name] else {})
            x, labels = class_batch(m, dim, per_class=4)
            candidates[f"{name} {key}"] = step(create(name, **options), x.requires_grad_(), labels % classes)
    times = best_ms(candidates, repeats=repeats)
    return {
        name: {
            key: math.log2(times[f"{name} {key}"] / times[f"{name} "]) for key in ("M", "C", "P") if key in ORDERS[name]
        }
        for name in ORDERS
    }


def ranking_scores(hits: Sequence[int]) -> dict[str, float]:
    """Compute metrics in percent for a query with four positives at the positions `hits`.

    If `hits` has fewer than four positions, the other positives are at the end of the ranking.
    """
    count = 20
    angles = torch.linspace(0.1, 1.5, count, dtype=torch.float64)
    gallery = torch.stack([angles.cos(), angles.sin()], dim=1)
    labels = torch.zeros(count, dtype=torch.int64)
    labels[[rank - 1 for rank in hits]] = 1
    labels[count - (4 - len(hits)) :] = 1
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    scores = evaluate(gallery, labels, queries=(query, torch.tensor([1])), metrics=METRICS)
    return {name: 100 * scores[name] for name in METRICS}


def figure() -> str:
    """Draw Fig. 1: how much each similarity influences the gradient of a positive and of a negative similarity.

    Darker cells mean more influence.
    """
    side, gap = 18, 34
    width, height = 40 + len(PROXY) * (len(LABELS) * side + gap), 60 + 2 * (4 * side + gap)
    parts = []
    for column, name in enumerate(PROXY):
        x0 = 40 + column * (len(LABELS) * side + gap)
        parts.append(f'<text x="{x0}" y="24" font-weight="bold">{escape(name)}</text>')
        found = influences(name).abs()
        # similarities of the first sample to class 0, which is its own, and to class 1
        for row, (c, i) in enumerate(((0, 0), (1, 0))):
            y0 = 44 + row * (4 * side + gap)
            share = found[c, i] / found[c, i].max().clamp_min(1e-30)
            for e in range(4):
                for j in range(len(LABELS)):
                    x, y, dark = x0 + j * side, y0 + e * side, float(share[e, j]) ** 0.5
                    edge = 'stroke="#D55E00" stroke-width="2.5"' if (e, j) == (c, i) else 'stroke="#bbb"'
                    level = round(255 * (1 - dark))
                    fill = f"rgb({level},{level},{level})"
                    parts.append(f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="{fill}" {edge}/>')
                    if LABELS[j] == e:
                        ink = "#fff" if dark > 0.5 else "#000"
                        at = f'x="{x + side / 2}" y="{y + 13}"'
                        parts.append(f'<text {at} text-anchor="middle" fill="{ink}" font-size="12">+</text>')
    for row, what in enumerate(("positive", "negative")):
        y = 44 + row * (4 * side + gap) + 2 * side
        parts.append(f'<text x="20" y="{y}" text-anchor="middle" transform="rotate(-90 20 {y})">{what}</text>')
    note = "rows: classes, columns: samples, +: positive; outlined: the similarity whose gradient is shown"
    parts.append(f'<text x="40" y="{height - 10}" font-size="11">{note}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="13" fill="#222">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def report(orders: Mapping[str, Mapping[str, float]], command: str) -> str:
    """Format the three tables as Markdown."""
    first = []
    for name in PROXY:
        found = characteristics(name)
        first.append([name, *("yes" if perspective in found else "" for perspective in PERSPECTIVES)])
        first[-1].append("as printed" if found == PRINTED[name] else "differs")
    second = [
        [name, f"O({ORDERS[name]})", " ".join(f"{key}^{value:.2f}" for key, value in found.items())]
        for name, found in orders.items()
    ]
    third = [
        [", ".join(map(str, hits)), *(f"{value:.1f}" for value in ranking_scores(hits).values())] for hits in RANKINGS
    ]
    return "\n\n".join(
        [
            "# Characteristics, complexity and metrics (MPA, Tables 1 to 3)",
            f"Generated by `{command}` on {machine()}.",
            "## What a gradient depends on (Table 1)",
            "The table is computed from the second derivatives with respect to the similarities of five samples to "
            "four classes. Two of the classes have two samples. The paper's mark (✓) counts as yes.",
            markdown_table(["loss", *PERSPECTIVES, "paper"], first),
            "## Time (Table 2)",
            "The table shows the time of a forward and backward pass of one batch with M samples, C classes and P "
            "proxies per class. The exponent of M, C or P is log2 of the slowdown when M, C or P is doubled. The paper "
            "counts the terms of the loss. Our losses use a few matrix products, whose fixed cost dominates at small "
            "sizes.",
            markdown_table(["loss", "paper", "measured"], second),
            "## Metrics (Table 3)",
            "The table shows metrics in percent for one query with four positives. It lists the positions of the "
            "positives among the first ten results; the other positives come later.",
            markdown_table(["positions of the positives", *METRICS], third),
        ]
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mpa_tables", description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument("--samples", type=int, default=512, help="number of samples M (default 512)")
    parser.add_argument("--classes", type=int, default=1000, help="number of classes C (default 1000)")
    parser.add_argument("--proxies", type=int, default=4, help="number of proxies per class P (default 4)")
    parser.add_argument("--dim", type=int, default=64, help="embedding dimension (default 64)")
    parser.add_argument("--repeats", type=int, default=7, help="number of timed calls of each candidate (default 7)")
    parser.add_argument("--figure", type=Path, metavar="FILE.svg", help="write Fig. 1 to this file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report to this file")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    sizes = {"samples": args.samples, "classes": args.classes, "proxies": args.proxies, "dim": args.dim}
    changed = {name: value for name, value in sizes.items() if value != parser.get_default(name)}
    command = "python -m benchmarks.mpa_tables" + "".join(f" --{name} {value}" for name, value in changed.items())
    page = report(exponents(**sizes, repeats=args.repeats), command)
    print(page)
    if args.figure:
        args.figure.write_text(figure())
    if args.markdown:
        args.markdown.write_text(page + "\n")


if __name__ == "__main__":
    main()
