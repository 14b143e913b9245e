"""Create the feature vectors that `benchmarks.defaults` uses to choose and check the defaults of the recipes.

    python -m benchmarks.default_vectors drawings sketches vectors/drawings.npz
    python -m benchmarks.default_vectors drawings omniglot_28px.npz vectors/omniglot.npz
    python -m benchmarks.default_vectors images cars196_112px.tar vectors/cars.npz --size 112 --per-class 60
    python -m benchmarks.default_vectors texts clinc150.csv vectors/clinc.npz --encoder all-MiniLM-L6-v2

A frozen EfficientNet-Lite0 embeds drawings and images; this needs the `pretrained` extra. A frozen text encoder from
transformers, with mean pooling, embeds texts; this needs the `hub` extra and the directory of the encoder. Training and
test classes are disjoint. If the data has no splits, the first half of the classes is for training.
"""

from __future__ import annotations

import argparse
import csv
import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearfar.data import BatchLoader, Manifest, PixelDataset, open_data, save_manifest
from nearfar.data.manifest import number_labels
from nearfar.errors import NearfarError
from nearfar.models import create_embedder
from nearfar.training.evaluate import embed
from nearfar.training.pretrained_embeddings import embed_pretrained

ROWS = 2048  # number of drawings that are rendered at a time
TEXTS = 64  # number of texts in a batch of the encoder


def embed_drawings(manifest: Manifest, size: int) -> Tensor:
    """Embed gray drawings that are white on black. They are first inverted and resized to a side of `size` pixels."""
    if manifest.pixels is None or manifest.pixels.ndim != 3:
        raise NearfarError(
            f"{manifest.source}: is not an array of gray drawings of shape [N, H, W]: use `images` for image files"
        )
    network = create_embedder("efficientnet-lite0", pretrained=True, head="identity", input_size=size)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parts = []
    for start in range(0, len(manifest), ROWS):
        part = manifest.subset(np.arange(start, min(start + ROWS, len(manifest))))
        assert part.pixels is not None
        large = [np.asarray(Image.fromarray(255 - drawing).resize((size, size))) for drawing in part.pixels]
        rendered = replace(part, pixels=np.repeat(np.stack(large)[..., None], 3, axis=-1), digest="")
        loader = BatchLoader(PixelDataset(rendered, augment=None, mean=network.mean, std=network.std))
        parts.append(embed(network, loader, batch_size=64))
    return torch.cat(parts)


def embed_texts(texts: Sequence[str], encoder: Path) -> Tensor:
    """Embed texts as the mean of the token vectors of an encoder from transformers."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        raise NearfarError("texts need transformers: pip install 'nearfar[hub]'") from None
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder, local_files_only=True)
    network = transformers.AutoModel.from_pretrained(encoder, local_files_only=True).eval()
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # similar lengths need little padding
    result = torch.empty(len(texts), network.config.hidden_size)
    with torch.no_grad():
        for rows in (order[start : start + TEXTS] for start in range(0, len(order), TEXTS)):
            tokens = tokenizer([texts[row] for row in rows], padding=True, truncation=True, return_tensors="pt")
            mask = tokens["attention_mask"][..., None]
            result[rows] = (network(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)
    return result


def read_texts(path: Path) -> tuple[list[str], Manifest]:
    """Read a CSV file with the columns `text` and `label`. Return the texts and a manifest with empty features.

    The first half of the classes is for training, the second half for testing.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    if not rows or not {"text", "label"} <= rows[0].keys():
        raise NearfarError(f"{path}: needs the columns 'text' and 'label'")
    labels, classes = number_labels([row["label"] for row in rows])
    empty = np.zeros((len(rows), 0), np.float16)
    manifest = Manifest(labels=labels, classes=classes, split=np.full(len(rows), "train"), features=empty)
    return [row["text"] for row in rows], manifest.split_by_class_order()


def limit_samples(manifest: Manifest, count: int) -> Manifest:
    """Return a manifest with at most `count` random samples of each training and test class."""
    order = np.random.default_rng(0).permutation(len(manifest))
    chosen = [order[manifest.labels[order] == label][:count] for label in range(len(manifest.classes))]
    return manifest.subset(np.sort(np.concatenate(chosen)))


def main(argv: list[str] | None = None) -> None:
    description = __doc__.split("\n")[0] if __doc__ else None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.default_vectors", description=description)
    parser.add_argument("kind", choices=("drawings", "images", "texts"), help="kind of the data")
    parser.add_argument("source", help="the data: anything that `nearfar data` opens, or a CSV file of texts")
    parser.add_argument("out", type=Path, metavar="FILE.npz", help="file to write the vectors to")
    parser.add_argument("--size", type=int, default=96, help="side of the images in pixels (default 96)")
    parser.add_argument("--per-class", type=int, help="maximum number of samples per class (default all)")
    parser.add_argument("--encoder", type=Path, help="directory of a transformers text encoder")
    args = parser.parse_args(argv)
    if args.kind == "texts" and args.encoder is None:
        parser.error("texts need --encoder")
    torch.set_num_threads(1)
    texts: list[str] = []
    if args.kind == "texts":
        texts, manifest = read_texts(Path(args.source))
    else:
        manifest = open_data(args.source)
    if args.per_class is not None:
        if args.kind == "texts":
            parser.error("--per-class is for drawings and images")
        manifest = limit_samples(manifest, args.per_class)
    if args.kind == "texts":
        vectors = embed_texts(texts, args.encoder)
    elif args.kind == "drawings":
        vectors = embed_drawings(manifest, args.size)
    else:
        vectors = embed_pretrained(manifest, size=args.size)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    features = vectors.numpy().astype(np.float16)
    kept = Manifest(labels=manifest.labels, classes=manifest.classes, split=manifest.split, features=features)
    save_manifest(kept, args.out)
    print(kept.summary())


if __name__ == "__main__":
    main()
