"""Embeddings of whole data sets, and their scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from nearfar.data import BatchLoader, Manifest, create_dataset
from nearfar.metrics import Scores, evaluate
from nearfar.training.distributed import process_group

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(name: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which the network runs: none, bf16 or fp16."""
    return torch.autocast(device.type, dtype=HALF[name]) if name in HALF else nullcontext()


def to_device(x: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Pictures channels last, which convolutions are faster with; in the network's dtype where that is another."""
    if x.ndim == 4:
        return x.to(device, dtype, memory_format=torch.channels_last, non_blocking=True)
    return x.to(device, dtype, non_blocking=True)


def dtype_of(network: nn.Module) -> torch.dtype:
    """What a network computes in."""
    return next((p.dtype for p in network.parameters()), torch.float32)


@torch.no_grad()
def embed(
    network: nn.Module,
    loader: BatchLoader,
    *,
    device: torch.device | None = None,
    half: str = "none",
    batch_size: int = 256,
    rows: Sequence[int] | None = None,
    name: str = "embed",
    progress: bool = True,
    shared: bool = False,
) -> Tensor:
    """The embeddings [N, dim] of all samples (or these rows), in order, on the CPU, in evaluation mode.

    They are float32, or float64 where the network is. `progress`: show a bar where there is a terminal. `shared`: each
    rank embeds its share and gets all; every rank must call it.
    """
    where = device or next(network.parameters()).device
    dtype = dtype_of(network)
    mode = network.training
    network.eval()
    wanted: Sequence[int] = range(len(loader.dataset)) if rows is None else rows
    shared = shared and len(wanted) >= process_group.world_size()
    mine = process_group.local_part(wanted) if shared else wanted
    if shared:
        batch_size = process_group.even_chunk_size(
            len(wanted), batch_size
        )  # a network that is split over ranks needs all of them
    hidden = None if progress and process_group.is_main_process() else True  # None: hidden where there is no terminal
    parts = []
    with tqdm(total=len(mine), desc=name, unit="sample", leave=False, disable=hidden) as bar, autocast(half, where):
        for batch in loader.load_all(mine, batch_size=batch_size):
            parts.append(network(to_device(batch.x, where, dtype)).to("cpu", torch.promote_types(dtype, torch.float32)))
            bar.update(len(batch.x))
    network.train(mode)
    return process_group.gather_parts(torch.cat(parts), len(wanted)) if shared else torch.cat(parts)


def score(embeddings: Tensor, manifest: Manifest, metrics: Iterable[str]) -> Scores:
    """Scores of a manifest's embeddings: queries against the gallery where it has these roles, else within itself."""
    if manifest.role is not None and bool((manifest.role == "query").any()):
        query, gallery = (np.flatnonzero(manifest.role == role) for role in ("query", "gallery"))
        asked = (embeddings[torch.from_numpy(query)], manifest.labels[query])
        return evaluate(embeddings[torch.from_numpy(gallery)], manifest.labels[gallery], queries=asked, metrics=metrics)
    return evaluate(embeddings, manifest.labels, metrics=metrics)


def raw_rows(manifest: Manifest) -> Tensor:
    """Samples without any network, [N, d]: vectors as they are, small pictures pixel by pixel."""
    return torch.cat([batch.x.flatten(1) for batch in BatchLoader(create_dataset(manifest)).load_all()])
