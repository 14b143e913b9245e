"""Create the parts of a run from its configuration: embedder, loss, sampler, pacer, optimizer, projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from nearfar import pacing, samplers
from nearfar.config.schema import Config
from nearfar.data import Manifest
from nearfar.errors import NearfarError, is_out_of_memory
from nearfar.losses import ProxyLoss, create, loss_class
from nearfar.losses.base import Loss
from nearfar.losses.proxies.sharded import ShardedProxies
from nearfar.models import Embedder, add_lora, create_embedder
from nearfar.models.backbones import is_built_in
from nearfar.models.own_network import LIBRARIES
from nearfar.pacing import Pacer
from nearfar.samplers import BatchSampler
from nearfar.training.prepare import check_same_kind, count_channels
from nearfar.training.projection import Projection

LOSS_ADAPTERS: dict[str, Callable[[Loss], Loss]] = {}


def register_loss_adapter(option: str, adapter: Callable[[Loss], Loss]) -> None:
    """Register a function that replaces the loss of a run if its configuration has `loss.OPTION=true`."""
    LOSS_ADAPTERS[option] = adapter


def make_embedder(config: Config, manifest: Manifest, network: nn.Module | None = None) -> Embedder:
    """Create the embedder for this data, with random or pretrained weights.

    Args:
        config: The configuration.
        manifest: The data, which determines the number of input channels.
        network: Your own network, which replaces the backbone, or an embedder, which is returned.
    """
    model = config.model
    if isinstance(network, Embedder):
        check_same_kind(network, manifest, "the embedder")
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
            channels=channels,
            input_size=model.max_tokens if is_text else config.images.crop,
            pretrained=model.pretrained,
            freeze_bn=model.freeze_bn,
            train_from=model.train_from,
            download=model.download,
            inputs="vectors" if manifest.kind == "features" else "images",
        )
        if model.lora is not None:
            add_lora(embedder.backbone, model.lora, model.lora_alpha, frozen=embedder.frozen_modules())
    # sizes that are negative or too large raise TypeError, RuntimeError or MemoryError
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise NearfarError(
                f"model: {model.backbone} with model.dim={model.dim} and model.hidden={model.hidden} needs more memory "
                "than is available: use smaller values"
            ) from None
        raise NearfarError(f"model: {error}") from None
    if embedder.backbone.has_text_input != is_text:
        remedy = (
            "a backbone for texts, such as all-minilm-l6-v2 or transformers:DIRECTORY" if is_text else "another one"
        )
        raise NearfarError(
            f"model.backbone={model.backbone} does not fit the data {manifest.source}, which has {manifest.kind}: "
            f"use {remedy}"
        )
    return embedder


def check_label_sets(config: Config, manifest: Manifest) -> None:
    """Raise a NearfarError if samples have several labels, but the loss or the pacer needs one label per sample."""
    if manifest.targets.ndim == 1:
        return
    name = str(config.loss["name"])
    if issubclass(loss_class(name), ProxyLoss):
        raise NearfarError(f"loss.name={name} needs one label per sample, but data.separator gives several: use supcon")
    if config.pacing:
        raise NearfarError(f"pacing.name={config.pacing['name']} needs one label per sample: remove data.separator")


def make_loss(config: Config, classes: int, dim: int) -> Loss:
    """Create the loss. Proxy losses get the number of classes and the dimension of the embeddings."""
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
    except TypeError as error:  # an option has a value of the wrong type
        settings = ", ".join(f"{key}={value}" for key, value in config.loss.items())
        raise NearfarError(f"loss: {error} (its settings are {settings})") from None


def shard_loss(config: Config, loss: Loss) -> Loss:
    """Split the proxies of the loss over the processes if `shard_proxies` is set."""
    if not config.shard_proxies:
        return loss
    if config.optimizer.clip_norm is not None:
        raise NearfarError(
            "shard_proxies=true does not support optimizer.clip_norm, because no process has all gradients: "
            "set optimizer.clip_value instead"
        )
    if not isinstance(loss, ProxyLoss):
        raise NearfarError(f"shard_proxies=true needs a loss with proxies, got loss.name={config.loss['name']}")
    try:
        return ShardedProxies(loss)
    except ValueError as error:
        raise NearfarError(f"shard_proxies: {error}") from None


def make_sampler(config: Config, train: Manifest) -> BatchSampler:
    """Create the batch sampler of the training samples. It gets only those settings in `batches` that it uses."""
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
    """Create the pacer if the configuration names one."""
    if not config.pacing:
        return None
    options = dict(config.pacing)
    try:
        name = str(options.pop("name", ""))
        return pacing.create(name, samples=len(train), classes=len(train.classes), **options)
    except ValueError as error:
        raise NearfarError(f"pacing: {error}") from None


def make_projection(config: Config, embedder: Embedder) -> Projection | None:
    """Create the projection term of PROFS for all trainable parameters of the network if its weight is above 0."""
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
    loss_parameters = [p for p in loss.parameters() if p.requires_grad]
    if loss_parameters:
        multiplier = settings.proxy_lr_multiplier if isinstance(loss, ProxyLoss | ShardedProxies) else 1.0
        decay = settings.weight_decay if settings.proxy_weight_decay is None else settings.proxy_weight_decay
        lr = settings.lr * multiplier
        groups.append({"name": "loss", "params": loss_parameters, "lr": lr, "weight_decay": decay})
    if not groups:
        raise NearfarError(
            "there is nothing to train: the backbone is frozen, and neither the head nor the loss has trainable "
            "parameters: set model.freeze_backbone=false"
        )
    for group in groups:
        group["top_lr"] = group["lr"]
    return _optimizer(settings.name, groups, settings.momentum, settings.betas)


def _optimizer(
    name: str, groups: list[dict[str, Any]], momentum: float, betas: tuple[float, ...]
) -> torch.optim.Optimizer:
    if name in ("adam", "adamw"):
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise NearfarError(f"optimizer.betas must be two numbers of at least 0 and below 1, got {list(betas)}")
        adam = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return adam(groups, betas=(betas[0], betas[1]), fused=True)
    if name == "sgd":
        return torch.optim.SGD(groups, momentum=momentum, fused=True)
    return torch.optim.RMSprop(groups, momentum=momentum)
