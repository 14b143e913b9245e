"""Compute the embeddings of datasets and their scores."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from nearfar.config.schema import Config
from nearfar.data import BatchLoader, Manifest, create_dataset
from nearfar.data.activations import ActivationDataset
from nearfar.data.taxonomy import class_levels
from nearfar.metrics import Scores, evaluate
from nearfar.metrics.names import is_graded
from nearfar.metrics.protocols import same_camera
from nearfar.training.distributed import process_group
from nearfar.validation import Ints

MESSAGE_INTERVAL = 30  # seconds between messages if there is no progress bar
# A batch has BATCH_SIZE samples. Batches of images with more than BATCH_SIDE pixels per side (CPU_BATCH_SIDE on a CPU)
# are smaller.
BATCH_SIZE, BATCH_SIDE = 256, 112
CPU_BATCH_SIDE = 28
HALF_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(name: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context manager for the setting `autocast`: none, bf16 or fp16."""
    return torch.autocast(device.type, dtype=HALF_PRECISION[name]) if name in HALF_PRECISION else nullcontext()


def to_device(
    x: Tensor, device: torch.device, dtype: torch.dtype | None = None, *, channels_last: bool = True
) -> Tensor:
    """Move a batch to a device and dtype. Tokens of texts keep their integer dtype.

    If `channels_last` is True, images get the channels-last layout, which makes convolutions faster.
    """
    if x.ndim == 4 and channels_last:
        return x.to(device, dtype, memory_format=torch.channels_last, non_blocking=True)
    return x.to(device, dtype if x.is_floating_point() else None, non_blocking=True)


def dtype_of(network: nn.Module) -> torch.dtype:
    """Return the dtype of the parameters of a network, or float32 if it has none."""
    return next((p.dtype for p in network.parameters()), torch.float32)


def set_layout(network: nn.Module) -> None:
    """Convert the weights of a network to the channels-last layout, in place, unless it needs the usual layout."""
    if has_channels_last(network):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def has_channels_last(network: nn.Module) -> bool:
    """Return whether the images for a network should have the channels-last layout (see `Embedder.channels_last`)."""
    return getattr(network, "channels_last", True)


def device_of(network: nn.Module) -> torch.device:
    """Return the device of the parameters of a network, or the CPU if it has none."""
    return next((p.device for p in network.parameters()), torch.device("cpu"))


def embedding_function(network: nn.Module, loader: BatchLoader) -> Callable[[Tensor], Tensor]:
    """Return the function that maps the batches of a loader to embeddings.

    This is the network or, if the loader reads cached activations, the part of it above the frozen blocks.
    """
    return network.upper if isinstance(loader.dataset, ActivationDataset) else network  # type: ignore[return-value]


def default_batch_size(network: nn.Module) -> int:
    """Return the number of samples per batch for passes without gradients: 256, or fewer for large images.

    On a GPU, images above 112 pixels are large: at 224 pixels, a batch has 64 images. On a CPU, images above 28 pixels
    are large: at 224 pixels, a batch has only 4 images, so that their activations fit into the CPU cache.
    Blocks 0 to 7 of EfficientNet-Lite0 take 17 ms per image in batches of 4 and 47 ms in batches of 32.

    Texts always have batches of 256, in which a network for texts forms groups of similar length.
    """
    if takes_texts(network):
        return BATCH_SIZE
    side = getattr(network, "input_size", 1)
    limit = CPU_BATCH_SIDE if device_of(network).type == "cpu" else BATCH_SIDE
    return max(1, min(BATCH_SIZE, BATCH_SIZE * limit**2 // side**2))


def takes_texts(network: nn.Module) -> bool:
    """Return whether the inputs of an embedder, or of a module that wraps one as `embedder`, are texts."""
    backbone = getattr(getattr(network, "embedder", network), "backbone", None)
    return bool(getattr(backbone, "has_text_input", False))


@torch.no_grad()
def embed(
    network: nn.Module,
    loader: BatchLoader,
    *,
    device: torch.device | None = None,
    half: str = "none",
    batch_size: int | None = None,
    rows: Sequence[int] | None = None,
    name: str = "embed",
    progress: bool = True,
    shared: bool = False,
) -> Tensor:
    """Compute the embeddings [N, dim] of all samples, in order, in evaluation mode.

    Args:
        network: The network. Its training mode is restored afterwards.
        loader: BatchLoader of the samples.
        device: Device of the network, by default that of its parameters.
        half: Autocast dtype: none, bf16 or fp16.
        batch_size: Number of samples per batch, by default that of `default_batch_size`.
        rows: Indices of the samples to embed, by default all.
        name: Label of the progress bar.
        progress: If True, show progress: a bar in a terminal, elsewhere a message every 30 seconds.
        shared: If True, split the samples over all processes and gather the result on each. Every process must call
            this function.

    Returns:
        The embeddings on the CPU, in float32, or in float64 if the parameters of the network are float64.
    """
    where = device or device_of(network)
    dtype = dtype_of(network)
    compute = embedding_function(network, loader)
    batch_size = default_batch_size(network) if batch_size is None else batch_size
    mode = network.training
    network.eval()
    samples: Sequence[int] = range(len(loader.dataset)) if rows is None else rows
    shared = shared and len(samples) >= process_group.world_size()
    local = process_group.local_part(samples) if shared else samples
    if shared:
        # a sharded network needs all processes for every batch, so all processes must have equally many batches
        batch_size = process_group.even_chunk_size(len(samples), batch_size)
    # with disable=None, tqdm shows the bar only in a terminal
    hidden = None if progress and process_group.is_main_process() else True
    parts = []
    done, last = 0, time.monotonic()
    with tqdm(total=len(local), desc=name, unit="sample", leave=False, disable=hidden) as bar, autocast(half, where):
        for batch in loader.load_all(local, batch_size=batch_size):
            x = to_device(batch.x, where, dtype, channels_last=has_channels_last(network))
            parts.append(compute(x).to("cpu", torch.promote_types(dtype, torch.float32)))
            bar.update(len(batch.x))
            done += len(batch.x)
            if bar.disable and hidden is None and time.monotonic() - last > MESSAGE_INTERVAL:
                last = time.monotonic()
                print(f"{name}: {done:,} of {len(local):,} samples", file=sys.stderr, flush=True)
    network.train(mode)
    return process_group.gather_parts(torch.cat(parts), len(samples)) if shared else torch.cat(parts)


def has_positives(manifest: Manifest) -> bool:
    """Return whether any query has another sample of its class to find. If not, no retrieval metric is defined."""
    if manifest.role is not None and bool((manifest.role == "query").any()):
        query, gallery = (manifest.labels[manifest.role == role] for role in ("query", "gallery"))
        return bool(np.isin(query, gallery).any())
    return int(np.bincount(manifest.labels).max()) > 1


def can_be_scored(manifest: Manifest, name: str, say: Callable[[str], object]) -> bool:
    """Return whether the samples of the split `name` can be scored. If not, print why."""
    if has_positives(manifest):
        return True
    say(f"warning: there will be no {name} scores, because {describe_missing_positives(manifest, name)}")
    return False


def describe_missing_positives(manifest: Manifest, name: str) -> str:
    """Return why the split `name`, such as "test" or "all", cannot be scored. `has_positives` must be False for it."""
    word = "" if name == "all" else f"{name} "
    if manifest.role is not None and bool((manifest.role == "query").any()):
        return f"no {word}query has the class of a gallery sample"
    return f"no two {word}samples have the same class"


def score(
    embeddings: Tensor, manifest: Manifest, metrics: Iterable[str], *, device: torch.device | None = None
) -> Scores:
    """Return the scores of embeddings. If the manifest has queries and a gallery, each query ranks the gallery.

    Otherwise, each sample is a query that ranks all other samples. The ranking of a query leaves out samples of
    the query's group, and samples of the query's class from the query's camera. Graded metrics use the ancestors of the
    classes if the manifest has them. `device` is the device that computes the scores, by default that of the
    embeddings.
    """
    metrics = tuple(metrics)
    levels = class_levels(manifest) if any(map(is_graded, metrics)) else None
    hierarchy = None if levels is None else {label: tuple(chain) for label, chain in enumerate(levels.tolist())}
    targets = manifest.labels if hierarchy is not None else manifest.targets
    if manifest.role is not None and bool((manifest.role == "query").any()):
        query, gallery = (np.flatnonzero(manifest.role == role) for role in ("query", "gallery"))
        queries = (embeddings[torch.from_numpy(query)], targets[query])
        gallery_embeddings = embeddings[torch.from_numpy(gallery)]
        ignore = _find_ignored(manifest, gallery, query)
        return evaluate(
            gallery_embeddings,
            targets[gallery],
            queries=queries,
            metrics=metrics,
            ignore=ignore,
            hierarchy=hierarchy,
            device=device,
        )
    return evaluate(
        embeddings, targets, metrics=metrics, ignore=_find_ignored(manifest), hierarchy=hierarchy, device=device
    )


def _find_ignored(manifest: Manifest, gallery: Ints | None = None, queries: Ints | None = None) -> list[Ints] | None:
    """Return, for each query, the gallery rows that its ranking leaves out (the argument `ignore` of `evaluate`).

    Return None if the manifest has neither groups nor cameras.
    """
    annotations = manifest.annotations
    columns = []
    if annotations is not None and annotations.group is not None:
        # `same_camera` finds samples with the class and the camera of a query. For groups, the class must not matter,
        # so all samples get class 0.
        columns.append((np.zeros_like(annotations.group), annotations.group))
    if annotations is not None and annotations.camera is not None:
        columns.append((manifest.labels, annotations.camera))
    if not columns:
        return None
    rows = slice(None) if gallery is None else gallery
    lists = [
        same_camera(labels[rows], views[rows], queries=None if queries is None else (labels[queries], views[queries]))
        for labels, views in columns
    ]
    return [np.unique(np.concatenate(parts)) for parts in zip(*lists, strict=True)]


def raw_features(manifest: Manifest) -> Tensor:
    """Return the samples as vectors [N, d] without using a network: images become vectors of their pixels."""
    return torch.cat([batch.x.flatten(1) for batch in BatchLoader(create_dataset(manifest)).load_all()])


class Evaluator:
    """Embeds and scores samples during training, on all processes together. Every process must call each method."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.device = config, device

    def embed(self, network: nn.Module, loader: BatchLoader, name: str, rows: Sequence[int] | None = None) -> Tensor:
        """Return the embeddings of all samples of a loader, or of the given rows, on every process."""
        half = self.config.autocast
        return embed(network, loader, device=self.device, half=half, rows=rows, name=name, shared=True)

    def score(self, embeddings: Tensor, manifest: Manifest) -> dict[str, float]:
        """Return the scores of embeddings. The main process computes them and sends them to the others."""
        text = process_group.broadcast_text(
            lambda: json.dumps(dict(score(embeddings, manifest, self.config.metrics, device=self.device)))
        )
        scores: dict[str, float] = json.loads(text)
        return scores
