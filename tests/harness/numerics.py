"""Test every loss on extreme batches: the value and all gradients must be finite.

    python -m tests.harness.numerics --batches 1000

Embeddings have norms from 1e-8 to 1e8, which may differ within a batch. Batches may contain duplicates, opposite
vectors, zero vectors and sample weights of zero. They may consist of a single class, or of classes with one sample
each. Their dtype is float16, bfloat16, float32 or float64. The same seed gives the same batches.

The limits of a dtype are not defects of a loss:

- The embeddings of a batch may overflow when they are converted to float16, whose maximum is 65,504. The loss must
  refuse such a batch with a ValueError that names the argument.
- A gradient may be infinite only if it exceeds the range of its dtype when it is computed in float64 (for float16: in
  float32, as the losses do). For example, the gradient of a loss of normalized embeddings is proportional to 1 / norm,
  and for a norm of 1e-6 this exceeds the range of float16. SNR divides by the variance of an embedding. If another
  embedding is 1e15 times as long, the gradient is above 3e38, which exceeds the range of float32 and bfloat16.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses import ProxyLoss, create, loss_class, names

DIM, CLASSES = 8, 6
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# options that change how a loss is computed
FORMS: dict[str, tuple[dict[str, Any], ...]] = {
    "angular": ({"batch": "n-pair"},),
    "contrastive": ({"form": "distance"}, {"form": "cosine"}),
    "dro": tuple({"uncertainty": kind} for kind in ("mean", "max", "topk-pn", "kl", "kl-g", "chi2")),
    "hap2s": ({"form": "polynomial"},),
    "lifted": ({"form": "anchor"}, {"form": "scaled"}, {"normalize": True}),
    "multi-similarity": ({"epsilon": None}, {"weighting": "outside"}),
    "n-pair": ({"all_pairs": True},),
    "rdml": ({"hinge": "margin"},),
    "snr": ({"normalize": True}, {"reg": 0.1}),
    "triplet": (
        {"squared": False},
        {"smooth": True},
        {"mining": "hard"},
        {"mining": "semi-hard"},
        {"mining": "paired"},
    ),
}
EVERY = tuple((name, options) for name in names() for options in ({}, *FORMS.get(name, ())))


@dataclass
class Outcome:
    """Number of batches by outcome, and a description of each defect."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def batches(count: int, *, seed: int, most: int = 12, alike: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield random batches, as the arguments of a loss.

    Args:
        count: Number of batches.
        seed: Seed of the batches.
        most: Maximum batch size.
        alike: Maximum number of samples per class; None means no maximum.
    """
    generator = torch.Generator().manual_seed(seed)

    def chance(share: float) -> bool:
        return bool(torch.rand((), generator=generator) < share)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    for i in range(count):
        rows = number(1, most)
        x = torch.randn(rows, DIM, generator=generator, dtype=torch.float64)
        lengths = torch.rand(rows if chance(0.5) else 1, 1, generator=generator, dtype=torch.float64) * 16 - 8
        x = x * 10.0**lengths
        if chance(0.3):
            x = x[torch.randint(0, rows, (rows,), generator=generator)]  # duplicates
        if chance(0.2):
            x[number(0, rows - 1)] = -x[number(0, rows - 1)]
        if chance(0.3):
            x[torch.rand(rows, generator=generator) < 0.4] = 0
        if chance(0.2):
            x[:, number(0, DIM - 1) :] = 0
        kind = number(0, 3)
        labels = torch.randint(0, CLASSES, (rows,), generator=generator)
        if kind == 0:
            labels = torch.full((rows,), number(0, CLASSES - 1))
        elif kind == 1:
            labels = torch.randperm(max(rows, CLASSES), generator=generator)[:rows]
        if alike is not None:
            kept = torch.tensor([int((labels[:j] == labels[j]).sum()) < alike for j in range(rows)])
            x, labels = x[kept], labels[kept]
        batch: dict[str, Any] = {"x": x.to(DTYPES[i % len(DTYPES)]), "labels": labels}
        if chance(0.3):
            weights = torch.rand(len(x), generator=generator) * 10.0 ** number(-6, 6)
            batch["weights"] = torch.where(torch.rand(len(x), generator=generator) < 0.3, 0.0, weights)
        yield batch


def value_and_gradients(loss: nn.Module, batch: dict[str, Any], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return the value of a loss and its gradients with respect to the embeddings and the parameters.

    Args:
        loss: The loss.
        batch: Arguments of the loss.
        dtype: Dtype to convert the embeddings to; None keeps their dtype.
    """
    batch = dict(batch)
    x, labels = batch.pop("x"), batch.pop("labels")
    x = x.detach().to(dtype or x.dtype).requires_grad_()
    loss.zero_grad(set_to_none=True)
    value: Tensor = loss(x, labels, **batch)
    value.backward()  # type: ignore[no-untyped-call]
    found = [value.detach(), x.grad, *(p.grad for p in loss.parameters() if p.requires_grad)]
    return [each for each in found if each is not None]


def look(loss: nn.Module, batch: dict[str, Any]) -> str:
    """Return a description of the outcome of a loss on a batch. If it begins with "wrong", the loss has a defect."""
    x: Tensor = batch["x"]
    fits = bool(x.isfinite().all())
    try:
        found = value_and_gradients(loss, batch)
    except Exception as error:
        refused = isinstance(error, ValueError) and not fits and "embeddings" in str(error)
        return "refused: infinite embeddings" if refused else f"wrong: {type(error).__name__}: {error}"
    if not fits:
        return "wrong: infinite embeddings were accepted"
    if all(bool(grad.isfinite().all()) for grad in found):
        return "finite"
    exact = value_and_gradients(loss, batch, torch.float32 if x.dtype == torch.float16 else torch.float64)
    if found[0].isfinite() and all(bool(each.isfinite().all()) for each in exact):
        above = [float(each.abs().max()) > torch.finfo(got.dtype).max for each, got in zip(exact, found, strict=True)]
        if all(bool(got.isfinite().all()) or high for got, high in zip(found, above, strict=True)):
            return f"beyond {str(x.dtype).removeprefix('torch.')}: the gradient exceeds its range"
    return f"wrong: value {float(found[0])}, gradients finite: {[bool(grad.isfinite().all()) for grad in found[1:]]}"


def examine(name: str, options: dict[str, Any], count: int, *, seed: int = 0) -> Outcome:
    """Test a loss with the given options on `count` batches."""
    proxies = issubclass(loss_class(name), ProxyLoss)
    most = CLASSES if proxies else 12
    alike = 2 if (name == "n-pair" and not options) or options.get("batch") == "n-pair" else None
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"classes": CLASSES, "dim": DIM} if proxies else {}
    loss = create(name, **sizes, **options)
    outcome = Outcome()
    for i, batch in enumerate(batches(count, seed=seed, most=most, alike=alike)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DRO warns if a batch has fewer pairs than K
            found = look(loss, batch)
        outcome.counts[found.partition(":")[0]] += 1
        if found.startswith("wrong"):
            rows = batch["x"]
            place = f"seed {seed}, batch {i}, {rows.dtype} {list(rows.shape)}"
            outcome.wrong.append(f"{title(name, options)}, {place}: {found}")
    return outcome


def title(name: str, options: dict[str, Any]) -> str:
    """Return a title with the name and the options of a loss."""
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--batches", type=int, default=1000, help="number of batches for each variant of each loss (default 1000)"
    )
    parser.add_argument("--loss", action="append", help="test only this loss (may be repeated)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the batches (default 0)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    total, wrong = Counter[str](), 0
    chosen = [each for each in EVERY if each[0] in (options.loss or names())]
    for name, form in chosen:
        outcome = examine(name, form, options.batches, seed=options.seed)
        total.update(outcome.counts)
        wrong += len(outcome.wrong)
        counts = ", ".join(f"{n:,} {what}" for what, n in outcome.counts.most_common())
        print(f"{title(name, form):36s} {counts}", flush=True)
        for line in outcome.wrong[:3]:
            print("   ", line)
    print(
        f"{len(chosen)} variants of {len(options.loss or names())} losses, {total.total():,} batches, "
        f"seed {options.seed}:"
    )
    for what, n in total.most_common():
        print(f"{n:10,} {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
