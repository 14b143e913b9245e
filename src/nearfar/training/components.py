"""Create the parts of a run from its configuration: embedder, loss, sampler, pacer, optimizer, projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from nearfar import pacing, samplers
from nearfar.config.schema import SEVERAL, Config
from nearfar.data import Manifest
from nearfar.data.pair_table import PairTable
from nearfar.errors import NearfarError, is_out_of_memory
from nearfar.losses import HAPLoss, MatryoshkaLoss, ProxyLoss, RelationLoss, create, loss_class
from nearfar.losses.base import Loss
from nearfar.losses.combined import CombinedLoss, losses_of
from nearfar.losses.proxies.sharded import ShardedProxies
from nearfar.models import Embedder, add_lora, create_embedder
from nearfar.models.backbones import is_built_in
from nearfar.models.own_network import LIBRARIES
from nearfar.pacing import Pacer
from nearfar.samplers import BatchSampler
from nearfar.training.input_kind import check_same_kind, count_channels
from nearfar.training.projection import Projection
from nearfar.validation import Ints

LOSS_ADAPTERS: dict[str, Callable[[Loss], Loss]] = {}


def register_loss_adapter(option: str, adapter: Callable[[Loss], Loss]) -> None:
    """Register a function that replaces the loss of a run if its configuration has `loss.OPTION=true`."""
    LOSS_ADAPTERS[option] = adapter


def make_embedder(config: Config, manifest: Manifest, network: nn.Module | None = None) -> Embedder:
    """Create the embedder for this data, with random or pretrained weights.

    Args:
        config: The configuration.
        manifest: The data, which determines the number of input channels.
        network: Your own network, which replaces the backbone. If it is an embedder, it is checked and returned.
    """
    model = config.model
    if isinstance(network, Embedder):
        check_same_kind(network, manifest, "the embedder")
        network.backbone.set_token_dropout(model.token_dropout)
        return network
    channels = count_channels(manifest)
    is_own = network is not None or not (is_built_in(model.backbone) or model.backbone.startswith(LIBRARIES))
    if not is_own and (manifest.kind == "features") != (model.backbone == "features"):
        raise NearfarError(
            f"model.backbone={model.backbone} does not fit the data {manifest.source}, which has {manifest.kind}: "
            "use model.backbone=features for feature vectors, and another backbone for images"
        )
    is_text = manifest.kind == "text"
    try:
        embedder = create_embedder(
            model.backbone if network is None else network,
            dim=model.dim,
            pooling=model.pooling,
            gem_p=model.gem_p,
            head=model.head,
            hidden=model.hidden,
            layer_norm=model.layer_norm,
            init=model.init,
            center=model.center,
            mirror=model.mirror,
            channels=channels,
            input_size=model.max_tokens if is_text else config.images.crop,
            pretrained=model.pretrained,
            freeze_bn=model.freeze_bn,
            train_from=model.train_from,
            channels_last=model.channels_last,
            download=model.download,
            inputs="vectors" if manifest.kind == "features" else "images",
        )
        if model.lora is not None:
            add_lora(embedder.backbone, model.lora, model.lora_alpha, frozen=embedder.frozen_modules())
    # a negative or too large size raises TypeError, RuntimeError or MemoryError
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise NearfarError(
                f"model: {model.backbone} with model.dim={model.dim} and model.hidden={model.hidden} needs more memory "
                "than is available: use smaller values"
            ) from None
        raise NearfarError(f"model: {error}") from None
    if embedder.backbone.has_text_input != is_text:
        remedy = (
            "a backbone for texts, such as all-minilm-l6-v2 or transformers:DIRECTORY"
            if is_text
            else "another backbone"
        )
        raise NearfarError(
            f"model.backbone={model.backbone} does not fit the data {manifest.source}, which has {manifest.kind}: "
            f"use {remedy}"
        )
    embedder.backbone.set_token_dropout(model.token_dropout)
    return embedder


def pairs_of(manifest: Manifest) -> PairTable | None:
    """Return the pairs of a manifest that has pairs instead of classes, or None if it has classes."""
    return None if manifest.annotations is None else manifest.annotations.pairs


def check_label_sets(config: Config, manifest: Manifest) -> None:
    """Raise an error if the loss or the pacer needs one class per sample, but the data has pairs or several labels."""
    if pairs_of(manifest) is not None:
        if config.loss["name"] == SEVERAL or issubclass(loss_class(str(config.loss["name"])), ProxyLoss):
            raise NearfarError(
                f"loss {config.loss_name} needs classes, but {manifest.source} has pairs: use a single pair loss, for "
                "example with --recipe supcon"
            )
        if config.pacing:
            raise NearfarError(
                f"pacing.name={config.pacing['name']} needs classes, but {manifest.source} has pairs: set pacing=null"
            )
    if manifest.targets.ndim == 1:
        return
    for name in (str(part["name"]) for part in loss_parts(config)):
        kind = loss_class(name)
        if issubclass(kind, ProxyLoss) and not kind.multi_hot:
            raise NearfarError(
                f"loss.name={name} needs one label per sample, but {manifest.source} has several: use "
                "loss.name=proxy-anchor or a pair loss, for example loss.name=supcon"
            )
    if config.shard_proxies:
        raise NearfarError(f"shard_proxies=true needs one label per sample, but {manifest.source} has several")
    if config.pacing:
        raise NearfarError(f"pacing.name={config.pacing['name']} needs one label per sample: remove data.separator")


def loss_parts(config: Config) -> list[dict[str, Any]]:
    """Return the settings of each loss: one, or several if `loss` is a list."""
    parts = config.loss["losses"] if config.loss["name"] == SEVERAL else [config.loss]
    return [dict(part) for part in parts]


def make_loss(
    config: Config, classes: int, dim: int, levels: Ints | None = None, pairs: PairTable | None = None
) -> Loss:
    """Create the loss.

    Args:
        config: The configuration.
        classes: The number of classes, for proxy losses.
        dim: The dimension of the embeddings, for proxy losses.
        levels: The ancestors of each class [classes, L], for losses that use them.
        pairs: The pairs of the training samples, if the data has pairs instead of classes.
    """
    if pairs is not None:
        loss = make_loss(config, classes, dim)
        try:
            return RelationLoss(loss, graded=pairs.is_graded)  # type: ignore[arg-type]
        except ValueError as error:
            raise NearfarError(f"loss: {error}") from None
    parts = loss_parts(config)
    if levels is not None:
        for part in parts:
            if issubclass(loss_class(str(part["name"])), HAPLoss):
                part.setdefault("levels", levels.tolist())
    if config.loss["name"] != SEVERAL:
        return _make_one_loss(parts[0], classes, dim)
    weights = [part.pop("weight", 1.0) for part in parts]
    losses = [_make_one_loss(part, classes, dim) for part in parts]
    try:
        return CombinedLoss(losses, weights=weights, names=[str(part["name"]) for part in parts])
    except (TypeError, ValueError) as error:
        raise NearfarError(f"loss: {error}") from None


def _make_one_loss(settings: dict[str, Any], classes: int, dim: int) -> Loss:
    options = dict(settings)
    name = str(options.pop("name"))
    adapters = [adapter for option, adapter in LOSS_ADAPTERS.items() if options.pop(option, False)]
    try:
        if issubclass(loss_class(name), ProxyLoss):
            options = {"classes": classes, "dim": dim, **options}
        loss = create(name, **options)
        if isinstance(loss, MatryoshkaLoss) and loss.sizes[-1] != dim:
            raise ValueError(f"matryoshka must end with the dimension of the embeddings, {dim}, got {list(loss.sizes)}")
        for adapter in adapters:
            loss = adapter(loss)
        return loss
    except ValueError as error:
        raise NearfarError(f"loss: {error}") from None
    except TypeError as error:  # an option has a value of the wrong type
        described = ", ".join(f"{key}={value}" for key, value in settings.items())
        raise NearfarError(f"loss: {error} (the settings of the loss are {described})") from None


def shard_loss(config: Config, loss: Loss) -> Loss:
    """Return the loss. If `shard_proxies` is set, each process holds a part of its proxies."""
    if not config.shard_proxies:
        return loss
    if config.optimizer.clip_norm is not None:
        raise NearfarError(
            "shard_proxies=true does not support optimizer.clip_norm, because no process has all gradients: "
            "set optimizer.clip_value instead"
        )
    if isinstance(loss, CombinedLoss):
        raise NearfarError("shard_proxies=true needs a single loss: remove shard_proxies, or train with one loss")
    if not isinstance(loss, ProxyLoss):
        raise NearfarError(f"shard_proxies=true needs a loss with proxies, got loss.name={config.loss['name']}")
    try:
        return ShardedProxies(loss)
    except ValueError as error:
        raise NearfarError(f"shard_proxies: {error}") from None


def make_sampler(config: Config, train: Manifest) -> BatchSampler:
    """Create the batch sampler for the training samples. It gets only those settings in `batches` that it accepts."""
    settings = {key: value for key, value in asdict(config.batches).items() if value is not None}
    name = settings.pop("name")
    settings |= settings.pop("options")
    try:
        known = samplers.options(name)
        options = {key: value for key, value in settings.items() if key in known}
        pairs = pairs_of(train)
        rows = None if pairs is None else np.stack([pairs.first, pairs.second], axis=1)
        return samplers.create(name, labels=train.labels, pairs=rows, seed=config.seed, **options)
    except ValueError as error:
        raise NearfarError(f"batches: {error}") from None


def make_pacer(config: Config, train: Manifest) -> Pacer | None:
    """Create the pacer (which weights the training samples) that the configuration names, or return None."""
    if not config.pacing:
        return None
    options = dict(config.pacing)
    try:
        name = str(options.pop("name", ""))
        return pacing.create(name, samples=len(train), classes=len(train.classes), **options)
    except ValueError as error:
        raise NearfarError(f"pacing: {error}") from None


def make_projection(config: Config, embedder: Embedder) -> Projection | None:
    """Create the projection term of PROFS for all trainable parameters. Return None if its weight is 0."""
    if config.projection.weight == 0:
        return None
    return Projection([p for p in embedder.parameters() if p.requires_grad], weight=config.projection.weight)


def make_optimizer(config: Config, embedder: Embedder, loss: nn.Module) -> torch.optim.Optimizer:
    """Create the optimizer with parameter groups for backbone, head and loss.

    Each group stores its peak learning rate in `top_lr`. The schedule sets `lr` to a fraction of it.
    """
    settings = config.optimizer
    try:
        groups = embedder.parameter_groups(
            settings.lr,
            settings.head_lr_multiplier,
            settings.weight_decay,
            decay_vectors=settings.decay_vectors,
            layer_decay=settings.layer_decay,
        )
    except ValueError as error:
        raise NearfarError(f"optimizer: {error}") from None
    decay = settings.weight_decay if settings.proxy_weight_decay is None else settings.proxy_weight_decay
    for part in losses_of(loss):
        loss_parameters = [p for p in part.parameters() if p.requires_grad]
        if loss_parameters:
            multiplier = settings.proxy_lr_multiplier if isinstance(part, ProxyLoss | ShardedProxies) else 1.0
            lr = settings.lr * multiplier
            groups.append({"name": "loss", "params": loss_parameters, "lr": lr, "weight_decay": decay})
    # with model.freeze_backbone, `Trainer.start_epoch` freezes the trunk later, so `groups` still contains it here
    is_trunk_frozen = config.model.freeze_backbone
    if all(is_trunk_frozen and str(group["name"]).startswith("trunk") for group in groups):
        raise NearfarError(
            "there is nothing to train: neither the network nor the loss has trainable parameters: set "
            "model.head=linear to train a head, or unfreeze the backbone (model.freeze_backbone, model.train_from, or "
            "requires_grad of your own network)"
        )
    for group in groups:
        group["top_lr"] = group["lr"]
    return _optimizer(settings.name, groups, settings.momentum, settings.betas)


def _optimizer(
    name: str, groups: list[dict[str, Any]], momentum: float, betas: tuple[float, ...]
) -> torch.optim.Optimizer:
    if name in ("adam", "adamw"):
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise NearfarError(
                f"optimizer.betas must be two numbers that are at least 0 and below 1, got {list(betas)}"
            )
        adam = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return adam(groups, betas=(betas[0], betas[1]), fused=True)
    if name == "sgd":
        return torch.optim.SGD(groups, momentum=momentum, fused=True)
    return torch.optim.RMSprop(groups, momentum=momentum)
