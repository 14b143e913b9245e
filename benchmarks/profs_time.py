"""Time of PROFS: `python -m benchmarks.profs_time`.

Measures the time that hard negative class mining (HNCM) and the projection term add to a training step.

- Mining: choosing the classes of a batch is compared with the matrix products of a pair loss and with the network that
  embeds the batch. The size is that of Stanford Online Products: L = 11,318 classes, dimension d = 512, batch size
  B = 128, two samples per class.
- Projection: adding the term to the gradients of all parameters of a ResNet-50 is compared with a training step of the
  network.

All candidates of a table run in turn in one process, and the best time of each is reported.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import best_ms, class_batch, machine
from nearfar.formatting import markdown_table
from nearfar.losses import create
from nearfar.models import create_embedder
from nearfar.samplers import HNCM, Profs
from nearfar.training.projection import Projection

CLASSES, DIM, BATCH, PER_CLASS = 11318, 512, 128, 2
IMAGES = (4, 8)
PRODUCTS = "matrix products of a pair loss"
GATHER = "gather of the batch's class vectors"
ONE_SEED = "HNCM, one seed: choose the classes"


def mining_times(classes: int, dim: int, batch: int, repeats: int) -> dict[str, float]:
    """Measure the milliseconds of choosing the classes of a batch, and of other work per batch except the network."""
    count = batch // PER_CLASS
    rows, _ = class_batch(classes, dim, per_class=1)
    rng = np.random.default_rng(0)
    tables = {greedy: HNCM(classes, greedy=greedy) for greedy in (False, True)}
    for table in tables.values():
        table.write(np.arange(classes), rows)
    some = rng.permutation(classes)[:count]
    x, where, g = rows[:batch], torch.from_numpy(some), torch.randn(batch, batch)
    labels = np.repeat(np.arange(classes), 5)
    ordinary, mined = (Profs(labels, size=batch, per_class=PER_CLASS, mining=mining) for mining in (None, "hncm"))
    assert mined.hncm is not None
    mined.hncm.write(np.arange(classes), rows)

    def seeds(n: int) -> list[int]:
        chosen: list[int] = rng.choice(classes, n, replace=False).tolist()
        return chosen

    candidates: dict[str, Callable[[], object]] = {
        PRODUCTS: lambda: (x @ x.T, g @ x, g.T @ x),
        GATHER: lambda: rows.index_select(0, where),
        "one pass over the table of class vectors": lambda: rows.sum(),
        ONE_SEED: lambda: tables[False].choose(seeds(1), count, rng),
        "HNCM, four seeds": lambda: tables[False].choose(seeds(4), count, rng),
        "HNCM, greedy": lambda: tables[True].choose(seeds(1), count, rng),
        "HNCM: write the batch's class vectors": lambda: tables[False].write(some, x[:count]),
        "a PROFS batch, random classes": ordinary.next_batch,
        "a PROFS batch, HNCM": mined.next_batch,
    }
    return {name: round(ms, 4) for name, ms in best_ms(candidates, repeats=repeats).items()}


def step_times(backbone: str, images: int, size: int, repeats: int) -> dict[str, float]:
    """Measure the milliseconds of a step without the projection term, of the term, and of its weight snapshot."""
    net = create_embedder(backbone, dim=DIM).train()
    projection = Projection(net.parameters(), weight=1e-3)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-5, foreach=True)
    loss, labels = create("contrastive"), torch.arange(images // 2).repeat(2)
    pixels = torch.randn(images, 3, size, size)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(net(pixels), labels, representatives=images // 2).backward()
        optimizer.step()

    # term and snapshot run after a step, as in training, so that the CPU caches are in a realistic state
    times = best_ms(
        {"step": step, "term": projection.add_to_gradients, "snapshot": projection.snapshot},
        repeats=repeats,
        budget=60.0,
    )
    return {"images": images, **{name: round(ms, 3) for name, ms in times.items()}}


def report(result: dict[str, Any], command: str) -> str:
    """Return the text of docs/benchmarks/profs-time.md."""
    mining, steps = result["mining"], result["steps"]
    network = steps[-1]["step"] / steps[-1]["images"] * result["batch"]
    whole = network + mining[PRODUCTS] + mining[GATHER]
    share = mining[ONE_SEED] / whole
    return "\n".join(
        [
            "# Time of PROFS\n",
            f"Made by `{command}` on {result['machine']}. Times are in milliseconds, the best of several interleaved "
            "repeats.\n",
            "## Hard negative class mining\n",
            f"L = {result['classes']:,} classes, d = {result['dim']}, B = {result['batch']}, {PER_CLASS} samples "
            "per class. The class vectors of all classes are known.\n",
            markdown_table(
                ["", "ms", "relative to the products"],
                [[name, f"{ms:.3f}", f"{ms / mining[PRODUCTS]:.2f}"] for name, ms in mining.items()],
            ),
            f"\nA step of {result['backbone']}, which consists almost entirely of matrix products, takes "
            f"{network / 1e3:.1f} s for a batch of {result['batch']} images ({result['image_size']} pixels; scaled "
            f"from {steps[-1]['images']} images). Choosing the classes with one seed takes {100 * share:.3f}% of the "
            "total time of this step, the matrix products of the loss and the gather; it should take at most 1%. It "
            "reads the table of class vectors once, as every exact choice by distance must. In training on feature "
            "vectors, there is no such network; choosing the classes then takes "
            f"{mining[ONE_SEED] / mining[PRODUCTS]:.1f} times as long as the matrix products of the loss.\n",
            "## Projection term\n",
            f"Milliseconds for all {result['parameters'] / 1e6:.1f} million parameters of {result['backbone']}, with "
            "Adam. The term is added at every step. The snapshot of the weights is taken once per cycle. The term "
            "should take at most 2% of a step.\n",
            markdown_table(
                ["images per batch", "step", "term", "snapshot", "term / step"],
                [
                    [
                        f"{row['images']}",
                        *[f"{row[key]:.1f}" for key in ("step", "term", "snapshot")],
                        f"{100 * row['term'] / row['step']:.2f}%",
                    ]
                    for row in steps
                ],
            ),
            "\nThe time of the step grows with the batch size; the time of the term does not depend on it.\n",
        ]
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    images: Sequence[int] = sorted(args.images)
    return {
        "machine": machine(),
        "classes": args.classes,
        "dim": args.dim,
        "batch": args.batch,
        "mining": mining_times(args.classes, args.dim, args.batch, 10 * args.repeats),
        "backbone": args.backbone,
        "image_size": args.image_size,
        "parameters": sum(p.numel() for p in create_embedder(args.backbone, dim=DIM).parameters()),
        "steps": [step_times(args.backbone, n, args.image_size, args.repeats) for n in images],
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profs_time", description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument("--classes", type=int, default=CLASSES, help="number of classes L (default 11318, as in SOP)")
    parser.add_argument("--dim", type=int, default=DIM, help="dimension of the class vectors (default 512)")
    parser.add_argument("--batch", type=int, default=BATCH, help="batch size (default 128)")
    parser.add_argument("--backbone", default="resnet50", help="network of the training step (default resnet50)")
    parser.add_argument(
        "--images", type=int, nargs="+", default=list(IMAGES), help="batch sizes of the training step (default 4 8)"
    )
    parser.add_argument("--image-size", type=int, default=224, help="image size in pixels (default 224)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--repeats", type=int, default=3, help="timed calls of the training step (default 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report to this file")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    result = run(args)
    plain = {"classes", "dim", "batch", "backbone", "image_size", "threads", "repeats"}
    changed = {name: value for name, value in vars(args).items() if name in plain and value != parser.get_default(name)}
    if sorted(args.images) != list(IMAGES):
        changed["images"] = " ".join(map(str, args.images))
    options = "".join(f" --{name.replace('_', '-')} {value}" for name, value in changed.items())
    page = report(result, f"python -m benchmarks.profs_time{options}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
