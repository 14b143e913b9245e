"""A first look: learn to see through noise, and recognise kinds of things that training never showed.

Each kind of thing has a few numbers of its own, hidden among many louder numbers that mean nothing. A linear embedding
is trained on some kinds with several losses, for the same time each; what counts is how well it finds its like among
the others, which it has never seen. (A data set of drawings and the whole job of training replace this.)
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from tqdm import tqdm

from nearfar.losses import create
from nearfar.metrics import evaluate

KINDS, UNSEEN, SAMPLES = 120, 60, 20
LOSSES = ("contrastive", "triplet", "multi-similarity", "supcon")


def made_up_things(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of 64 numbers and their kinds: 8 directions tell kinds apart, 24 are noise four times as loud."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.arange(KINDS).repeat_interleave(SAMPLES)
    meaning = torch.randn(KINDS, 8, generator=generator)[kinds]
    meaning = meaning + 0.35 * torch.randn(len(kinds), 8, generator=generator)
    noise = 4 * torch.randn(len(kinds), 24, generator=generator)
    basis = torch.linalg.qr(torch.randn(64, 64, generator=generator)).Q
    return torch.cat([meaning, noise], 1) @ basis[:32] + 0.1 * torch.randn(len(kinds), 64, generator=generator), kinds


def train(loss: nn.Module, x: Tensor, kinds: Tensor, *, seconds: float, seed: int = 0) -> nn.Module:
    """Train a linear embedding of 16 numbers with batches of 32 kinds x 4 samples until the time is up."""
    torch.manual_seed(seed)
    model = nn.Linear(x.shape[1], 16, bias=False)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    end = time.monotonic() + seconds
    with tqdm(total=round(seconds, 1), unit="s", leave=False, disable=None) as bar:
        while (left := end - time.monotonic()) > 0:
            chosen = torch.randperm(int(kinds.max()) + 1)[:32, None] * SAMPLES + torch.randint(SAMPLES, (32, 4))
            rows = torch.unique(chosen)
            value = loss(model(x[rows]), kinds[rows])
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            bar.n = round(seconds - left, 1)
            bar.set_postfix(loss=f"{value.item():.3f}", refresh=False)
            bar.update(0)
    return model


def run(*, seconds: float = 20.0) -> None:
    """Train with each loss and print the table."""
    x, kinds = made_up_things()
    seen = kinds < KINDS - UNSEEN
    test, test_kinds = x[~seen], kinds[~seen]
    print(f"{KINDS - UNSEEN} kinds to learn from, {UNSEEN} other kinds to recognise, {SAMPLES} samples each\n")
    print(f"{'on kinds never seen':24s} Recall@1   MAP@R")
    torch.manual_seed(0)
    _row("the numbers as they are", test, test_kinds)
    with torch.no_grad():
        _row("an untrained embedding", nn.Linear(x.shape[1], 16, bias=False)(test), test_kinds)
        for name in LOSSES:
            with torch.enable_grad():
                model = train(create(name), x[seen], kinds[seen], seconds=seconds / len(LOSSES))
            _row(name, model(test), test_kinds)
    print("\nNext: `nearfar losses` lists the losses; README.md shows how to use one in your own training.")


def _row(name: str, embeddings: Tensor, kinds: Tensor) -> None:
    scores = evaluate(embeddings, kinds, ks=(1,))
    print(f"{name:24s} {100 * scores['recall@1']:8.1f}   {100 * scores['map@r']:5.1f}")
