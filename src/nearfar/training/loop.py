"""The training loop: batches -> embedder -> loss -> step; between epochs pacing, validation, a checkpoint.

    run = train(config, Path("runs/mine"))

A run that was killed goes on with `train(config, path, resume=True)` to the weights it would have reached, bit for bit.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

import nearfar
from nearfar.audit.detection import judged
from nearfar.data import Batch, Loader, Manifest
from nearfar.data.atomic import atomic
from nearfar.errors import NearfarError
from nearfar.metrics import Scores
from nearfar.training import setup
from nearfar.training.checkpoint import load_state, save_state
from nearfar.training.config import Config
from nearfar.training.embedding import autocast, embed, score, to_device
from nearfar.training.health import look, warnings
from nearfar.training.large_batch import two_pass
from nearfar.training.log import Log
from nearfar.training.randomness import random_state, set_random_state
from nearfar.training.report import report_run
from nearfar.training.run import Run, load_embedder, save_embedder
from nearfar.training.schedule import factor
from nearfar.training.trackers import open_trackers

CHECKPOINT = Path("checkpoint") / "state.safetensors"
CURE = "where it diverged, lower optimiser.lr or set optimiser.clip_norm=1 (what was saved before is still there)"
BEST = Path("checkpoint") / "best.safetensors"


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    say: Callable[[str], object] = print,
    report: bool = False,
    progress: bool = True,
    stop_after: int | None = None,
) -> Run:
    """Train as the configuration says, in the directory `out`; gives the finished run.

    resume: go on with the run that is there. report: also write report.html. progress: show a bar where there is a
    terminal. stop_after: leave after this many steps as if killed (for tests).
    """
    manifest = setup.open_manifest(config.data)
    config = _with_fingerprint(config, manifest.fingerprint)
    if resume:
        before = Run(out)
        config = _same(config, before.config)
        if before.finished:
            say(f"{out} is finished already")
            if report:
                report_run(before)
            return before
    elif (out / "config.yaml").exists():
        raise NearfarError(f"{out}: holds a run already: go on with --resume, or choose another --out")
    training = Training(config, manifest, out, say=say)
    with atomic(out / "config.yaml") as draft:  # not before all parts fit: a mistake must not leave half a run
        draft.write_text(config.text(), encoding="utf-8")
    if resume and (out / CHECKPOINT).is_file():
        training.load()
        say(f"going on at step {training.step:,} of {training.steps:,}")
    training.run(progress=progress, stop_after=stop_after)
    run = Run(out)
    if report and run.finished:
        report_run(run, training.found)
    return run


class Training:
    """The parts of a run and where it stands."""

    def __init__(self, config: Config, manifest: Manifest, out: Path, *, say: Callable[[str], object] = print) -> None:
        self.config, self.out, self.say = config, out, say
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.device = _device(config.device)
        torch.manual_seed(config.seed)

        self.embedder = setup.make_embedder(config, manifest)
        side = setup.side_of(config, self.embedder, manifest)
        manifest = setup.readable(manifest, config.data, size=side or self.embedder.input_size, say=say)
        if manifest.kind == "pixels":  # a cache is cropped to the size that the network wants
            side = setup.side_of(config, self.embedder, manifest)
        self.splits = setup.split_up(manifest, config.data, seed=config.seed)
        if self.splits.noise is not None:
            self.splits.noise.save(out / "noise.json")

        def loader(part: Manifest, workers: int) -> Loader:
            return setup.make_loader(part, config.images, self.embedder, side=side, seed=config.seed, workers=workers)

        self.loader = loader(self.splits.train, config.data.workers)
        self.held_out = None if self.splits.validation is None else loader(self.splits.validation, config.data.workers)
        self.tested = None if self.splits.test is None else loader(self.splits.test, config.data.workers)
        self.loss = setup.make_loss(config, len(self.splits.train.classes), self.embedder.dim)
        setup.start_well(config, self.embedder, self.loss, self.loader)

        self.embedder.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss.to(self.device)
        self.batches = setup.make_batches(config, self.splits.train)
        self.pacer = setup.make_pacer(config, self.splits.train)
        self.optimiser = setup.make_optimiser(config, self.embedder, self.loss)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.autocast == "fp16")
        self.projection = setup.make_projection(config, self.embedder)
        self.network: Callable[[Tensor], Tensor] = torch.compile(self.embedder) if config.compile else self.embedder
        self.ema = (
            AveragedModel(self.embedder, multi_avg_fn=get_ema_multi_avg_fn(config.ema), use_buffers=True)  # type: ignore[no-untyped-call]
            if config.ema > 0
            else None
        )
        self.select = self._selection()

        self.step = 0
        self.epoch_start = self._place()
        self.consumed = 0  # batches of this epoch that were trained on: a loader may have read further
        self.cycle = -1
        self.best: dict[str, Any] = {"value": -math.inf, "epoch": None, "looks": 0}
        self.sums = torch.zeros(2, device=self.device)  # of the loss, and how many, since the last entry of the log
        self.warned: set[str] = set()
        self.untrained: dict[str, float] | None = None
        self.found: tuple[Manifest, Tensor] | None = None  # the test split and its embeddings, at the end
        self.steps = config.steps or (config.epochs or 0) * len(self.batches)

    def _selection(self) -> str:
        by = self.config.select.by
        if by == "auto":
            return "last" if self.held_out is None else "validation"
        if by == "validation" and self.held_out is None:
            raise NearfarError("select.by=validation needs validation classes: set data.validation=0.2")
        if by == "test" and self.tested is None:
            raise NearfarError("select.by=test needs a test split, the data has none")
        return by

    # One step ---------------------------------------------------------------------------------------------------------

    def _embed(self, x: Tensor) -> Tensor:
        with autocast(self.config.autocast, self.device):
            rows: Tensor = self.network(x)
            return rows

    def train_on(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """One step on a batch; gives the loss and the embeddings, detached, and the weights of the samples."""
        config = self.config.optimiser
        if self.projection is not None and self.batches.cycle != self.cycle:
            self.projection.snapshot()
            self.cycle = self.batches.cycle
        rate = self.lr_factor
        for group in self.optimiser.param_groups:
            group["lr"] = group["top_lr"] * rate
        self.optimiser.zero_grad(set_to_none=True)
        x, labels = to_device(batch.x, self.device), batch.labels.to(self.device)
        weights: Tensor | None = None
        value = torch.empty(0)

        def value_of(rows: Tensor) -> Tensor:
            nonlocal weights, value
            if self.pacer is not None:
                weights = self.pacer.batch_weights(rows.detach(), labels, batch.indices)
            value = self.loss(rows, labels, weights=weights, representatives=self.batches.representatives)
            scaled: Tensor = self.scaler.scale(value)
            return scaled

        if self.config.micro_batch is None or len(x) <= self.config.micro_batch:
            rows = self._embed(x)
            value_of(rows).backward()  # type: ignore[no-untyped-call]
        else:
            _, rows = two_pass(self.embedder, value_of, x, micro_batch=self.config.micro_batch, embed=self._embed)
        self.scaler.unscale_(self.optimiser)
        if self.projection is not None:
            self.projection.add_to_gradients()
        if config.clip_value is not None:
            nn.utils.clip_grad_value_(self._trained(), config.clip_value)
        if config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._trained(), config.clip_norm)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        if self.ema is not None:
            self.ema.update_parameters(self.embedder)
        value, rows = value.detach(), rows.detach()
        self.batches.observe(rows, value)
        return value, rows, weights

    @property
    def lr_factor(self) -> float:
        """The factor of every group's learning rate at this step."""
        return factor(self.config.schedule, step=self.step, steps=self.steps, epoch=self.epoch)

    @property
    def epoch(self) -> int:
        """The epoch that is being trained, from 0."""
        return self.epoch_start["epoch"]

    def _place(self) -> dict[str, int]:
        return {"seed": self.batches.seed, "epoch": self.batches.epoch, "position": self.batches.position}

    def _trained(self) -> list[nn.Parameter]:
        return [p for group in self.optimiser.param_groups for p in group["params"]]

    # The whole --------------------------------------------------------------------------------------------------------

    def run(self, *, progress: bool = True, stop_after: int | None = None) -> None:
        """From where it stands to the end."""
        config = self.config
        trackers = open_trackers(config.track, self.out, config.to_dict())
        log = Log(self.out / "log.jsonl", step=self.step, trackers=trackers)
        first = self.step
        if config.untrained and self.tested is not None and self.step == 0:
            self.untrained = dict(self._score("test").values)
        started = saved = time.monotonic()
        hidden = None if progress else True  # None: hidden where there is no terminal
        with tqdm(total=self.steps, initial=first, desc="train", unit="batch", leave=False, disable=hidden) as bar:
            try:
                while self.step < self.steps and not self._patience_is_over():
                    self._start_epoch()
                    for batch in self._epoch():
                        try:
                            value, rows, weights = self.train_on(batch)
                        except ValueError as error:
                            raise NearfarError(f"at step {self.step}: {error}; {CURE}") from error
                        self.step += 1
                        self.consumed += 1
                        self.sums += torch.stack([value.float(), torch.ones_like(value, dtype=torch.float32)])
                        bar.update()
                        if self.step % config.log_every == 0 or self.step == self.steps:
                            speed = (self.step - first) / (time.monotonic() - started)
                            self._write_step(log, bar, rows, batch.labels, weights, speed * len(batch.x))
                        if self.step == self.steps:
                            break
                        if stop_after is not None and self.step >= stop_after:
                            return
                        if time.monotonic() - saved > config.save_every:
                            self.save()
                            saved = time.monotonic()
                    self._end_epoch(log)
                    if time.monotonic() - saved > config.save_every:
                        self.save()
                        saved = time.monotonic()
                self.save()
                self._finish(log, time.monotonic() - started)
            finally:
                log.close()
                self.loader.close()

    def _start_epoch(self) -> None:
        start_epoch = getattr(self.loss, "start_epoch", None)
        if start_epoch is not None and self.consumed == 0:
            start_epoch(self.epoch)
        frozen = self.config.model.freeze_backbone or self.epoch < self.config.schedule.warm_up_epochs
        for parameter in self.embedder.trunk_parameters():
            parameter.requires_grad_(not frozen)
        self._train_mode()

    def _train_mode(self) -> None:
        self.embedder.train()
        self.loss.train()
        if self.config.model.freeze_backbone:
            self.embedder.backbone.eval()

    def _epoch(self) -> Iterator[Batch]:
        """The batches of this epoch that are still to come."""

        def rows() -> Iterator[list[int]]:
            epoch = iter(self.batches)
            while True:
                wanted = self.batches.wants_fill()
                if wanted is not None:
                    self.batches.filled(embed(self.embedder, self.loader, device=self.device, rows=wanted))
                    self._train_mode()
                try:
                    yield next(epoch)
                except StopIteration:
                    return

        return self.loader.epoch(rows(), epoch=self.epoch, read_ahead=not self.batches.live)

    def _end_epoch(self, log: Log) -> None:
        """Pacing and selection; then the next epoch begins."""
        entry: dict[str, Any] = {"epoch": self.epoch}
        last = self.step == self.steps
        if self.pacer is not None and not last and self.pacer.wants_update(self.epoch):
            rows = embed(self.embedder, self.loader, device=self.device, half=self.config.autocast, name="pacing")
            entry["pacing"] = self.pacer.update(rows, self.loader.samples.labels, loss=self.loss)
        if self.select != "last" and (last or (self.epoch + 1) % self.config.select.every == 0):
            name = "validation" if self.select == "validation" else "test"
            scores = self._score(name)
            entry[name] = dict(scores.values)
            self._choose(scores)
        if len(entry) > 1:
            log.write("epoch", self.step, **entry)
        self.epoch_start = self._place()
        self.consumed = 0

    def _choose(self, scores: Scores) -> None:
        metric = self.config.select.metric
        if metric not in scores.values:
            raise NearfarError(f"select.metric={metric} is not among metrics: {', '.join(scores.values)}")
        self.best["looks"] += 1
        if scores[metric] > self.best["value"]:
            self.best.update(value=scores[metric], epoch=self.epoch, looks=0)
            save_embedder(self._chosen_now(), self.out / BEST)

    def _patience_is_over(self) -> bool:
        patience = self.config.select.patience
        return patience is not None and self.select != "last" and self.best["looks"] >= patience

    def _chosen_now(self) -> Any:
        return self.embedder if self.ema is None else self.ema.module

    def _score(self, name: str) -> Scores:
        manifest, loader = (
            (self.splits.validation, self.held_out) if name == "validation" else (self.splits.test, self.tested)
        )
        assert manifest is not None
        assert loader is not None
        rows = embed(self._chosen_now(), loader, device=self.device, half=self.config.autocast, name=name)
        return score(rows, manifest, self.config.metrics)

    def _finish(self, log: Log, seconds: float) -> None:
        """The chosen weights, their scores on the test split, and the end of the log."""
        chosen = self._chosen_now() if self.select == "last" else load_embedder(self.out / BEST).to(self.device)
        result: dict[str, Any] = {
            "selected_by": self.select,
            "epoch": self.epoch if self.select == "last" else self.best["epoch"],
            "steps": self.step,
            "seconds": round(seconds, 1),
            "nearfar": nearfar.__version__,
            "torch": torch.__version__,
            "machine": platform.machine(),
        }
        if self.select == "test":
            result["warning"] = "the epoch was chosen on the test set, as in some papers: not a fair number"
        if self.select == "validation":
            result["validation"] = {self.config.select.metric: self.best["value"]}
        if self.splits.test is not None and self.tested is not None:
            rows = embed(chosen, self.tested, device=self.device, half=self.config.autocast, name="test")
            result["test"] = dict(score(rows, self.splits.test, self.config.metrics).values)
            self.found = self.splits.test, rows
        if self.untrained is not None:
            result["untrained"] = self.untrained
        if self.pacer is not None and self.splits.wrong is not None and self.splits.wrong.any():
            result["detection"] = judged(1 - self.pacer.weights.numpy(), self.splits.wrong)
        about = {"classes": len(self.splits.train.classes), "recipe": self.config.recipe}
        save_embedder(chosen, self.out / "model.safetensors", about)
        log.write("end", self.step, **result)
        with atomic(self.out / "scores.json") as draft:
            draft.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

    def _write_step(
        self, log: Log, bar: Any, rows: Tensor, labels: Tensor, weights: Tensor | None, speed: float
    ) -> None:
        total, count = self.sums.tolist()
        self.sums.zero_()
        mean = total / count
        if not math.isfinite(mean):
            raise NearfarError(f"the loss is {mean} at step {self.step}: {CURE}")
        seen = look(
            self.loss,
            rows,
            labels.to(rows.device),
            weights=weights,
            representatives=self.batches.representatives,
        )
        rate = self.config.optimiser.lr * self.lr_factor
        log.write("step", self.step, epoch=self.epoch, loss=mean, lr=rate, samples_per_second=round(speed, 1), **seen)
        shown = {"loss": f"{mean:.3f}", "norm": f"{seen['norm']:.1f}", "lr": f"{rate:.1e}"}
        if "active_pairs" in seen:
            shown["active"] = f"{seen['active_pairs']:.0%}"
        bar.set_postfix({**shown, "samples/s": f"{speed:.0f}"}, refresh=False)
        for kind, text in warnings(seen, dim=self.embedder.dim, rows=len(rows)).items():
            if kind not in self.warned:
                self.warned.add(kind)
                self.say(f"warning: {text}")
                log.write("warning", self.step, text=text)

    # State ------------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """The whole state, in one file."""
        sampler = self.batches.state_dict()
        if not self.batches.live:
            sampler = self.epoch_start | {"position": self.epoch_start["position"] + self.consumed}
        state = {
            "step": self.step,
            "consumed": self.consumed,
            "epoch_start": self.epoch_start,
            "sampler": sampler,
            "cycle": self.cycle,
            "best": self.best,
            "sums": self.sums,
            "untrained": self.untrained,
            "warned": sorted(self.warned),
            "embedder": self.embedder.state_dict(),
            "loss": self.loss.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "pacer": None if self.pacer is None else self.pacer.state_dict(),
            "projection": None if self.projection is None else self.projection.state_dict(),
            "random": random_state(),
        }
        save_state(self.out / CHECKPOINT, state)

    def load(self) -> None:
        """Go on from the file that `save` wrote."""
        state = load_state(self.out / CHECKPOINT)
        self.step, self.consumed, self.cycle = state["step"], state["consumed"], state["cycle"]
        self.epoch_start, self.best, self.untrained = state["epoch_start"], state["best"], state["untrained"]
        self.sums.copy_(state["sums"])
        self.warned = set(state["warned"])
        self.embedder.load_state_dict(state["embedder"])
        self.loss.load_state_dict(state["loss"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        for part, name in ((self.ema, "ema"), (self.pacer, "pacer"), (self.projection, "projection")):
            if part is not None:
                part.load_state_dict(state[name])
        self.batches.load_state_dict(state["sampler"])
        set_random_state(state["random"])


def _device(name: str) -> torch.device:
    if name != "auto":
        try:
            return torch.device(name)
        except RuntimeError as error:
            raise NearfarError(f"device={name}: {error}") from None
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _with_fingerprint(config: Config, fingerprint: str) -> Config:
    known = config.data.fingerprint
    if known is not None and known != fingerprint:
        raise NearfarError(
            f"{config.data.source}: is not the data that the configuration names, files, classes or split have changed "
            f"(fingerprint {fingerprint[:12]}, expected {known[:12]}); set data.fingerprint=null to train on it anyway"
        )
    return replace(config, data=replace(config.data, fingerprint=fingerprint))


def _same(config: Config, before: Config) -> Config:
    """The configuration of the run that is there; another one now would make a run that no config describes."""
    ours, theirs = _flat(config.to_dict()), _flat(before.to_dict())
    free = ("data.workers", "threads", "device", "log_every", "save_every")
    changed = [key for key in ours if ours[key] != theirs.get(key) and key not in free]
    if changed:
        key = changed[0]
        raise NearfarError(
            f"--resume goes on with the same settings, but {key} is {ours[key]!r} now and was {theirs.get(key)!r}: "
            "leave the settings out, or start another run"
        )
    return config


def _flat(tree: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return flat
