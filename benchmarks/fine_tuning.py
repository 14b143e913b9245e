"""Time that `nearfar train` needs to reach a given Recall@1, compared with the usual fine-tuning loop.

    python -m benchmarks.fine_tuning cub.tar --goal 62 --markdown docs/benchmarks/fine-tuning.md

nearfar trains with its defaults for machines without a GPU: training images are smaller than test images. The usual
loop trains the same network on images of the size of test images, with pytorch-metric-learning's ProxyAnchorLoss, a
PyTorch DataLoader, AdamW with the same learning rates, frozen batch norm statistics and a cosine schedule. Its head and
proxies are initialized at random, as usual. Both loops have the same batch size and augmentation.

The two loops run one after the other in one process, with a fixed number of threads and without worker processes. The
script measures CPU time, because other work on the machine hardly affects it. This time includes computing the initial
head, but not the evaluation on the test classes after each epoch, which is the same for both loops. A loop ends when it
reaches the goal.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.timing import machine
from nearfar.config.merge import resolve
from nearfar.config.schema import Config
from nearfar.data import BatchDataset
from nearfar.formatting import markdown_table
from nearfar.models import Embedder, create_embedder
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer

NEARFAR, USUAL = "nearfar train", "usual loop"
Point = tuple[float, float]  # (CPU seconds, Recall@1)


class GoalReachedError(Exception):
    """Raised to end a run of nearfar that has reached the goal."""


class Clock:
    """A clock that measures the CPU time of this process and can be paused."""

    def __init__(self) -> None:
        self._start, self._paused = time.process_time(), 0.0

    def seconds(self) -> float:
        """Return the CPU seconds since the start, not counting pauses."""
        return time.process_time() - self._start - self._paused

    def pause(self, call: Callable[[], float]) -> Point:
        """Run `call` while the clock is paused. Return the seconds before the call, and its result."""
        seconds, start = self.seconds(), time.process_time()
        result = call()
        self._paused += time.process_time() - start
        return seconds, result


def make_config(source: str, folder: Path, settings: Sequence[str]) -> Config:
    """Return the configuration of `nearfar train SOURCE` on a machine without a GPU, but without worker processes."""
    samples = len(
        open_manifest(resolve("files", recipe="proxy-anchor", settings=[f"data.source={source}"]).data).rows("train")
    )
    fixed = [f"data.source={source}", "data.workers=0", "untrained=false", "save_every=1e9", "metrics=[recall@1,map@r]"]
    cache = str(folder / "activations")
    return resolve("files", recipe="proxy-anchor", settings=[*fixed, *settings], samples=samples, cache=cache)


def run_nearfar(config: Config, folder: Path, goal: float) -> list[Point]:
    """Train with nearfar until the goal is reached, and return the time and the score after each epoch."""
    points: list[Point] = []

    def score(trainer: Trainer, _: object) -> None:
        points.append(clock.pause(lambda: trainer.score("test")["recall@1"]))
        print(f"{NEARFAR}: {points[-1][0]:.0f} s, Recall@1 {100 * points[-1][1]:.1f}", flush=True)
        if points[-1][1] >= goal:
            raise GoalReachedError

    clock = Clock()
    trainer = Trainer(config, open_manifest(config.data), folder / "run", on_epoch_end=score)
    with suppress(GoalReachedError):
        trainer.fit(progress=False)
    return points


class ImagesAndLabels(Dataset[tuple[Tensor, int]]):
    """A dataset for a DataLoader. Its items are pairs of an augmented training image and its class."""

    def __init__(self, images: BatchDataset) -> None:
        self.images, self.epoch = images, 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images.fetch([index], epoch=self.epoch, train=True)[0], int(self.images.labels[index])


def run_usual_loop(config: Config, folder: Path, goal: float, epochs: int) -> list[Point]:
    """Fine-tune all blocks with pytorch-metric-learning and return the time and the score after each epoch."""
    # the trainer is used only for its images, batch size and evaluation, not for its network and loss
    plain = resolve(
        "files",
        recipe="proxy-anchor",
        settings=[
            *(f"data.source={config.data.source}", "data.workers=0", "model.init=kaiming", "model.proxies=random"),
            *("metrics=[recall@1,map@r]", f"images.crop={config.images.crop or 'null'}", f"epochs={epochs}"),
        ],
    )
    trainer = Trainer(plain, open_manifest(plain.data), folder / "usual", say=lambda _: None)
    batch_size, classes = trainer.state.sampler.size, len(trainer.splits.train.classes)
    points: list[Point] = []
    torch.manual_seed(config.seed)
    clock = Clock()
    network = make_network(config)
    loss = ProxyAnchorLoss(classes, network.dim, margin=0.1, alpha=32)
    lr, decay = config.optimizer.lr, config.optimizer.weight_decay
    proxies = {"params": loss.parameters(), "lr": lr * config.optimizer.proxy_lr_multiplier, "weight_decay": 0.0}
    optimizer = torch.optim.AdamW([{"params": network.parameters()}, proxies], lr=lr, weight_decay=decay)
    images = ImagesAndLabels(trainer.train_loader.dataset)
    loader = DataLoader(images, batch_size=batch_size, shuffle=True, drop_last=len(images) >= batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for epoch in range(epochs):
        images.epoch = epoch
        network.train()
        for x, labels in loader:
            optimizer.zero_grad()
            loss(network(x.to(memory_format=torch.channels_last)), labels).backward()
            optimizer.step()
            schedule.step()
        points.append(clock.pause(lambda: trainer.score("test", network)["recall@1"]))
        print(f"{USUAL}: {points[-1][0]:.0f} s, Recall@1 {100 * points[-1][1]:.1f}", flush=True)
        if points[-1][1] >= goal:
            break
    return points


def make_network(config: Config) -> Embedder:
    """Return the network of a configuration with a random head and all blocks trainable."""
    model = config.model
    network = create_embedder(
        model.backbone,
        dim=model.dim,
        pooling=model.pooling,
        input_size=config.images.crop,
        pretrained=model.pretrained,
        freeze_bn=model.freeze_bn,
    )
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def make_report(points: dict[str, list[Point]], goal: float, config: Config) -> str:
    """Return a report with a table of times and scores, and the ratio of the times that the loops need for the goal."""
    rows, times = [], {}
    for name, course in points.items():
        times[name] = next((seconds for seconds, score in course if score >= goal), None)
        best = max(score for _, score in course)
        reached = f"{times[name]:.0f}" if times[name] is not None else f"not in {course[-1][0]:.0f}"
        per_epoch = " ".join(f"{100 * score:.1f}" for _, score in course)
        rows.append([name, reached, per_epoch, f"{100 * best:.1f}"])
    table = markdown_table(["", f"CPU seconds to {100 * goal:g}", "Recall@1 after each epoch", "best"], rows)
    ours, usual = times[NEARFAR], times[USUAL]
    if ours is None:
        ratio = "nearfar did not reach the goal."
    else:
        least = "" if usual is not None else "at least "
        ratio = f"The usual loop takes {least}{(usual or points[USUAL][-1][0]) / ours:.1f} times as long."
    size = config.images.crop or create_embedder(config.model.backbone).input_size
    about = f"{config.model.backbone} at {size} pixels, batch size {config.batches.size}, {machine()}"
    return f"# Time to a Recall@1\n\n{about}.\n\n{table}\n\n{ratio}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both loops and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", help="image data, as for nearfar train")
    parser.add_argument("--goal", type=float, default=62.0, help="Recall@1 to reach, in percent")
    parser.add_argument("--epochs", type=int, default=8, help="maximum number of epochs of the usual loop (default 8)")
    parser.add_argument("--threads", type=int, default=1, help="number of torch threads (default 1)")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="a setting of nearfar train")
    parser.add_argument("--markdown", type=Path, help="file to write the report to")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    goal = options.goal / 100
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = make_config(options.source, folder, [f"threads={options.threads}", *options.settings])
        points = {NEARFAR: run_nearfar(config, folder, goal)}
        points[USUAL] = run_usual_loop(config, folder, goal, options.epochs)
    report = make_report(points, goal, config)
    print(report)
    if options.markdown is not None:
        options.markdown.write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main()
