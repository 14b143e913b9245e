"""Embeddings of whole data sets, and their scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from nearfar.data import Loader, Manifest, open_samples
from nearfar.metrics import Scores, evaluate

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(name: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which the network runs: none, bf16 or fp16."""
    return torch.autocast(device.type, dtype=HALF[name]) if name in HALF else nullcontext()


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Pictures channels last, which convolutions are faster with."""
    if x.ndim == 4:
        return x.to(device, memory_format=torch.channels_last, non_blocking=True)
    return x.to(device, non_blocking=True)


@torch.no_grad()
def embed(
    network: nn.Module,
    loader: Loader,
    *,
    device: torch.device | None = None,
    half: str = "none",
    batch_size: int = 256,
    rows: Sequence[int] | None = None,
    name: str = "embed",
) -> Tensor:
    """The embeddings [N, dim] of all samples (or these rows), in order, float32 on the CPU, in evaluation mode."""
    where = device or next(network.parameters()).device
    mode = network.training
    network.eval()
    count = len(loader.samples) if rows is None else len(rows)
    parts = []
    with tqdm(total=count, desc=name, unit="sample", leave=False, disable=None) as bar, autocast(half, where):
        for batch in loader.all(rows, batch_size=batch_size):
            parts.append(network(to_device(batch.x, where)).float().cpu())
            bar.update(len(batch.x))
    network.train(mode)
    return torch.cat(parts)


def score(embeddings: Tensor, manifest: Manifest, metrics: Iterable[str]) -> Scores:
    """Scores of a manifest's embeddings: queries against the gallery where it has these roles, else within itself."""
    if manifest.role is not None and bool((manifest.role == "query").any()):
        query, gallery = (np.flatnonzero(manifest.role == role) for role in ("query", "gallery"))
        asked = (embeddings[torch.from_numpy(query)], manifest.labels[query])
        return evaluate(embeddings[torch.from_numpy(gallery)], manifest.labels[gallery], queries=asked, metrics=metrics)
    return evaluate(embeddings, manifest.labels, metrics=metrics)


def raw_rows(manifest: Manifest) -> Tensor:
    """Samples without any network, [N, d]: vectors as they are, small pictures pixel by pixel."""
    return torch.cat([batch.x.flatten(1) for batch in Loader(open_samples(manifest)).all()])
