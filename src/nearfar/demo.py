"""The demo: learn what drawings have in common, and find drawings of things that training never showed.

Trains a small net from scratch on half of the classes of the embedded drawings with two losses, and compares them on
the other half with the raw pixels and the untrained net. Then it searches, and writes a page with what was found.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from nearfar.batches import PK, PlannedBatches, Shuffled
from nearfar.data import Loader, Manifest, open_samples, sketches
from nearfar.demo_page import Found, write_page
from nearfar.losses import create
from nearfar.losses.proxy_loss import ProxyLoss
from nearfar.metrics import Scores, evaluate
from nearfar.models import Embedder, create_embedder

# ours, chosen on held-out classes of the training half
DIM, RATE = 512, 2e-3
LOSSES = ("supcon", "proxy-anchor")


def train(
    loss: nn.Module, embedder: Embedder, loader: Loader, batches: PlannedBatches, *, steps: int, lr: float, name: str
) -> None:
    """AdamW with one warm-up and cosine cycle over `steps` batches; proxies learn ten times as fast."""
    groups = embedder.parameter_groups(lr, weight_decay=1e-2, decay_vectors=False)
    if isinstance(loss, ProxyLoss):
        groups += [group | {"weight_decay": 0.0} for group in loss.parameter_groups(lr, 10.0)]
    optimiser = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: cycle(step / steps))
    embedder.train()
    done = 0
    with tqdm(total=steps, desc=name, unit="batch", leave=False, disable=None) as bar:
        while done < steps:
            for batch in loader.epoch(batches, epoch=batches.epoch):
                value = loss(embedder(batch.x.to(memory_format=torch.channels_last)), batch.labels)
                optimiser.zero_grad()
                value.backward()
                optimiser.step()
                schedule.step()
                done += 1
                bar.set_postfix(loss=f"{value.item():.3f}", refresh=False)
                bar.update()
                if done == steps:
                    break
    embedder.eval()


def cycle(share: float, warm_up: float = 0.1) -> float:
    """The learning rate's factor: up to 1 during warm-up, then down a cosine.

    >>> [round(cycle(share), 2) for share in (0.05, 0.1, 0.55, 1.0)]
    [0.5, 1.0, 0.5, 0.0]
    """
    return share / warm_up if share < warm_up else 0.5 * (1 + math.cos(math.pi * (share - warm_up) / (1 - warm_up)))


@torch.no_grad()
def embed(embedder: Embedder, loader: Loader) -> Tensor:
    """The embeddings of all samples, in order."""
    embedder.eval()
    return torch.cat([embedder(batch.x.to(memory_format=torch.channels_last)) for batch in loader.all()])


def run(*, steps: int = 400, out: Path = Path("runs/demo"), train_rows: int | None = None) -> dict[str, Scores]:
    """The whole demo; returns the scores of every row of the table."""
    started = time.monotonic()
    data = sketches()
    seen, unseen = data.subset("train").compact(), data.subset("test").compact()
    if train_rows is not None:  # for a quick look: whole classes only
        seen = seen.subset(np.arange(min(train_rows, len(seen)))).compact()
    print(f"{len(data):,} drawings by people. Learning from {len(seen.classes)} kinds of things, {_some(seen)} ...")
    print(f"then recognising {len(unseen.classes)} other kinds, {_some(unseen)} ...\n")
    print(f"{'on kinds never seen':24s} Recall@1   MAP@R   seconds")
    samples, gallery = Loader(open_samples(seen, seed=0)), Loader(open_samples(unseen))

    scores = {
        "raw pixels": evaluate(torch.cat([b.x.flatten(1) for b in gallery.all()]), unseen.labels, ks=(1, 2, 4, 8))
    }
    torch.manual_seed(0)
    start = create_embedder("small", dim=DIM)
    scores["untrained net"] = evaluate(embed(start, gallery), unseen.labels, ks=(1, 2, 4, 8))
    for name in scores:
        _print(name, scores[name], 0.0)

    best: tuple[str, Tensor] | None = None
    for name in LOSSES:
        clock = time.monotonic()
        embedder = create_embedder("small", dim=DIM)
        embedder.load_state_dict(start.state_dict())
        torch.manual_seed(0)
        loss = create(name, classes=len(seen.classes), dim=DIM) if name == "proxy-anchor" else create(name)
        batches: PlannedBatches = (
            Shuffled(samples=len(seen), size=128)
            if isinstance(loss, ProxyLoss)
            else PK(seen.labels, classes=min(32, len(seen.classes)), per_class=4)
        )
        train(loss, embedder, samples, batches, steps=steps, lr=RATE, name=name)
        embeddings = embed(embedder, gallery)
        scores[name] = evaluate(embeddings, unseen.labels, ks=(1, 2, 4, 8))
        _print(name, scores[name], time.monotonic() - clock)
        if best is None or scores[name]["map@r"] > scores[best[0]]["map@r"]:
            best = (name, embeddings)

    assert best is not None
    print(f"\nSearching with {best[0]}:")
    found = search(unseen, best[1])
    for each in found[:4]:
        marked = ", ".join(
            f"{name}{'' if right else ' (wrong)'}" for name, right in zip(each.names, each.right, strict=True)
        )
        print(f"  {each.name:16s} -> {marked}")
    page = write_page(out / "index.html", unseen, found, scores)
    print(f"\nA page with pictures: {page}   ({time.monotonic() - started:.0f} s in all)")
    return scores


def search(data: Manifest, embeddings: Tensor, *, queries: int = 12, neighbours: int = 8) -> list[Found]:
    """The nearest drawings of some queries, one from each of classes spread over the alphabet."""
    unit = torch.nn.functional.normalize(embeddings)
    chosen = np.linspace(0, len(data.classes) - 1, min(queries, len(data.classes))).round().astype(int)
    found = []
    for label in chosen.tolist():
        row = int(np.flatnonzero(data.labels == label)[7 % int((data.labels == label).sum())])
        near = (unit @ unit[row]).index_fill_(0, torch.tensor(row), -2.0).topk(neighbours).indices.numpy()
        labels = data.labels[near]
        names = [data.classes[i] for i in labels.tolist()]
        found.append(Found(row, data.classes[label], near.tolist(), names, (labels == label).tolist()))
    return found


def _some(data: Manifest) -> str:
    return ", ".join(data.classes[:: max(1, len(data.classes) // 5)][:4])


def _print(name: str, scores: Scores, seconds: float) -> None:
    took = f"{seconds:7.0f}" if seconds else ""
    print(f"{name:24s} {100 * scores['recall@1']:8.1f}   {100 * scores['map@r']:5.1f}   {took}".rstrip())
