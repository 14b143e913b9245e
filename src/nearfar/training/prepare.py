"""From a configuration to the parts of a run: data by split, embedder, loss, batches, pacer, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from nearfar import pacing, samplers
from nearfar.config.schema import Config, Data, Images
from nearfar.data import (
    BatchAugment,
    BatchLoader,
    Manifest,
    NoiseRecord,
    add_label_noise,
    cache_images,
    create_dataset,
    drop_rows,
    eval_transform,
    open_data,
    scan_images,
    train_transform,
)
from nearfar.data.augment import DRAWINGS
from nearfar.errors import NearfarError
from nearfar.losses import ProxyLoss, create, loss_class
from nearfar.losses.base import Loss
from nearfar.losses.proxies.sharded import ShardedProxies
from nearfar.metrics.protocols import class_disjoint_split, mlrc_folds
from nearfar.models import Embedder, create_embedder, init_head_from_pca, init_proxies_from_class_means
from nearfar.pacing import Pacer
from nearfar.samplers import BatchSampler
from nearfar.training.distributed import process_group
from nearfar.training.evaluate import dtype_of, to_device
from nearfar.training.initialization import InitialState
from nearfar.training.projection import Projection

Say = Callable[[str], object]


@dataclass(frozen=True)
class Splits:
    """Manifests of a run: `train` has its classes numbered without gaps, the others as they come.

    `wrong`: where `train` got a wrong label on purpose.
    """

    train: Manifest
    validation: Manifest | None
    test: Manifest | None
    noise: NoiseRecord | None
    wrong: NDArray[np.bool_] | None = None


def opening(data: Data) -> Data:
    """What decides on the manifest, and nothing else: what is not here `open_manifest` does not see."""
    return Data(
        source=data.source,
        split=data.split,
        root=data.root,
        labels=data.labels,
        allow_partial=data.allow_partial,
        per_class=data.per_class,
    )


def open_manifest(data: Data) -> Manifest:
    """The data of a run as it is; `readable` then looks at its pictures."""
    data = opening(data)
    split = "class-order" if data.split == "class-order" else "auto"
    root, labels = (None if path is None else Path(path) for path in (data.root, data.labels))
    manifest = open_data(data.source, split=split, allow_partial=data.allow_partial, root=root, labels=labels)
    if data.split == "all":
        manifest = replace(manifest, split=np.full(len(manifest), "train"))
    return manifest if data.per_class is None else _at_most(manifest, data.per_class)


def _at_most(manifest: Manifest, count: int) -> Manifest:
    """With `count` training samples of each class that has more, drawn by chance but always the same."""
    shuffled = np.random.default_rng(0).permutation(manifest.rows("train"))
    by_class = shuffled[np.argsort(manifest.labels[shuffled], kind="stable")]
    _, first, sizes = np.unique(manifest.labels[by_class], return_index=True, return_counts=True)
    rank = np.arange(len(by_class)) - np.repeat(first, sizes)
    kept = manifest.split != "train"
    kept[by_class[rank < count]] = True
    return manifest.subset(kept)


def readable(manifest: Manifest, data: Data, *, size: int, say: Say = print) -> Manifest:
    """Picture files as a decoded cache, or without the files that cannot be read, where the configuration says so."""
    if manifest.kind != "files":
        return manifest
    before = len(manifest)
    with tqdm(
        total=before, unit="picture", leave=False, disable=None if process_group.is_main_process() else True
    ) as bar:
        if data.cache is not None:
            side = data.cache_size or round(size * 256 / 224)
            on_error: Literal["raise", "skip"] = "skip" if data.on_error == "skip" else "raise"
            bar.set_description("decode")
            manifest = cache_images(
                manifest,
                Path(data.cache),
                size=side,
                workers=max(1, data.workers),
                on_error=on_error,
                progress=lambda done: bar.update(done - bar.n),
            )
        elif data.on_error == "skip":
            bar.set_description("check")
            found = scan_images(manifest, workers=max(1, data.workers), progress=lambda *_: bar.update())
            for reason in list(found.broken.values())[:20]:
                say(f"skipped: {reason}")
            manifest = drop_rows(manifest, found.broken)
    if len(manifest) < before:
        say(f"{before - len(manifest)} of {before} pictures cannot be read and were left out")
    return manifest


def with_noise(manifest: Manifest, data: Data, *, seed: int) -> tuple[Manifest, NoiseRecord | None]:
    """The manifest with its validation classes held out, then with wrong labels in what is left for training."""
    if data.validation > 0 or data.folds is not None:
        rows = manifest.rows("train")
        split = manifest.split.astype("<U5").copy()
        split[rows[_held_out(manifest.labels[rows], data)]] = "val"
        manifest = replace(manifest, split=split)
    if data.noise.rate == 0:
        return manifest, None
    if data.noise.kind not in ("symmetric", "small-cluster"):
        raise NearfarError(f"data.noise.kind must be symmetric or small-cluster, got {data.noise.kind!r}")
    kind: Any = data.noise.kind
    noise_seed = seed if data.noise.seed is None else data.noise.seed
    return add_label_noise(manifest, data.noise.rate, seed=noise_seed, kind=kind)


def _held_out(labels: NDArray[np.int64], data: Data) -> NDArray[np.int64]:
    """The rows of the validation classes: a fold, or a share of the classes by chance."""
    classes = len(np.unique(labels))
    if data.folds is None:
        if classes < 2:
            raise NearfarError(f"data.validation={data.validation:g} needs at least two training classes")
        return class_disjoint_split(labels, fraction=data.validation, seed=data.validation_seed)[1]
    if data.fold is None:
        raise NearfarError(f"data.folds={data.folds} is for so many runs: set data.fold, from 0, for one of them")
    if classes < data.folds:
        raise NearfarError(f"data.folds={data.folds} needs as many training classes, there are {classes}")
    return mlrc_folds(labels, data.folds)[data.fold][1]


def split_up(manifest: Manifest, data: Data, *, seed: int) -> Splits:
    """Train, validation and test; noise is in the training labels only."""
    manifest, record = with_noise(manifest, data, seed=seed)
    parts = {name: manifest.subset(name) if len(manifest.rows(name)) else None for name in ("train", "val", "test")}
    if parts["train"] is None:
        raise NearfarError(f"{manifest.source or 'the data'} has no training samples")
    wrong = None if record is None else record.wrong[manifest.rows("train")]
    return Splits(parts["train"].compact(), parts["val"], parts["test"], record, wrong)


def make_embedder(config: Config, manifest: Manifest) -> Embedder:
    """The embedder for this data, with random or public weights."""
    model = config.model
    channels = 3
    if manifest.kind == "features":
        assert manifest.features is not None
        channels = manifest.features.shape[1]
    elif manifest.kind == "pixels":
        assert manifest.pixels is not None
        channels = 1 if manifest.pixels.ndim == 3 else 3
    if (manifest.kind == "features") != (model.backbone == "features"):
        raise NearfarError(f"model.backbone={model.backbone} does not fit data of {manifest.kind}: {manifest.source}")
    try:
        return create_embedder(
            model.backbone,
            dim=model.dim,
            pooling=model.pooling,
            gem_p=model.gem_p,
            head=model.head,
            hidden=model.hidden,
            layer_norm=model.layer_norm,
            init=model.init,
            channels=channels,
            input_size=config.images.crop,
            pretrained=model.pretrained,
            freeze_bn=model.freeze_bn,
        )
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:  # all but the first: a size that is none
        raise NearfarError(f"model: {error}") from None


def side_of(config: Config, embedder: Embedder, manifest: Manifest) -> int | None:
    """The side of the pictures for the network; drawings keep their own unless images.crop says otherwise."""
    drawings = manifest.pixels is not None and manifest.pixels.ndim == 3
    return config.images.crop if drawings else embedder.input_size


def make_loader(
    manifest: Manifest, images: Images, embedder: Embedder, *, side: int | None, seed: int, workers: int = 0
) -> BatchLoader:
    """Batches of a manifest's samples as this embedder wants them."""
    if manifest.kind == "features":
        return BatchLoader(create_dataset(manifest))
    look: dict[str, Any] = {"mean": embedder.mean, "std": embedder.std}
    if manifest.kind == "pixels":
        assert manifest.pixels is not None
        augment = (
            DRAWINGS if manifest.pixels.ndim == 3 else BatchAugment(crop=(images.min_scale, 1.0), ratio=(3 / 4, 4 / 3))
        )
        augment = replace(augment, flip=images.flip) if images.augment else BatchAugment()
        return BatchLoader(create_dataset(manifest, size=side, augment=augment, seed=seed, **look))
    assert side is not None
    test = eval_transform(side, images.resize, **look)
    train = train_transform(side, scale=(images.min_scale, 1.0), flip=images.flip, jitter=images.jitter, **look)
    samples = create_dataset(
        manifest, size=side, train_transform=train if images.augment else test, eval_transform=test, seed=seed, **look
    )
    return BatchLoader(samples, workers=workers)


LOSS_ADAPTERS: dict[str, Callable[[Loss], Loss]] = {}


def register_loss_adapter(option: str, adapter: Callable[[Loss], Loss]) -> None:
    """Register a function that replaces the loss of a run if its configuration has `loss.OPTION=true`."""
    LOSS_ADAPTERS[option] = adapter


def make_loss(config: Config, classes: int, dim: int) -> Loss:
    """Create the loss of a run; proxy losses get the number of classes and the dimension."""
    options = dict(config.loss)
    name = str(options.pop("name"))
    adapters = [adapter for option, adapter in LOSS_ADAPTERS.items() if options.pop(option, False)]
    try:
        if issubclass(loss_class(name), ProxyLoss):
            options = {"classes": classes, "dim": dim, **options}
        loss = create(name, **options)
        for adapter in adapters:
            loss = adapter(loss)
        return loss
    except ValueError as error:
        raise NearfarError(f"loss: {error}") from None
    except TypeError as error:  # a value of another kind than the option's
        given = ", ".join(f"{key}={value}" for key, value in config.loss.items())
        raise NearfarError(f"loss: {error} (its settings are {given})") from None


def shard(config: Config, loss: Loss) -> Loss:
    """The loss with its proxies split over the ranks, if the configuration says so."""
    if not config.shard_proxies:
        return loss
    if config.optimizer.clip_norm is not None:
        raise NearfarError("shard_proxies has no norm of all gradients: set optimizer.clip_value in place of clip_norm")
    if not isinstance(loss, ProxyLoss):
        raise NearfarError(f"shard_proxies needs a loss with proxies, got loss.name={config.loss['name']}")
    try:
        return ShardedProxies(loss)
    except ValueError as error:
        raise NearfarError(f"shard_proxies: {error}") from None


def make_batches(config: Config, train: Manifest) -> BatchSampler:
    """Create the sampler of the training samples from the settings that it reads."""
    settings = {key: value for key, value in asdict(config.batches).items() if value is not None}
    name = settings.pop("name")
    settings |= settings.pop("options")
    try:
        known = samplers.options(name)
        options = {key: value for key, value in settings.items() if key in known}
        return samplers.create(name, labels=train.labels, seed=config.seed, **options)
    except ValueError as error:
        raise NearfarError(f"batches: {error}") from None


def make_pacer(config: Config, train: Manifest) -> Pacer | None:
    """The pacer, if the configuration names one."""
    if not config.pacing:
        return None
    options = dict(config.pacing)
    try:
        name = str(options.pop("name", ""))
        return pacing.create(name, samples=len(train), classes=len(train.classes), **options)
    except ValueError as error:
        raise NearfarError(f"pacing: {error}") from None


def make_projection(config: Config, embedder: Embedder) -> Projection | None:
    """PROFS's projection term on every trainable parameter of the network, if the configuration gives it a weight."""
    if config.projection.weight == 0:
        return None
    return Projection([p for p in embedder.parameters() if p.requires_grad], weight=config.projection.weight)


def make_optimizer(config: Config, embedder: Embedder, loss: nn.Module) -> torch.optim.Optimizer:
    """The optimizer with its groups: trunk, head and the loss's own parameters."""
    want = config.optimizer
    groups = embedder.parameter_groups(
        want.lr, want.head_lr_multiplier, want.weight_decay, decay_vectors=want.decay_vectors
    )
    own = [p for p in loss.parameters() if p.requires_grad]
    if own:
        faster = want.proxy_lr_multiplier if isinstance(loss, ProxyLoss | ShardedProxies) else 1.0
        decay = want.weight_decay if want.proxy_weight_decay is None else want.proxy_weight_decay
        groups.append({"name": "loss", "params": own, "lr": want.lr * faster, "weight_decay": decay})
    if not groups:
        raise NearfarError("nothing is left to train: the backbone is frozen and neither head nor loss has parameters")
    for group in groups:
        group["top_lr"] = group["lr"]
    return _optimizer(want.name, groups, want.momentum, want.betas)


def _optimizer(
    name: str, groups: list[dict[str, Any]], momentum: float, betas: tuple[float, ...]
) -> torch.optim.Optimizer:
    if name in ("adam", "adamw"):
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise NearfarError(f"optimizer.betas must be two numbers from 0 to below 1, got {list(betas)}")
        adam = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return adam(groups, betas=(betas[0], betas[1]), fused=True)
    if name == "sgd":
        return torch.optim.SGD(groups, momentum=momentum, fused=True)
    return torch.optim.RMSprop(groups, momentum=momentum)


@torch.no_grad()
def start_well(config: Config, embedder: Embedder, loss: nn.Module, train: BatchLoader, start: InitialState) -> None:
    """With model.init=pca, the default for vectors: the head from PCA of what reaches it, proxies from class means.

    start: what is known of it already; the rest is added.
    """
    init = config.model.init or ("pca" if config.model.backbone == "features" else None)
    if init != "pca" or config.model.head == "identity":
        return
    device = next(embedder.parameters()).device
    if start.head is None or start.rows is None:
        try:
            start.rows = init_head_from_pca(
                embedder, (to_device(batch.x, device, dtype_of(embedder)) for batch in train.load_all())
            )
        except ValueError as error:
            raise NearfarError(f"model: {error} (model.init=random starts without)") from None
        start.head = {name: value.clone() for name, value in embedder.head.state_dict().items()}
    embedder.head.load_state_dict(start.head)
    if isinstance(loss, ProxyLoss):
        init_proxies_from_class_means(loss, start.rows, train.dataset.labels, seed=config.seed)
