"""Train an image encoder and a text encoder together on pairs, so that images find their texts and vice versa."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from nearfar.config.schema import Config, Images
from nearfar.data import BatchLoader, Manifest
from nearfar.data.image_text import open_pairs
from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.losses.image_text import IMAGE_TEXT_LOSSES
from nearfar.metrics import evaluate
from nearfar.models import Embedder, create_embedder
from nearfar.training.embedder_file import load_embedder, save_embedder
from nearfar.training.evaluate import default_batch_size, embed, to_device
from nearfar.training.prepare import prepare
from nearfar.validation import check_choice, check_count, check_positive

METRICS = ("recall@1", "recall@5", "recall@10")
PARTS = ("image", "text")
DEFAULT_DIM = 256


@dataclass
class ImageTextModel:
    """An image encoder and a text encoder whose embeddings can be compared with each other.

    Attributes:
        image, text: The embedders.
        scores: Scores on the test pairs, from 0 to 1: "image to text recall@1", "text to image recall@1", ...
    """

    image: Embedder
    text: Embedder
    scores: dict[str, float]

    def embed(self, manifest: Manifest, *, progress: bool = False) -> Tensor:
        """Return the unit embeddings [N, dim] of the images or texts of a manifest."""
        network = self.text if manifest.kind == "text" else self.image
        vectors = embed(network, _loader(network, manifest), batch_size=default_batch_size(network), progress=progress)
        return nn.functional.normalize(vectors)

    def evaluate(self, data: Any) -> dict[str, float]:
        """Return scores that say how well each image finds its text among the texts of all pairs, and vice versa."""
        images, texts = open_pairs(data)
        return _score(self.embed(images), self.embed(texts), images.labels)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write image.safetensors, text.safetensors and scores.json for `load_image_text`. Return the folder."""
        path = Path(folder)
        for name in PARTS:
            save_embedder(getattr(self, name), path / f"{name}.safetensors")
        with atomic(path / "scores.json") as draft:
            draft.write_text(json.dumps(self.scores, indent=2) + "\n", encoding="utf-8")
        return path


def load_image_text(
    folder: str | Path, *, image: nn.Module | None = None, text: nn.Module | None = None
) -> ImageTextModel:
    """Load a model that `ImageTextModel.save_pretrained` wrote.

    If an encoder is your own network, pass that network as `image` or `text`. The weights are loaded into a copy of it.
    """
    path = Path(folder)
    for name in PARTS:
        if not (path / f"{name}.safetensors").is_file():
            raise NearfarError(f"{path}: not the folder of an image-text model, because {name}.safetensors is missing")
    file = path / "scores.json"
    scores = json.loads(file.read_bytes()) if file.is_file() else {}
    return ImageTextModel(
        load_embedder(path / "image.safetensors", image), load_embedder(path / "text.safetensors", text), scores
    )


def fit_image_text(
    image: str | nn.Module,
    text: str | nn.Module,
    data: Any,
    *,
    loss: str = "info-nce",
    dim: int | None = None,
    steps: int = 200,
    batch_size: int = 64,
    lr: float = 1e-4,
    weight_decay: float = 0.01,
    test: float = 0.2,
    seed: int = 0,
    size: int | None = None,
    pretrained: bool = True,
    out: str | Path | None = None,
    progress: bool = True,
    say: Callable[[str], object] = print,
) -> ImageTextModel:
    """Train two encoders on pairs of images and texts, and return them. Interrupted training cannot be resumed.

    Args:
        image: The image encoder: the name of a backbone, an `nn.Module` or an embedder.
        text: The text encoder: a backbone such as "all-minilm-l6-v2" or "transformers:DIRECTORY", or an embedder.
        data: The pairs of images and texts (see `nearfar.data.image_text.open_pairs`).
        loss: "info-nce" (as in CLIP) or "sigmoid" (as in SigLIP).
        dim: Dimension of the common embedding space, by default 256. An embedder keeps its own dimension, so two
            embedders must already have the same dimension.
        steps: Number of steps.
        batch_size: Number of pairs in a batch. The negatives of an image are the other texts of the batch.
        lr: Peak learning rate. The rate rises during the first tenth of the steps and then falls to 0 along a cosine.
        weight_decay: Weight decay of AdamW. It applies to matrices, but not to vectors such as biases.
        test: Fraction of the distinct texts whose pairs are held out for the scores.
        seed: Seed for the batches, the initial weights and the choice of the test pairs.
        size: Side of the images in pixels, by default the input size of the backbone.
        pretrained: If True, backbones that are given by name start from their public weights.
        out: Folder to save the model in (see `ImageTextModel.save_pretrained`). If None, the model is not saved.
        progress: If True, show a progress bar in a terminal.
        say: Function that prints a message.
    """
    check_choice("loss", loss, IMAGE_TEXT_LOSSES)
    check_count("steps", steps)
    check_positive("lr", lr)
    if not 0 <= test < 1:
        raise ValueError(f"test must be at least 0 and below 1, got {test}")
    torch.manual_seed(seed)
    images, texts = open_pairs(data)
    networks = _make(image, dim, pretrained, size), _make(text, dim, pretrained, None)
    if networks[0].dim != networks[1].dim or not networks[1].backbone.has_text_input:
        kind = "texts" if networks[1].backbone.has_text_input else "images or vectors"
        raise NearfarError(
            f"the encoders must have the same embedding dimension, and the second one must take texts; got dimensions "
            f"{networks[0].dim} and {networks[1].dim}, and the second one takes {kind}"
        )
    held_out = _choose_test(images.labels, test, seed)
    train = [manifest.subset(~held_out) for manifest in (images, texts)]
    criterion = IMAGE_TEXT_LOSSES[loss]()
    groups = [g for network in networks for g in network.parameter_groups(lr, 1.0, weight_decay, decay_vectors=False)]
    groups.append({"params": list(criterion.parameters()), "lr": lr, "weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups, lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    labels = torch.from_numpy(train[0].labels.copy())
    say(f"{len(labels):,} training pairs, {steps:,} steps of {min(batch_size, len(labels)):,}")
    loaders = [_loader(network, manifest, seed) for network, manifest in zip(networks, train, strict=True)]
    bar = tqdm(range(steps), desc="train", unit="batch", leave=False, disable=None if progress else True)
    for step, rows in zip(bar, _batches(len(labels), batch_size, steps, seed), strict=True):
        for network in networks:
            network.train()
        both = [
            network(to_device(_load(loader, rows, step), torch.device("cpu")))
            for network, loader in zip(networks, loaders, strict=True)
        ]
        value = criterion(both[0], labels[rows], ref_emb=both[1], ref_labels=labels[rows])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
    model = ImageTextModel(networks[0].eval(), networks[1].eval(), {})
    if held_out.any():
        tested = [model.embed(manifest.subset(held_out)) for manifest in (images, texts)]
        model.scores = _score(tested[0], tested[1], images.labels[held_out])
    if out is not None:
        model.save_pretrained(out)
    return model


def _make(network: str | nn.Module, dim: int | None, pretrained: bool, size: int | None) -> Embedder:
    if isinstance(network, Embedder):
        return network
    try:
        start = pretrained and isinstance(network, str)
        return create_embedder(network, dim=dim or DEFAULT_DIM, pretrained=start, input_size=size)
    except ValueError as error:
        raise NearfarError(f"model: {error}") from None


def _loader(network: Embedder, manifest: Manifest, seed: int = 0) -> BatchLoader:
    config = Config(images=Images(crop=None if manifest.kind == "text" else network.input_size))
    return prepare(config, manifest, network, check_images=False).loader(seed=seed)


def _load(loader: BatchLoader, rows: NDArray[np.int64], step: int) -> Tensor:
    return next(iter(loader.load([rows.tolist()], epoch=step))).x


def _batches(count: int, size: int, steps: int, seed: int) -> list[NDArray[np.int64]]:
    """Return `steps` batches of row numbers: slices of a random permutation, which is drawn again for each epoch."""
    rng, size = np.random.default_rng(seed), min(size, count)
    batches: list[NDArray[np.int64]] = []
    while len(batches) < steps:
        order = rng.permutation(count)
        batches += [order[start : start + size] for start in range(0, count - size + 1, size)]
    return batches[:steps]


def _choose_test(labels: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the test pairs. Pairs with the same text are all test pairs or all training pairs."""
    distinct = np.unique(labels)
    count = round(share * len(distinct))
    return np.isin(labels, np.random.default_rng(seed).permutation(distinct)[:count])


def _rate(step: int, steps: int) -> float:
    warm_up = max(1, steps // 10)
    return min((step + 1) / warm_up, (1 + math.cos(math.pi * step / steps)) / 2)


def _score(images: Tensor, texts: Tensor, labels: NDArray[np.int64]) -> dict[str, float]:
    sides = {"image to text": (texts, images), "text to image": (images, texts)}
    found: dict[str, float] = {}
    for name, (gallery, queries) in sides.items():
        scores = evaluate(gallery, labels, queries=(queries, labels), metrics=METRICS)
        found |= {f"{name} {metric}": value for metric, value in scores.items()}
    return found
