"""The training loop: batches -> embedder -> loss -> step; between epochs pacing, validation, a checkpoint.

    run = train(config, Path("runs/mine"))

A run that was killed goes on with `train(config, path, resume=True)` to the weights it would have reached, bit for bit.
Under torchrun several ranks make the run of one process, see `nearfar.training.distributed.process_group`.
"""

from __future__ import annotations

import json
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

import nearfar
from nearfar.config.schema import Config
from nearfar.data import Batch, BatchLoader, Manifest
from nearfar.errors import NearfarError
from nearfar.files import atomic, remove_drafts
from nearfar.formatting import duration
from nearfar.metrics.detection import judged
from nearfar.report.run_report import report_run
from nearfar.runs import BEST, CHECKPOINT, Run, load_embedder
from nearfar.training import failed_batch, prepare
from nearfar.training.class_subset import sample_whole_classes
from nearfar.training.distributed import process_group
from nearfar.training.evaluate import autocast, embed, score, to_device
from nearfar.training.health import look, warnings
from nearfar.training.initialization import InitialState, InitialStateCache
from nearfar.training.log import Log
from nearfar.training.resume import same_settings, with_fingerprint
from nearfar.training.schedule import factor
from nearfar.training.state import Parts
from nearfar.training.trackers import open_trackers
from nearfar.training.two_pass import two_pass

SAVED = " (what was saved before is still there)"
CURE = f"where it diverged, lower optimizer.lr or set optimizer.clip_norm=1{SAVED}"
TRAIN_SCORED = 2000  # samples
TELL_EVERY = 30  # seconds, where no bar shows


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    say: Callable[[str], object] = print,
    report: bool = False,
    progress: bool = True,
    stop_after: int | None = None,
    initial_states: InitialStateCache | None = None,
) -> Run:
    """Train as the configuration says, in the directory `out`; gives the finished run.

    resume: go on with the run that is there. report: also write report.html. progress: show a bar where there is a
    terminal. stop_after: leave after this many steps as if killed (for tests). initial_states: for many runs in one
    process, so that those that begin alike compute their start once.

    Under torchrun every rank calls this with the same arguments, `out` on a disk that all of them see. After a restart
    by torchrun the run goes on by itself.
    """
    with process_group.join_process_group():
        say = say if process_group.is_main_process() else _nothing
        start = None if initial_states is None else initial_states.get(config)
        return _train(
            config, out, resume=resume, say=say, report=report, progress=progress, stop_after=stop_after, start=start
        )


def _train(
    config: Config,
    out: Path,
    *,
    resume: bool,
    say: Callable[[str], object],
    report: bool,
    progress: bool,
    stop_after: int | None,
    start: InitialState | None,
) -> Run:
    manifest = prepare.open_manifest(config.data)
    config = with_fingerprint(config, manifest.fingerprint)
    resume = resume or (process_group.was_restarted() and (out / "config.yaml").exists())
    if resume:
        before = Run(out)
        config = same_settings(config, before.config)
        if before.finished:
            say(f"{out} is finished already")
            if report and process_group.is_main_process():
                report_run(before)
            return before
    elif (out / "config.yaml").exists():
        raise NearfarError(f"{out}: holds a run already: go on with --resume, or choose another --out")
    process_group.check_ranks_agree(
        f"{resume} {config.to_yaml()}", "start all with the same command, with --out on a shared disk"
    )
    training = Training(config, manifest, out, say=say, start=start)
    if process_group.is_main_process():
        for folder in (out, (out / CHECKPOINT).parent):
            remove_drafts(folder)
        with atomic(out / "config.yaml") as draft:  # not before all parts fit: a mistake must not leave half a run
            draft.write_text(config.to_yaml(), encoding="utf-8")
    if resume and training.load():
        say(f"going on at step {training.step:,} of {training.steps:,}")
    else:
        say(training.plan)
    process_group.check_ranks_agree(f"step {training.step}", "keep --out on a disk that all ranks see")
    training.run(progress=progress, stop_after=stop_after)
    process_group.barrier()
    run = Run(out)
    if report and run.finished and process_group.is_main_process():
        report_run(run, training.found)
    return run


class Training(Parts):
    """A run that goes on from where its parts stand."""

    # One step ---------------------------------------------------------------------------------------------------------

    def _embed(self, x: Tensor) -> Tensor:
        with autocast(self.config.autocast, self.device):
            rows: Tensor = self.network(x)
            return rows

    def train_on(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """One step on a batch; gives the loss and the embeddings, detached, and the weights of the samples.

        Of several ranks each has its share of the rows `batch.x`, and the labels and indices of the whole batch.
        """
        config = self.config.optimizer
        if self.projection is not None and self.batches.cycle != self.cycle:
            self.projection.snapshot()
            self.cycle = self.batches.cycle
        rate = self.lr_factor
        for group in self.optimizer.param_groups:
            group["lr"] = group["top_lr"] * rate
        self.optimizer.zero_grad(set_to_none=True)
        x, labels = to_device(batch.x, self.device, self.dtype), batch.labels.to(self.device)
        weights: Tensor | None = None
        value = rows = torch.empty(0)

        def value_of(own: Tensor) -> Tensor:
            nonlocal weights, value, rows
            rows = process_group.gather_parts(own, len(labels))
            with together():
                if self.pacer is not None:
                    weights = self.pacer.batch_weights(rows.detach(), labels, batch.indices)
                draws = torch.get_rng_state()
                try:
                    value = self.loss(rows, labels, weights=weights, representatives=self.batches.representatives)
                    failed_batch.check_finite(value)
                except ValueError as error:
                    raise ValueError(f"{error} ({self._keep_batch(batch, rows, weights, draws)})") from error
            scaled: Tensor = self.scaler.scale(value)
            return scaled

        with process_group.per_rank_random(self.config.seed, self.step) as together:
            if (
                self.config.micro_batch is None
                or process_group.largest_part_size(len(labels)) <= self.config.micro_batch
            ):
                value_of(self._embed(x)).backward()  # type: ignore[no-untyped-call]
            else:
                micro = process_group.even_chunk_size(len(labels), self.config.micro_batch)
                two_pass(self.embedder, value_of, x, micro_batch=micro, embed=self._embed)
        if not self.split:
            process_group.all_reduce_gradients(self.embedder.parameters())
        if self.device.type != "cpu" and not self.config.shard_proxies:
            # kernels that add in no fixed order would let the ranks' proxies drift apart
            process_group.all_reduce_gradients(self.loss.parameters(), mean=True)
        self.scaler.unscale_(self.optimizer)
        if self.projection is not None:
            self.projection.add_to_gradients()
        if config.clip_value is not None:
            nn.utils.clip_grad_value_(self._trained(), config.clip_value)
        if config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._trained(), config.clip_norm)
        self.scaler.step(self.optimizer)
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

    def _trained(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    # The whole --------------------------------------------------------------------------------------------------------

    def run(self, *, progress: bool = True, stop_after: int | None = None) -> None:
        """From where it stands to the end."""
        config = self.config
        trackers = open_trackers(config.track, self.out, config.to_dict()) if process_group.is_main_process() else ()
        log = (
            Log(self.out / "log.jsonl", step=self.step, epoch=self.epoch, trackers=trackers)
            if process_group.is_main_process()
            else None
        )
        first = self.step
        if config.test and config.untrained and self.tested is not None and self.step == 0:
            self.untrained = self.start.scores = self.start.scores or self._score("test")
        started = saved = told = time.monotonic()
        hidden = (
            None if progress and process_group.is_main_process() else True
        )  # None: hidden where there is no terminal
        with tqdm(total=self.steps, initial=first, desc="train", unit="batch", leave=False, disable=hidden) as bar:
            try:
                while self.step < self.steps and not self.select.patience_is_over():
                    self._start_epoch()
                    for batch in self._epoch():
                        try:
                            value, rows, weights = self.train_on(batch)
                        except ValueError as error:
                            raise NearfarError(f"at step {self.step}: {error}; {CURE}") from error
                        self.step += 1
                        self.consumed += 1
                        self.sums += torch.stack([value.to(self.sums), torch.ones_like(self.sums[0])])
                        bar.update()
                        if self.step % config.log_every == 0 or self.step == self.steps:
                            speed = (self.step - first) / (time.monotonic() - started)
                            self._write_step(log, bar, rows, batch.labels, weights, speed * len(batch.labels))
                        if progress and bar.disable and time.monotonic() - told > TELL_EVERY:
                            told = time.monotonic()
                            rest = (told - started) / (self.step - first) * (self.steps - self.step)
                            self.say(f"step {self.step:,} of {self.steps:,}, {duration(rest)} left")
                        if self.step == self.steps:
                            break
                        if stop_after is not None and self.step >= stop_after:
                            return
                        if self._save_is_due(saved):
                            self.save()
                            saved = time.monotonic()
                    self._end_epoch(log)
                    if self._save_is_due(saved):
                        self.save()
                        saved = time.monotonic()
                self.save()
                self._finish(log, time.monotonic() - started)
            finally:
                if log is not None:
                    log.close()
                self.loader.close()

    def _save_is_due(self, saved: float) -> bool:
        due = time.monotonic() - saved > self.config.save_every
        # what is split comes together for it, so all ranks must go by one clock
        return due if not self._apart() else process_group.broadcast_text(lambda: "yes" if due else "no") == "yes"

    def _start_epoch(self) -> None:
        if self.consumed == 0:
            self.loss.start_epoch(self.epoch)
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
        """The batches of this epoch that are still to come: this rank's rows, with the labels and indices of all."""
        asked: deque[list[int]] = deque()  # global batches that the loader has read, perhaps ahead

        def rows() -> Iterator[list[int]]:
            epoch = iter(self.batches)
            while True:
                wanted = self.batches.samples_to_embed()
                if wanted is not None:
                    found = embed(self.embedder, self.loader, device=self.device, rows=wanted, shared=True)
                    self.batches.write_embeddings(found)
                    self._train_mode()
                try:
                    asked.append(next(epoch))
                except StopIteration:
                    return
                if len(asked[-1]) < process_group.world_size():
                    raise NearfarError(
                        f"a batch of {len(asked[-1])} has no row for each of {process_group.world_size()} ranks"
                    )
                yield process_group.local_part(asked[-1])

        for batch in self.loader.load(rows(), epoch=self.epoch, read_ahead=not self.batches.is_adaptive):
            whole = asked.popleft()
            if process_group.world_size() == 1:
                yield batch
            else:
                indices = torch.tensor(whole)
                yield Batch(batch.x, self.loader.dataset.labels[indices], indices)

    def _end_epoch(self, log: Log | None) -> None:
        """Pacing and selection; then the next epoch begins."""
        entry: dict[str, Any] = {"epoch": self.epoch}
        last = self.step == self.steps
        if self.pacer is not None and not last and self.pacer.should_update(self.epoch):
            rows = self._embed_all(self.embedder, self.loader, "pacing")
            entry["pacing"] = self.pacer.update(rows, self.loader.dataset.labels, loss=self.loss)
            process_group.broadcast_from_main([self.pacer.weights])
        if self.config.log_train:
            entry["train"] = self._train_scores()
        if self.select.wants(self.epoch, last=last):
            entry[self.select.by] = self._score(self.select.by)
            if self.select.hear(entry[self.select.by], self.epoch):
                self._keep(self._chosen_now(), self.out / BEST)
        if len(entry) > 1 and log is not None:
            log.write("epoch", self.step, **entry)
        self.epoch_start = self._place()
        self.consumed = 0

    def _embed_all(self, network: nn.Module, loader: BatchLoader, name: str) -> Tensor:
        return embed(network, loader, device=self.device, half=self.config.autocast, name=name, shared=True)

    def _score(self, name: str) -> dict[str, float]:
        """Scores of the weights as they are, on validation or test."""
        manifest, loader = (
            (self.splits.validation, self.held_out) if name == "validation" else (self.splits.test, self.tested)
        )
        assert manifest is not None
        assert loader is not None
        return self._scores_of(self._embed_all(self._chosen_now(), loader, name), manifest)

    def _train_scores(self) -> dict[str, float]:
        """Of some classes that are trained on: beside those of new classes they show overfitting."""
        rows = sample_whole_classes(self.splits.train.labels, TRAIN_SCORED)
        network, half = self._chosen_now(), self.config.autocast
        found = embed(network, self.loader, device=self.device, half=half, rows=rows, name="train", shared=True)
        return self._scores_of(found, self.splits.train.subset(rows))

    def _scores_of(self, rows: Tensor, manifest: Manifest) -> dict[str, float]:
        """Made by one rank, told to all."""
        text = process_group.broadcast_text(lambda: json.dumps(dict(score(rows, manifest, self.config.metrics))))
        scores: dict[str, float] = json.loads(text)
        return scores

    def _finish(self, log: Log | None, seconds: float) -> None:
        """The chosen weights, their scores on the test split, and the end of the log."""
        process_group.barrier()  # rank 0 may still write the best weights
        last = self.select.by == "last"
        chosen = self._chosen_now() if last else load_embedder(self.out / BEST).to(self.device)
        result: dict[str, Any] = {
            **self.select.told(self.epoch),
            "steps": self.step,
            "batch": self.batches.size,
            "seconds": round(seconds, 1),
            "nearfar": nearfar.__version__,
            "torch": torch.__version__,
            "machine": platform.machine(),
        }
        if self.config.test and self.splits.test is not None and self.tested is not None:
            rows = self._embed_all(chosen, self.tested, "test")
            result["test"] = self._scores_of(rows, self.splits.test)
            self.found = self.splits.test, rows
        if self.untrained is not None:
            result["untrained"] = self.untrained
        if self.pacer is not None and self.splits.wrong is not None and self.splits.wrong.any():
            result["detection"] = judged(1 - self.pacer.weights.numpy(), self.splits.wrong)
        about = {"classes": len(self.splits.train.classes), "recipe": self.config.recipe}
        self._keep(chosen, self.out / "model.safetensors", about)
        if log is None:
            return
        log.write("end", self.step, **result)
        with atomic(self.out / "scores.json") as draft:
            draft.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

    def _write_step(
        self, log: Log | None, bar: Any, rows: Tensor, labels: Tensor, weights: Tensor | None, speed: float
    ) -> None:
        total, count = self.sums.tolist()
        self.sums.zero_()
        mean = total / count
        if log is None:
            return
        seen = look(
            self.loss,
            rows,
            labels.to(rows.device),
            weights=weights,
            representatives=self.batches.representatives,
        )
        rate = self.config.optimizer.lr * self.lr_factor
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


def _nothing(text: str) -> None:
    """What ranks other than the first say."""
