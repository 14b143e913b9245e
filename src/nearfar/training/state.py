"""The state of training: everything that changes from step to step, and how it is saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nearfar.config.schema import Config
from nearfar.data import BatchLoader, Manifest
from nearfar.data.taxonomy import class_levels
from nearfar.errors import NearfarError
from nearfar.losses import CombinedLoss
from nearfar.models import Embedder, merge_lora
from nearfar.runs import CHECKPOINT, PREVIOUS, save_embedder
from nearfar.training.checkpoint import load_newest, load_state, save_state
from nearfar.training.components import (
    make_loss,
    make_optimizer,
    make_pacer,
    make_projection,
    make_sampler,
    pairs_of,
    shard_loss,
)
from nearfar.training.distributed import process_group
from nearfar.training.distributed.gradient_buckets import GradientBuckets
from nearfar.training.distributed.shards import collect_states, load_states
from nearfar.training.distributed.sync_norm import sync_batch_norms
from nearfar.training.evaluate import dtype_of, embedding_function, set_layout
from nearfar.training.frozen_text import forget_changed_states, keep_frozen_states
from nearfar.training.initialization import InitialState, initialize_from_data
from nearfar.training.randomness import random_state, set_random_state
from nearfar.training.resume import check_same_run, resumed_settings
from nearfar.training.selection import Selection
from nearfar.training.watchdog import Watchdog

FORMAT = 1  # version of the checkpoint format
STATE_KEYS = frozenset(
    [
        *("format", "settings", "data", "step", "consumed", "epoch_start", "sampler", "cycle", "best", "sums"),
        *("raw", "untrained", "warned", "embedder", "loss", "optimizer", "scaler", "ema", "pacer", "projection"),
        "random",
    ]
)


class TrainState:
    """Everything that changes during training. A resumed run loads this state and ends with bit-identical weights.

    Attributes:
        embedder: The network whose weights are trained.
        network: Function that embeds a batch: the embedder, or its part above cached blocks. It may be compiled.
        pairs: The pairs of the training samples if the data has pairs instead of classes, else None.
        loss, sampler, optimizer, scaler, pacer, projection, ema: The other components. The last three may be None.
        network_gradients, loss_gradients: Sum the network's and average the loss's gradients over the processes.
        watchdog: Stops the run if a loss is not finite.
        selection: The best epoch so far.
        step: Number of finished steps.
        epoch_start: Position of the sampler at the start of the current epoch.
        consumed: Number of batches of the current epoch that were trained on. The loader may have read further.
        cycle: Number of the PROFS cycle in which `projection` took its last snapshot.
        loss_sum: Sum and number of the losses since the last log entry and, for a `CombinedLoss`, the sum of each loss.
        warned: Kinds of warnings that were already shown.
        untrained, raw: Test scores of the network and of the input of its head before training, if computed.
        data: Digest of the content of the training images; empty if the fingerprint of the data covers the content.
    """

    def __init__(
        self,
        config: Config,
        embedder: Embedder,
        train: Manifest,
        loader: BatchLoader,
        *,
        device: torch.device,
        selection: Selection,
        initial: InitialState,
    ) -> None:
        """Create all parts of a run at step 0.

        Args:
            config: The configuration.
            embedder: The network. It is initialized from the data and moved to the device, in place.
            train: The training samples.
            loader: BatchLoader of the training samples.
            device: Device of the network and the loss.
            selection: Selection of the best epoch.
            initial: Initial state that several runs in one process can share.
        """
        self.config, self.device, self.embedder, self.selection = config, device, embedder, selection
        self.pairs = pairs_of(train)
        self.loss = make_loss(config, train.label_count, embedder.dim, class_levels(train), self.pairs).to(device)
        embedder.to(device)
        keep_frozen_states(config, embedder, loader)
        initialize_from_data(config, embedder, self.loss, loader, initial)
        set_layout(embedder)
        if process_group.world_size() > 1:
            sync_batch_norms(embedder)
            process_group.broadcast_from_main([*embedder.state_dict().values(), *self.loss.state_dict().values()])
        self.loss = shard_loss(config, self.loss)
        self.is_network_sharded = config.shard_network and process_group.world_size() > 1
        if self.is_network_sharded:
            from nearfar.training.distributed.fsdp import shard_network  # here, because the import takes a second

            shard_network(config, embedder)

        self.sampler = make_sampler(config, train)
        self.pacer = make_pacer(config, train)
        self.optimizer = make_optimizer(config, embedder, self.loss)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.autocast == "fp16")
        self.watchdog = Watchdog(device, self.optimizer)
        self.projection = make_projection(config, embedder)
        network = embedding_function(embedder, loader)
        self.network: Callable[[Tensor], Tensor] = torch.compile(network) if config.compile else network
        self.ema = (
            AveragedModel(embedder, multi_avg_fn=get_ema_multi_avg_fn(config.ema), use_buffers=True)  # type: ignore[no-untyped-call]
            if config.ema > 0
            else None
        )
        # FSDP sums the gradients of a sharded network itself
        self.network_gradients = GradientBuckets([] if self.is_network_sharded else embedder.parameters())
        # All processes compute the same gradients of the proxies, up to rounding: GPU kernels may sum in any order.
        # Averaging keeps the processes' copies of the proxies equal.
        is_loss_averaged = device.type != "cpu" and not config.shard_proxies
        self.loss_gradients = GradientBuckets(self.loss.parameters() if is_loss_averaged else [], mean=True)
        self.dtype = dtype_of(embedder)
        self.data = train.digest

        self.step = 0
        self.epoch_start = self._sampler_position()
        self.consumed = 0
        self.cycle = -1
        parts = len(self.loss.names) if isinstance(self.loss, CombinedLoss) else 0
        self.loss_sum = torch.zeros(2 + parts, device=device)
        self.warned: set[str] = set()
        self.untrained: dict[str, float] | None = None
        self.raw: dict[str, float] | None = None
        self._is_checkpoint_good = False  # true once this process has read or written the newest checkpoint

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self.epoch_start["epoch"]

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds only a part of the network or of the proxies."""
        return self.is_network_sharded or self.config.shard_proxies

    @property
    def evaluated_embedder(self) -> Any:
        """The embedder that is tested and saved: the moving average if `ema` is set, otherwise the trained one."""
        return self.embedder if self.ema is None else self.ema.module

    def set_train_mode(self) -> None:
        """Set network and loss to training mode. If `model.freeze_backbone` is set, the backbone stays in eval mode."""
        self.embedder.train()
        self.loss.train()
        if self.config.model.freeze_backbone:
            self.embedder.backbone.eval()

    def count_step(self, loss: Tensor) -> None:
        """Count a finished step and add its loss to the sum for the log."""
        self.step += 1
        self.consumed += 1
        sums = torch.stack([loss.to(self.loss_sum), torch.ones_like(self.loss_sum[0])])
        if isinstance(self.loss, CombinedLoss):
            sums = torch.cat([sums, self.loss.values.to(sums)])
        self.loss_sum += sums

    def take_loss_sum(self) -> Tensor:
        """Return the sum and the number of losses since the last call, and start a new sum; see `batch_statistics`."""
        taken, self.loss_sum = self.loss_sum, torch.zeros_like(self.loss_sum)
        return taken

    def end_epoch(self) -> None:
        """Record the position of the sampler at the start of the next epoch."""
        self.epoch_start = self._sampler_position()
        self.consumed = 0

    def save_weights(self, embedder: Embedder, path: Path, about: dict[str, Any] | None = None) -> None:
        """Save the weights of an embedder, with the updates of LoRA merged into them.

        Every process must call this; the main process writes the file.
        """
        weights = self._unsharded(merge_lora(embedder))
        if process_group.is_main_process():
            save_embedder(embedder, path, about, weights=weights)

    def save(self, out: Path) -> None:
        """Save a checkpoint in a run directory. Any number of processes can resume from it.

        Every process must call this if the state is sharded; the main process writes the file.
        """
        if process_group.is_main_process() or self.is_sharded:
            state = self.state_dict()
            if process_group.is_main_process():
                # keep the old checkpoint only if it is good: a damaged one must not replace a good previous one
                previous = out / PREVIOUS if self._is_checkpoint_good else None
                save_state(out / CHECKPOINT, state, previous=previous)
                self._is_checkpoint_good = True

    def load(self, out: Path, *, say: Callable[[str], object] = print) -> bool:
        """Load the newest readable checkpoint of a run directory. Return False if the directory has no checkpoint."""
        loaded = load_newest([out / CHECKPOINT, out / PREVIOUS], self._load_file, say)
        if loaded is not None:
            self._is_checkpoint_good = loaded == out / CHECKPOINT
        return loaded is not None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that determines how training continues. A checkpoint holds the dict of the main process."""
        loss, optimizer = collect_states(self.loss, self.optimizer)
        sampler = self.sampler.state_dict()
        if not self.sampler.is_adaptive:
            sampler = self.epoch_start | {"position": self.epoch_start["position"] + self.consumed}
        state = {
            "format": FORMAT,
            "settings": resumed_settings(self.config),
            "data": self.data,
            "step": self.step,
            "consumed": self.consumed,
            "epoch_start": self.epoch_start,
            "sampler": sampler,
            "cycle": self.cycle,
            "best": self.selection.best,
            "sums": self.loss_sum,
            "untrained": self.untrained,
            "raw": self.raw,
            "warned": sorted(self.warned),
            "embedder": self.embedder.state_dict(),
            "loss": loss,
            "optimizer": optimizer,
            "scaler": self.scaler.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "pacer": None if self.pacer is None else self.pacer.state_dict(),
            "projection": None if self.projection is None else self.projection.state_dict(),
            "random": random_state(),
        }
        return self._unsharded(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        Raises:
            NearfarError: If the state has a different format, or belongs to different settings or data.
        """
        check_same_run(state, version=FORMAT, known=STATE_KEYS, config=self.config, data=self.data)
        self.step, self.consumed, self.cycle = state["step"], state["consumed"], state["cycle"]
        self.epoch_start, self.selection.best = state["epoch_start"], state["best"]
        self.untrained, self.raw, self.warned = state["untrained"], state["raw"], set(state["warned"])
        self.loss_sum.copy_(state["sums"])
        if self.is_network_sharded:
            from nearfar.training.distributed.fsdp import shard_like, shard_optimizer_state

            current = self.embedder.state_dict()
            state["embedder"] = {name: shard_like(value, current[name]) for name, value in state["embedder"].items()}
            state["optimizer"] = shard_optimizer_state(state["optimizer"], self.optimizer)
        forget_changed_states(self.embedder, state["embedder"])
        self.embedder.load_state_dict(state["embedder"])
        load_states(self.loss, self.optimizer, state["loss"], state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        for part, name in ((self.ema, "ema"), (self.pacer, "pacer"), (self.projection, "projection")):
            if part is not None:
                part.load_state_dict(state[name])
        self.sampler.load_state_dict(state["sampler"])
        set_random_state(state["random"])

    def _load_file(self, path: Path) -> None:
        state = load_state(path)
        if not isinstance(state, dict):
            raise NearfarError(f"{path}: the file is not a checkpoint of a run: remove it")
        try:
            self.load_state_dict(state)
        except NearfarError as error:
            raise NearfarError(f"{path}: {error}") from None
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise NearfarError(f"{path}: the file is not a checkpoint of this run ({error}): remove it") from error

    def _sampler_position(self) -> dict[str, int]:
        return {"seed": self.sampler.seed, "epoch": self.sampler.epoch, "position": self.sampler.position}

    def _unsharded(self, state: dict[str, Any]) -> dict[str, Any]:
        if self.is_network_sharded:
            from nearfar.training.distributed.fsdp import unshard

            state = unshard(state)
        return state
