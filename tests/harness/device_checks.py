"""Run every part of nearfar on the pretend CUDA device: `python -m tests.harness.device_checks GROUP...`.

The script prints one JSON object for `test_pretend_device.py`. For each scenario of each group, the object contains
either the error or the list of waits. A wait is an operation that makes the host (the CPU) wait for the GPU. A scenario
also fails if a result or a gradient is not on the device.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.harness import device_ranks
from tests.harness.pretend_cuda import LOG, DeviceMixError, Pretend, to_cuda, watched

import torch  # isort: skip
import numpy as np  # isort: skip
from PIL import Image  # isort: skip
from torch import Tensor  # isort: skip

from nearfar import pacing
from nearfar.compat import losses as compat_losses
from nearfar.compat import miners as compat_miners
from nearfar.config import recipes
from nearfar.config.merge import resolve
from nearfar.data import BatchAugment, BatchLoader, Manifest, create_dataset, open_data
from nearfar.losses import CrossBatchMemory, Loss, PairLoss, ProxyLoss, create, loss_class, names
from nearfar.losses.proxies.sharded import SHARDABLE, ShardedProxies
from nearfar.metrics import evaluate
from nearfar.mining import MINERS
from nearfar.models import create_embedder
from nearfar.models import names as backbone_names
from nearfar.training import Run, train
from nearfar.training.monitor import Monitor
from nearfar.training.step import train_step
from nearfar.training.trainer import Trainer

Scenario = Callable[[], object]
SAMPLES, CLASSES, DIM = 24, 8, 6
# options of losses that take a different code path than the defaults
FORMS: dict[str, dict[str, Any]] = {
    "contrastive cosine": {"form": "cosine"},
    "lifted anchor": {"form": "anchor"},
    "triplet smooth": {"smooth": True, "squared": False, "margin": 0.0},
    "triplet hard": {"mining": "hard"},
    "triplet semi-hard": {"mining": "semi-hard"},
    "triplet paired": {"mining": "paired"},
    "triplet nonzero": {"average": "nonzero"},
    "margin classes": {"classes": CLASSES, "nu": 0.01, "average": "nonzero"},
    "multi-similarity outside": {"weighting": "outside"},
    "n-pair all pairs": {"all_pairs": True},
    "hap2s polynomial": {"form": "polynomial"},
    "rdml margin": {"hinge": "margin"},
    "dro kl sampling": {"uncertainty": "kl", "sampling": True},
    "dro kl truncate": {"uncertainty": {"name": "kl", "truncate": "2B"}},
    **{f"dro {name}": {"uncertainty": name} for name in ("mean", "max", "topk-pn", "kl", "kl-g", "chi2")},
}


def batch(samples: int = SAMPLES, per_class: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    weights = torch.rand(samples, generator=generator)
    weights[2] = 0
    return torch.randn(samples, DIM, generator=generator), torch.arange(samples) // per_class % CLASSES, weights


def make_loss(label: str) -> Loss:
    name = label.split()[0]
    options: dict[str, Any] = {"classes": CLASSES, "dim": DIM} if issubclass(loss_class(name), ProxyLoss) else {}
    return create(name, **options, **FORMS.get(label, {}))


def step(loss: Loss, x: Tensor, labels: Tensor, *, steps: int = 2, half: Any = None, **inputs: Any) -> None:
    """Run forward and backward passes on the device. Only the waits of the last step are counted."""
    loss.to("cuda").train()
    for _ in range(steps):
        rows = to_cuda(x).requires_grad_()
        given: dict[str, Any] = {
            key: to_cuda(value) if isinstance(value, Tensor) else value for key, value in inputs.items()
        }
        target = to_cuda(labels)
        LOG.take()
        with torch.autocast("cuda", dtype=half, enabled=half is not None):
            loss(rows, target, **given).backward()
    assert isinstance(rows.grad, Pretend), "the gradient is not on the device"
    assert all(isinstance(p, Pretend) for p in loss.parameters()), "a parameter is not on the device"


def step_of(make: Callable[[], Loss], *args: Any, **options: Any) -> None:
    step(make(), *args, **options)


def make_memory(name: str) -> CrossBatchMemory:
    loss = create(name)
    assert isinstance(loss, PairLoss)
    return CrossBatchMemory(loss, size=40, dim=DIM)


def make_sharded(name: str) -> ShardedProxies:
    loss = make_loss(name)
    assert isinstance(loss, ProxyLoss)
    return ShardedProxies(loss)


def losses() -> Iterator[tuple[str, Scenario]]:
    for label in sorted([*names(), *FORMS]):
        x, labels, weights = batch(per_class=2 if label == "n-pair" else 3)
        if label == "n-pair":
            x, labels, weights = x[:16], labels[:16], weights[:16]
        make = partial(make_loss, label)
        yield label, partial(step_of, make, x, labels)
        yield f"{label} weights", partial(step_of, make, x, labels, weights=weights)
        yield f"{label} float16", partial(step_of, make, x.half(), labels, steps=1)
        yield f"{label} bfloat16 autocast", partial(step_of, make, x, labels, steps=1, half=torch.bfloat16)
        if not isinstance(make(), PairLoss):
            continue
        refs = {"ref_emb": x.flip(0), "ref_labels": labels.flip(0), "ref_weights": weights.flip(0)}
        yield f"{label} references", partial(step_of, make, x, labels, steps=1, **refs)
        examples = torch.arange(len(x)) % 8
        yield f"{label} representatives", partial(step_of, make, x, examples, steps=1, representatives=8)
        if label not in ("n-pair", "margin classes"):
            hot = torch.nn.functional.one_hot(labels)
            yield f"{label} multi-hot", partial(step_of, make, x, hot, steps=1)


def additions() -> Iterator[tuple[str, Scenario]]:
    """Yield scenarios for miners, cross-batch memory, sharded proxies, `validate`, and labels on the CPU."""
    x, labels, weights = batch()
    for name in MINERS:
        mine = {"name": name, "dim": DIM} if name == "distance-weighted" else {"name": name}
        yield f"miner {name}", partial(step_of, partial(create, "contrastive", form="cosine", mine=mine), x, labels)
    for name in ("supcon", "triplet"):
        memory = partial(make_memory, name)
        yield f"memory {name}", partial(step_of, memory, x, labels, steps=3)
        yield f"memory {name} weights", partial(step_of, memory, x, labels, steps=3, weights=weights)

    def resumed_memory() -> None:
        first, second = (make_memory("supcon").to("cuda") for _ in range(2))
        first(to_cuda(x), to_cuda(labels))
        second.load_state_dict({key: value.cpu() for key, value in first.state_dict().items()})
        step(second, x, labels, steps=1)

    yield "memory resumed", resumed_memory
    for cls in SHARDABLE:
        name = next(name for name in names() if loss_class(name) is cls)
        sharded = partial(make_sharded, name)
        yield f"sharded {name}", partial(step_of, sharded, x, labels, weights=weights)

    def mixed_labels() -> None:
        loss = create("supcon")
        LOG.take()
        loss(to_cuda(x).requires_grad_(), labels, weights=weights).backward()

    yield "labels and weights on the cpu", mixed_labels

    def validated() -> None:
        broken = to_cuda(torch.full_like(x, torch.nan)).requires_grad_()
        create("supcon")(broken, to_cuda(labels))
        try:
            create("supcon", validate=True)(broken, to_cuda(labels))
        except ValueError as error:
            assert "NaN" in str(error)  # noqa: PT017
        else:
            raise AssertionError("NaN was not found")

    yield "validate", validated
    for name, cls in sorted(vars(compat_miners).items()):
        if name.endswith("Miner") and isinstance(cls, type) and name not in ("Miner", "BaseMiner", "HardnessMiner"):

            def mine_on_cpu(cls: Any = cls) -> None:
                mined = cls()(to_cuda(x), labels)
                compat_losses.TripletMarginLoss()(to_cuda(x).requires_grad_(), labels, mined).backward()

            yield f"compat {name} with labels on the cpu", mine_on_cpu


def pacers() -> Iterator[tuple[str, Scenario]]:
    x, labels, _ = batch()
    indices = torch.arange(SAMPLES)

    def make(name: str) -> pacing.Pacer:
        return pacing.create(name, samples=SAMPLES, classes=CLASSES, **({"noise_rate": 0.3} if name == "prism" else {}))

    def weigh(name: str) -> pacing.Pacer:
        pacer = make(name)
        for _ in range(3):
            rows, target = to_cuda(x), to_cuda(labels)
            LOG.take()
            weights = pacer.batch_weights(rows, target, indices)
        assert isinstance(weights, Pretend)
        return pacer

    def update(name: str, place: Callable[[Tensor], Tensor]) -> None:
        pacer = make(name)
        pacer.update(place(x), labels, loss=make_loss("mpa-ap").to("cuda"))
        assert pacer.weights.device.type == "cpu"

    def resume(name: str) -> None:
        state = weigh(name).state_dict()
        pacer = make(name)
        pacer.load_state_dict({key: v.cpu() if isinstance(v, Tensor) else v for key, v in state.items()})
        pacer.batch_weights(to_cuda(x), to_cuda(labels), indices)

    for name in pacing.names():
        yield f"pacer {name}", partial(weigh, name)
        yield f"pacer {name} update from the cpu", partial(update, name, torch.Tensor.detach)
        yield f"pacer {name} update", partial(update, name, to_cuda)
        yield f"pacer {name} resumed", partial(resume, name)


def metrics() -> Iterator[tuple[str, Scenario]]:
    x, labels, _ = batch()

    def cuda() -> tuple[Tensor, Tensor]:
        return to_cuda(x), to_cuda(labels)

    every = ["recall@1", "map@r", "ndcg@10", "nmi", "f1", "silhouette"]
    yield "evaluate", lambda: evaluate(*cuda(), metrics=every)
    yield "evaluate queries", lambda: evaluate(*cuda(), queries=(x[:5], labels[:5]))
    yield "evaluate device", lambda: evaluate(x, labels, device="cuda", distance="euclidean")
    yield "evaluate multi-hot", lambda: evaluate(to_cuda(x), to_cuda(torch.nn.functional.one_hot(labels)))


def models() -> Iterator[tuple[str, Scenario]]:
    def run(name: str, half: torch.dtype | None) -> None:
        channels, side = (1, 28) if name.startswith("small") else (3, 32)
        network = create_embedder(name, dim=4, channels=8 if name == "features" else channels)
        network.to(device="cuda", memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        x = torch.randn(2, 8) if name == "features" else torch.randn(2, channels, side, side)
        x = x.to("cuda", non_blocking=True)
        LOG.take()
        with torch.autocast("cuda", dtype=half, enabled=half is not None):
            network(x).float().square().sum().backward()
        assert all(p.grad is None or isinstance(p.grad, Pretend) for p in network.parameters())

    for name in backbone_names():
        yield f"model {name}", partial(run, name, None)
    yield "model small bfloat16", lambda: run("small", torch.bfloat16)
    yield "model small float16", lambda: run("small", torch.float16)


def loaders() -> Iterator[tuple[str, Scenario]]:
    """Check that batches for the device equal those for the CPU, and come from pinned memory, images as uint8."""
    rng = np.random.default_rng(0)
    gray, color = (rng.integers(0, 256, (12, 10, 10, *more)).astype(np.uint8) for more in ((), (3,)))
    table: dict[str, Any] = {"labels": np.arange(12) % 3, "classes": tuple("abc"), "split": np.array(["train"] * 12)}
    folder = Path(tempfile.mkdtemp())
    for i, pixels in enumerate(color):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    files = Manifest(**table, root=folder, paths=tuple(f"{i}.png" for i in range(12)))
    augment = BatchAugment(crop=(0.3, 0.9), rotate=20, flip=0.5, brightness=0.2, contrast=0.2, fill=9.0)
    datasets = {
        "vectors": create_dataset(Manifest(**table, features=rng.normal(size=(12, 4)))),
        "gray arrays": create_dataset(Manifest(**table, pixels=gray)),
        "color arrays": create_dataset(Manifest(**table, pixels=color), size=8, augment=augment),
        "files": create_dataset(files, size=8),
    }
    batches = [list(range(i, i + 3)) for i in (0, 3, 6, 9)]

    def load(name: str, *, train: bool, read_ahead: bool) -> None:
        dataset, requested, pinned = datasets[name], 0, []
        pin = torch.Tensor.pin_memory

        def request() -> Iterator[list[int]]:
            nonlocal requested
            for rows in batches:
                requested += 1
                yield rows

        def pin_memory(x: Tensor) -> Tensor:
            pinned.append(x.dtype)
            return pin(x)

        expected = list(BatchLoader(dataset).load(batches, epoch=1, train=train))
        torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]
        try:
            loader = BatchLoader(dataset, device=torch.device("cuda"))
            loaded = loader.load(request(), epoch=1, train=train, read_ahead=read_ahead)
            LOG.take()
            first = next(loaded)
            assert requested == (3 if read_ahead and name != "files" else 1), f"{requested} batches were requested"
            found = [first, *loaded]
        finally:
            torch.Tensor.pin_memory = pin  # type: ignore[method-assign]
        assert pinned == [torch.float32 if name == "vectors" else torch.uint8] * 4, pinned
        for one, other in zip(expected, found, strict=True):
            assert isinstance(other.x, Pretend)
            assert torch.allclose(one.x, other.x.held, atol=1e-5), "the inputs differ"
            assert torch.equal(one.labels, other.labels)

    for name in datasets:
        yield f"loader {name}", partial(load, name, train=False, read_ahead=False)
        yield f"loader {name} ahead, for training", partial(load, name, train=True, read_ahead=True)


def make_vectors(folder: Path, classes: int) -> str:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), 8)
    features = generator.normal(size=(classes, 16))[labels] + generator.normal(size=(len(labels), 16))
    split = np.where(labels < 0.8 * classes, "train", "test")
    np.savez(folder / "vectors.npz", features=features.astype(np.float32), labels=labels, split=split)
    return str(folder / "vectors.npz")


def make_config(source: str, recipe: str, *settings: str) -> Any:
    base = [f"data.source={source}", "untrained=false", "model.dim=12", "steps=6", "log_every=1000"]
    return replace(resolve("features", width=16, recipe=recipe, settings=[*base, *settings]), device="cuda")


def steps() -> Iterator[tuple[str, Scenario]]:
    """Yield two training steps for each recipe and for some other settings. Only the waits of the second step count."""
    folder = Path(tempfile.mkdtemp())
    source = make_vectors(folder, 80)
    data = open_data(source)

    def run(recipe: str, *settings: str, logs: bool = False) -> None:
        trainer = Trainer(make_config(source, recipe, "model.init=random", *settings), data, folder, say=lambda _: None)
        trainer.start_epoch()
        for number, each in enumerate(trainer.batches()):
            LOG.take()
            result = train_step(trainer.state, each, steps=6)
            trainer.state.count_step(result.loss)
            if number == 1:
                break
        if logs:
            monitor = Monitor(trainer.state, folder, steps=6, progress=False, say=lambda _: None)
            monitor._log_step(result)
            monitor.close()

    for recipe in recipes.names():
        yield f"step {recipe}", partial(run, recipe)
    variants = {
        "float16": ["autocast=fp16"],
        "bfloat16": ["autocast=bf16"],
        "ema and clipping": ["ema=0.9", "optimizer.clip_norm=1", "optimizer.clip_value=1"],
        "two passes": ["micro_batch=32"],
        "rmsprop": ["optimizer.name=rmsprop"],
    }
    for name, settings in variants.items():
        yield f"step with {name}", partial(run, "supcon", *settings)
    yield "step with a log entry, pair loss", lambda: run("supcon", logs=True)
    yield "step with a log entry, proxy loss", lambda: run("proxy-anchor", logs=True)


def runs() -> Iterator[tuple[str, Scenario]]:
    """Yield whole runs, which are stopped and resumed, the use of a finished run, and a run with a failed batch."""
    folder = Path(tempfile.mkdtemp())
    source = make_vectors(folder, 20)
    short = ("steps=null", "epochs=2", "log_every=2", "batches.size=32")  # two epochs of four steps

    def run(recipe: str, *settings: str) -> None:
        config = make_config(source, recipe, *short, *settings)
        out = folder / f"{recipe}-{len(settings)}"
        whole = train(config, out / "whole", say=lambda _: None, progress=False)
        cut = replace(config, save_every=0.0)
        train(cut, out / "cut", say=lambda _: None, progress=False, stop_after=6)
        resumed = train(cut, out / "cut", say=lambda _: None, progress=False, resume=True)
        for one, other in zip(whole.embedder().parameters(), resumed.embedder().parameters(), strict=True):
            assert torch.equal(one.detach().cpu(), other.detach().cpu()), "the resumed run has different weights"

    yield "run proxy-anchor from PCA", lambda: run("proxy-anchor", "model.init=pca")
    yield "run mpa-ap point-wise", lambda: run("mpa-ap", "pacing.name=point-wise")
    yield "run prism", lambda: run("prism")
    yield "run proxy-isa", lambda: run("proxy-isa", "loss.memory_epoch=0", "loss.filter_epoch=1")
    yield "run distance-weighted", lambda: run("pair-margin", "loss.mine={name: distance-weighted, dim: 12}")

    def use() -> None:
        out = Run(folder / "proxy-anchor-1" / "whole")
        assert next(out.embedder().parameters()).device.type == "cuda"
        assert next(out.embedder(device="cpu").parameters()).device.type == "cpu"
        out.evaluate()

    yield "run is used", use

    def fails() -> None:
        config = make_config(source, "supcon")
        trainer = Trainer(config, open_data(source), folder / "failed", say=lambda _: None)
        trainer.start_epoch()
        each = next(iter(trainer.batches()))
        before = [p.detach().clone() for p in trainer.state.embedder.parameters()]
        try:
            train_step(trainer.state, each._replace(x=each.x * torch.nan), steps=6)
            trainer.state.watchdog.wait()
        except ValueError as error:
            assert "embeddings has NaN" in str(error)  # noqa: PT017
        else:
            raise AssertionError("NaN was not found")
        for old, new in zip(before, trainer.state.embedder.parameters(), strict=True):
            assert torch.equal(old, new), "a failed step changed the weights"

    yield "run with a failed batch", fails


def ranks() -> Iterator[tuple[str, Scenario]]:
    """Yield trainings that this process and a second process share (see `device_ranks`)."""
    found: dict[str, list[str]] = {}

    def run() -> None:
        found.update(device_ranks.run_pair(Path(tempfile.mkdtemp())))
        LOG.take()

    def repeat(name: str) -> None:
        LOG.waits = [(wait, name) for wait in found[name]]

    yield "two processes", run
    for name in device_ranks.CASES:
        yield name, partial(repeat, name)


def planted() -> Iterator[tuple[str, Scenario]]:
    """Yield faults that the device must find: "mix ..." must fail, and a number in the name is the number of waits."""
    x, cpu = to_cuda(torch.randn(4, 3)), torch.randn(4, 3)
    yield "mix in add", lambda: x + cpu
    yield "mix in product", lambda: x @ cpu.T
    yield "mix in cat", lambda: torch.cat([x, cpu])
    yield "mix in numpy", lambda: x.numpy()
    yield "mix in index", lambda: cpu[to_cuda(torch.tensor([0]))]
    yield "mix in generator", lambda: torch.rand(3, device="cuda", generator=torch.Generator())
    zeros = torch.zeros(4, dtype=torch.int64)
    yield "mix in index_add", lambda: torch.zeros(4, 3, device="cuda").index_add_(0, zeros, x)
    yield "1 item", lambda: float(x.sum())
    yield "1 mask", lambda: x[x > 0]
    yield "1 unique", lambda: x.unique()  # type: ignore[no-untyped-call]
    yield "1 tensor", lambda: torch.tensor([1.0], device="cuda")
    yield "1 cpu", lambda: x.cpu()
    yield "1 to", lambda: cpu.to("cuda")
    yield "0 async", lambda: cpu.to("cuda", non_blocking=True)
    yield "0 where", lambda: torch.where(x > 0, x, 0.0) @ x.T
    yield "0 scalar", lambda: x * cpu.sum()


PARTS = (planted, losses, additions, pacers, metrics, models, loaders, steps, runs, ranks)
GROUPS = {group.__name__: group for group in PARTS}


def check(scenario: Scenario) -> dict[str, Any]:
    try:
        with watched(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scenario()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, DeviceMixError):
            cause = cause.__cause__ or cause.__context__
        return {"error": f"{type(cause or error).__name__}: {cause or error}"[:400]}
    return {"waits": [f"{kind} at {place}" for kind, place in LOG.take()]}


def main() -> None:
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or list(GROUPS)
    print(json.dumps({group: {name: check(scenario) for name, scenario in GROUPS[group]()} for group in chosen}))


if __name__ == "__main__":
    main()
