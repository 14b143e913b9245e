"""CPU time per image of each part of training on images, and the retrieval scores of each pretrained backbone.

    python -m benchmarks.image_pipeline cub.tar --score --markdown docs/benchmarks/image-pipeline.md

The parts are measured in turn in one process, with a fixed number of threads. The script reports the best CPU time over
the rounds, because other work on the machine hardly affects it. "Pillow" decodes an image and resizes it to the input
size, without augmentation, which is the minimum that any pipeline does. A step is a forward and a backward pass of a
batch. `--score` embeds the test images with the untrained network and reports the scores of its features.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.timing import machine
from nearfar.config.merge import resolve
from nearfar.data.images import ImageReader
from nearfar.data.row_store import RowLayout, RowStore
from nearfar.formatting import markdown_table
from nearfar.models import Embedder, create_embedder
from nearfar.training.components import make_embedder
from nearfar.training.evaluate import embed, score
from nearfar.training.memory import estimate_step_memory
from nearfar.training.prepare import prepare, training_size
from nearfar.training.splits import open_manifest

BACKBONES = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
BATCH_SIZE = 64  # batch size for the memory estimate


def best_cpu_ms(calls: dict[str, Callable[[], object]], *, images: int, rounds: int) -> dict[str, float]:
    """Return the best CPU time of each call in milliseconds per image. The calls take turns."""
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if turn:  # the first round warms up
                best[name] = min(best[name], (time.process_time() - start) * 1e3 / images)
    return best


def step(network: Embedder, compute: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Compute a forward and a backward pass."""
    compute(x).square().sum().backward()  # type: ignore[no-untyped-call]
    network.zero_grad(set_to_none=True)


def resize_plainly(file: bytes, size: int) -> Image.Image:
    """Decode an image and resize it with Pillow."""
    return Image.open(BytesIO(file)).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)


def measure(source: str, backbone: str, *, images: int, rounds: int, scored: bool) -> dict[str, float]:
    """Measure a backbone at its own input size: milliseconds per image, memory in bytes, scores in percent."""
    settings = [f"data.source={source}", f"model.backbone={backbone}", "data.workers=0"]
    whole = resolve("files", recipe="proxy-anchor", settings=settings, cache="unused")
    config = replace(whole, model=replace(whole.model, train_from=0.5), images=replace(whole.images, train_crop=None))
    manifest = open_manifest(config.data)
    embedder, full = (make_embedder(each, manifest) for each in (config, whole))
    for network in (embedder, full):
        network.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    train = manifest.subset("train")
    data = prepare(config, train, embedder, check_images=False)
    dataset, rows = data.loader().dataset, list(range(0, len(train), max(1, len(train) // images)))[:images]
    size = embedder.input_size
    reader = ImageReader(train)
    files = [reader.read_bytes(row) for row in rows]
    x = dataset.fetch(rows, train=True).to(memory_format=torch.channels_last)
    small_size = training_size(whole.images, size)  # of training images without a GPU
    small = torch.nn.functional.interpolate(x, size=small_size).to(memory_format=torch.channels_last)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        activations = embedder.lower(x)
        store = RowStore(Path(folder), RowLayout(len(rows), tuple(activations.shape[1:]), "float16"), {})
        with store.building(lambda: None):
            for shard in range(store.layout.shards):
                store.write_shard(shard, activations[list(store.layout.shard(shard))].numpy().astype(np.float16))
        with torch.enable_grad():
            result = best_cpu_ms(
                {
                    "Pillow": lambda: [resize_plainly(file, size) for file in files],
                    "test view": lambda: dataset.fetch(rows),
                    "augmented view": lambda: dataset.fetch(rows, train=True),
                    "frozen blocks": lambda: embedder.lower(x),
                    "cache read": lambda: torch.from_numpy(store.read(range(len(rows))).astype(np.float32)),
                    "step above the cache": lambda: step(embedder, embedder.upper, activations),
                    "step of all blocks": lambda: step(full, full, x),
                    "step of all blocks, smaller images": lambda: step(full, full, small),
                },
                images=len(rows),
                rounds=rounds,
            )
    for name, network, compute, inputs in (
        ("memory above the cache", embedder, embedder.upper, activations),
        ("memory of all blocks", full, full, x),
        ("memory of all blocks, smaller images", full, full, small),
    ):
        result[name] = estimate_step_memory(config, network, compute, inputs[:2], BATCH_SIZE)
    if scored:
        network = create_embedder(backbone, head="identity", pooling=config.model.pooling, pretrained=True).eval()
        test = manifest.subset("test")
        loader = prepare(config, test, network, check_images=False).loader()
        scores = score(embed(network, loader, progress=False), test, ["recall@1", "map@r"])
        result |= {name: 100 * value for name, value in scores.items()}
    return result


def make_report(results: dict[str, dict[str, float]], about: str) -> str:
    """Return the measurements as a Markdown page, one column for each backbone."""
    units = {"memory": lambda value: f"{value / 2**30:.1f} GB", "": lambda value: f"{value:.1f}"}
    names = list(next(iter(results.values())))
    rows = [
        [name, *(units["memory" if name.startswith("memory") else ""](result[name]) for result in results.values())]
        for name in names
    ]
    table = markdown_table(["ms per image, unless stated otherwise", *results], rows)
    return f"# The image pipeline\n\n{about}\n\n{table}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all backbones and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", help="image data, as for nearfar train")
    parser.add_argument("--backbones", default=",".join(BACKBONES), help="comma-separated names of backbones")
    parser.add_argument("--images", type=int, default=16, help="number of images in a batch (default 16)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default 3)")
    parser.add_argument("--threads", type=int, default=1, help="number of torch threads (default 1)")
    parser.add_argument("--score", action="store_true", help="also score the features of the untrained network")
    parser.add_argument("--markdown", type=Path, help="file to write the report to")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    results = {}
    for name in options.backbones.split(","):
        results[name] = measure(
            options.source, name, images=options.images, rounds=options.rounds, scored=options.score
        )
        print(name, {key: round(value, 2) for key, value in results[name].items()}, flush=True)
    report = make_report(results, f"{Path(options.source).name}, {machine()}, batches of {options.images} images.")
    print(report)
    if options.markdown is not None:
        options.markdown.write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main()
