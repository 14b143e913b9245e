"""The parts of a run, made from its configuration, where it stands, and both on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nearfar.config.schema import Config
from nearfar.data import Batch, BatchLoader, Manifest
from nearfar.errors import NearfarError
from nearfar.models import Embedder
from nearfar.runs import CHECKPOINT, PREVIOUS, save_embedder
from nearfar.training import failed_batch, prepare
from nearfar.training.checkpoint import load_state, save_state
from nearfar.training.distributed import process_group
from nearfar.training.distributed.shards import load_states, states
from nearfar.training.distributed.sync_norm import sync_batch_norms
from nearfar.training.evaluate import dtype_of
from nearfar.training.initialization import InitialState
from nearfar.training.randomness import random_state, set_random_state
from nearfar.training.run_summary import summarize_run
from nearfar.training.selection import Selection


class Parts:
    """The parts of a run and where it stands."""

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        out: Path,
        *,
        say: Callable[[str], object] = print,
        start: InitialState | None = None,
    ) -> None:
        self.config, self.out, self.say = config, out, say
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.device = process_group.local_device(config.device)
        torch.manual_seed(config.seed)

        self.embedder = prepare.make_embedder(config, manifest)
        side = prepare.side_of(config, self.embedder, manifest)
        with process_group.main_process_first():
            manifest = prepare.readable(manifest, config.data, size=side or self.embedder.input_size, say=say)
        if manifest.kind == "pixels":  # a cache is cropped to the size that the network wants
            side = prepare.side_of(config, self.embedder, manifest)
        self.splits = prepare.split_up(manifest, config.data, seed=config.seed)
        if self.splits.noise is not None and process_group.is_main_process():
            self.splits.noise.save(out / "noise.json")

        def loader(part: Manifest, workers: int) -> BatchLoader:
            return prepare.make_loader(part, config.images, self.embedder, side=side, seed=config.seed, workers=workers)

        self.loader = loader(self.splits.train, config.data.workers)
        self.held_out = None if self.splits.validation is None else loader(self.splits.validation, config.data.workers)
        self.tested = None if self.splits.test is None else loader(self.splits.test, config.data.workers)
        self.loss = prepare.make_loss(config, len(self.splits.train.classes), self.embedder.dim)
        self.start = start or InitialState()
        prepare.start_well(config, self.embedder, self.loss, self.loader, self.start)

        self.embedder.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss.to(self.device)
        if process_group.world_size() > 1:
            sync_batch_norms(self.embedder)
            process_group.broadcast_from_main([*self.embedder.state_dict().values(), *self.loss.state_dict().values()])
        self.loss = prepare.shard(config, self.loss)
        self.split = config.shard_network and process_group.world_size() > 1
        if self.split:
            from nearfar.training.distributed.fsdp import shard_network  # a second to import

            shard_network(config, self.embedder)
        self.batches = prepare.make_batches(config, self.splits.train)
        self.pacer = prepare.make_pacer(config, self.splits.train)
        self.optimizer = prepare.make_optimizer(config, self.embedder, self.loss)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.autocast == "fp16")
        self.projection = prepare.make_projection(config, self.embedder)
        self.network: Callable[[Tensor], Tensor] = torch.compile(self.embedder) if config.compile else self.embedder
        self.ema = (
            AveragedModel(self.embedder, multi_avg_fn=get_ema_multi_avg_fn(config.ema), use_buffers=True)  # type: ignore[no-untyped-call]
            if config.ema > 0
            else None
        )
        self.dtype = dtype_of(self.embedder)
        self.select = Selection(config.select, validation=self.held_out is not None, test=self.tested is not None)

        self.step = 0
        self.epoch_start = self._place()
        self.consumed = 0  # batches of this epoch that were trained on: a loader may have read further
        self.cycle = -1
        self.sums = torch.zeros(2, device=self.device)  # of the loss, and how many, since the last entry of the log
        self.warned: set[str] = set()
        self.untrained: dict[str, float] | None = None
        self.found: tuple[Manifest, Tensor] | None = None  # the test split and its embeddings, at the end
        self.sound = False  # whether the newest checkpoint is one that this process has read or written
        self.steps = config.steps or (config.epochs or 0) * len(self.batches)

    @property
    def plan(self) -> str:
        """What is about to come, in a line."""
        return summarize_run(
            samples=len(self.splits.train),
            batch=self.batches.size,
            steps=self.steps,
            epoch=len(self.batches),
            by_epochs=self.config.steps is None,
            waits=self.loss.warmup_epochs,
        )

    @property
    def epoch(self) -> int:
        """The epoch that is being trained, from 0."""
        return self.epoch_start["epoch"]

    def _place(self) -> dict[str, int]:
        return {"seed": self.batches.seed, "epoch": self.batches.epoch, "position": self.batches.position}

    def _chosen_now(self) -> Any:
        return self.embedder if self.ema is None else self.ema.module

    def _keep_batch(self, batch: Batch, rows: Tensor, weights: Tensor | None, draws: Tensor) -> str:
        """For `nearfar.training.failed_batch`; says where it is."""
        if self._apart() or not process_group.is_main_process():
            return "parts of the network or the loss are on other ranks, so the batch is not kept"
        return failed_batch.save_failed_batch(
            self.out,
            {
                "step": self.step,
                "classes": len(self.splits.train.classes),
                "representatives": self.batches.representatives,
                "x": batch.x,
                "indices": batch.indices,
                "rows": rows.detach(),
                "labels": batch.labels,
                "weights": weights,
                "draws": draws,
                "embedder": self.embedder.state_dict(),
                "loss": self.loss.state_dict(),
            },
        )

    def _keep(self, embedder: Embedder, path: Path, about: dict[str, Any] | None = None) -> None:
        weights = self._whole(embedder.state_dict())
        if process_group.is_main_process():
            save_embedder(embedder, path, about, weights=weights)

    def _whole(self, state: dict[str, Any]) -> dict[str, Any]:
        if not self.split:
            return state
        from nearfar.training.distributed.fsdp import whole

        together: dict[str, Any] = whole(state)
        return together

    def _apart(self) -> bool:
        """Whether ranks hold different parts of the state."""
        return self.split or self.config.shard_proxies

    def save(self) -> None:
        """The whole state, in one file; one rank writes it, any number of ranks can go on from it."""
        if process_group.is_main_process() or self._apart():
            state = self.state()
            if process_group.is_main_process():
                # a damaged one must not take the place of the good one before it
                save_state(self.out / CHECKPOINT, state, before=self.out / PREVIOUS if self.sound else None)
                self.sound = True

    def state(self) -> dict[str, Any]:
        """Everything that decides how training goes on; the same on every rank, but that one of them warns."""
        loss, optimizer = states(self.loss, self.optimizer)
        sampler = self.batches.state_dict()
        if not self.batches.is_adaptive:
            sampler = self.epoch_start | {"position": self.epoch_start["position"] + self.consumed}
        state = {
            "step": self.step,
            "consumed": self.consumed,
            "epoch_start": self.epoch_start,
            "sampler": sampler,
            "cycle": self.cycle,
            "best": self.select.best,
            "sums": self.sums,
            "untrained": self.untrained,
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
        return self._whole(state)

    def load(self) -> bool:
        """Go on from the newest file of `save` that can be read; False where there is none."""
        names = [name for name in (CHECKPOINT, PREVIOUS) if (self.out / name).is_file()]
        for name in names:
            try:
                self._load(self.out / name)
            except NearfarError as error:
                if name == names[-1]:
                    raise
                self.say(f"warning: {error}; going on from the checkpoint before it")
            else:
                self.sound = name == CHECKPOINT
                return True
        return False

    def _load(self, path: Path) -> None:
        state = load_state(path)
        try:
            self._set(state)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise NearfarError(f"{path}: is no state of this run ({error}): remove it") from error

    def _set(self, state: dict[str, Any]) -> None:
        self.step, self.consumed, self.cycle = state["step"], state["consumed"], state["cycle"]
        self.epoch_start, self.select.best, self.untrained = state["epoch_start"], state["best"], state["untrained"]
        self.sums.copy_(state["sums"])
        self.warned = set(state["warned"])
        if self.split:
            from nearfar.training.distributed.fsdp import split_as, split_optimizer_state

            now = self.embedder.state_dict()
            state["embedder"] = {name: split_as(value, now[name]) for name, value in state["embedder"].items()}
            state["optimizer"] = split_optimizer_state(state["optimizer"], self.optimizer)
        self.embedder.load_state_dict(state["embedder"])
        load_states(self.loss, self.optimizer, state["loss"], state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        for part, name in ((self.ema, "ema"), (self.pacer, "pacer"), (self.projection, "projection")):
            if part is not None:
                part.load_state_dict(state[name])
        self.batches.load_state_dict(state["sampler"])
        set_random_state(state["random"])
