"""The training loop: train on batches and save checkpoints. After each epoch, update the sample weights and scores.

The sample weights come from a pacer (`nearfar.pacing`), if the run has one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.config.schema import Config
from nearfar.data import Batch, Manifest
from nearfar.errors import NearfarError
from nearfar.formatting import counted
from nearfar.models import Embedder
from nearfar.runs import BEST, START
from nearfar.training.activation_cache import ActivationCache
from nearfar.training.cache_plan import describe_cached_plan, plan_cached_run
from nearfar.training.class_subset import sample_whole_classes
from nearfar.training.compactness import measure_compactness
from nearfar.training.components import make_embedder
from nearfar.training.distributed import process_group
from nearfar.training.evaluate import Evaluator, can_be_scored
from nearfar.training.finish import finish_run
from nearfar.training.gpu_switches import set_gpu_switches
from nearfar.training.initialization import InitialState
from nearfar.training.interpolation import check_interpolation
from nearfar.training.memory import estimate_memory
from nearfar.training.monitor import Monitor
from nearfar.training.prepare import prepare
from nearfar.training.run_plan import describe_plan, plan_run
from nearfar.training.run_summary import summarize_run
from nearfar.training.selection import Selection
from nearfar.training.splits import describe_joined_labels, describe_shared_classes, split_manifest
from nearfar.training.start_scores import score_start
from nearfar.training.state import TrainState
from nearfar.training.step import StepResult, train_step
from nearfar.training.step_error import explain_errors

SHARDED_SAVE_STEPS = 20  # number of steps after which a sharded run checks again whether a checkpoint is due
MAX_TRAIN_SCORED = 2000  # maximum number of samples that `log_train` embeds

Say = Callable[[str], object]


class Trainer:
    """Trains a network from the current step of its state to the end.

    Attributes:
        state: Everything that changes during training.
        splits: The training, validation and test samples.
        steps: Number of steps of the whole run.
        test_embeddings: The test samples and their embeddings, or None if `fit` has not scored the test samples.
    """

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        out: Path,
        *,
        say: Say = print,
        initial: InitialState | None = None,
        network: nn.Module | None = None,
        plan: bool = False,
        on_step_end: Callable[[Trainer, StepResult], object] | None = None,
        on_epoch_end: Callable[[Trainer, dict[str, Any]], object] | None = None,
    ) -> None:
        """Create everything that a run needs, at step 0.

        Args:
            config: The configuration.
            manifest: The data of `config.data`.
            out: The run directory.
            say: Function that prints a message.
            initial: Initial state that several runs in one process can share.
            network: Your own network, which replaces the backbone of the configuration. If it is an embedder, it
                replaces the head as well.
            plan: If True, time a few images and say how long the run takes. Applies only to image files; runs on cached
                activations always do so.
            on_step_end: Called after each step with the trainer and the result of the step.
            on_epoch_end: Called after each epoch with the trainer and the log entry of the epoch.
        """
        self.config, self.out, self.say, self.network = config, out, say, network
        self.on_step_end, self.on_epoch_end = on_step_end or _ignore, on_epoch_end or _ignore
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        device = process_group.local_device(config.device)
        if device.type == "cuda":
            set_gpu_switches(config)
        torch.manual_seed(config.seed)

        embedder = make_embedder(config, manifest, network)
        with process_group.main_process_first():
            data = prepare(config, manifest, embedder, say=say)
        self.splits = splits = split_manifest(data.manifest, config)
        if splits.noise is not None and process_group.is_main_process():
            splits.noise.save(out / "noise.json")
        for warning in [*describe_joined_labels(splits.train), *describe_shared_classes(splits)]:
            say(f"warning: {warning}")
        self.train_loader = data.loader(splits.train, seed=config.seed, device=device)
        parts = {"validation": splits.validation, "test": splits.test}
        self.evaluated = {
            name: (part, data.loader(part, seed=config.seed, device=device))
            for name, part in parts.items()
            if part is not None and can_be_scored(part, name, say)
        }
        self.activations: ActivationCache | None = None
        image_parts = {"train": (splits.train, self.train_loader), **self.evaluated}
        if config.cache.activations is not None:
            self.activations = ActivationCache(config, embedder, image_parts, device=device, say=say)
            for line in describe_cached_plan(self.activations, plan_cached_run(self.activations)):
                say(line)
            with process_group.main_process_first():
                self.activations.build()
            self.train_loader = self.activations.loader("train")
            self.evaluated = {name: (part, self.activations.loader(name)) for name, (part, _) in self.evaluated.items()}
        elif plan and splits.train.kind == "files":
            for line in describe_plan(config, embedder, plan_run(config, embedder, image_parts)):
                say(line)
        self.initial = initial or InitialState()
        selection = Selection(config.select, validation="validation" in self.evaluated, test="test" in self.evaluated)
        selection.check_metric(config.metrics)
        check_interpolation(config, has_validation="validation" in self.evaluated)
        self.state = TrainState(
            config, embedder, splits.train, self.train_loader, device=device, selection=selection, initial=self.initial
        )
        self.evaluator = Evaluator(config, device)
        self.steps = config.steps or (config.epochs or 0) * len(self.state.sampler)
        self.test_embeddings: tuple[Manifest, Tensor] | None = None

    @property
    def summary(self) -> str:
        """One line that describes the size of the run."""
        return summarize_run(
            samples=len(self.splits.train),
            batch_size=self.state.sampler.size,
            steps=self.steps,
            steps_per_epoch=len(self.state.sampler),
            by_epochs=self.config.steps is None,
            warmup_epochs=self.state.loss.warmup_epochs,
            memory=estimate_memory(self.state, self.train_loader),
        )

    def fit(self, *, progress: bool = True, stop_after: int | None = None) -> None:
        """Train from the current step to the end, test the selected weights and write the results.

        Args:
            progress: If True, show progress: a bar in a terminal, elsewhere a message every 30 seconds.
            stop_after: Return after this step without saving.
        """
        config, state = self.config, self.state
        if self.activations is not None:
            self.activations.check_weights(state.embedder)
        if config.test and config.untrained and "test" in self.evaluated and state.step == 0:
            score_start(state, self.evaluator, *self.evaluated["test"], self.initial)
        if state.step == 0:
            self._keep_start()
        monitor = Monitor(state, self.out, steps=self.steps, progress=progress, say=self.say)
        self._last_save = time.monotonic()
        try:
            while state.step < self.steps and not state.selection.is_patience_over():
                self.start_epoch()
                for batch in self.batches():
                    with self._explain_errors():
                        result = train_step(state, batch, steps=self.steps)
                    state.count_step(result.loss)
                    monitor.end_step(result)
                    self.on_step_end(self, result)
                    if state.step == self.steps:
                        break
                    if stop_after is not None and state.step >= stop_after:
                        return
                    self._save_if_due()
                with self._explain_errors():
                    state.watchdog.wait()
                entry = self._end_epoch()
                if len(entry) > 1:
                    monitor.write("epoch", entry)
                state.end_epoch()
                self.on_epoch_end(self, entry)
                self._save_if_due()
            state.save(self.out)
            finish_run(self, monitor)
        finally:
            monitor.close()
            self.train_loader.close()

    def _keep_start(self) -> None:
        """Save the network before training if `model.interpolate` or `select.untrained` needs it later."""
        state, config = self.state, self.config
        if config.model.interpolate:
            state.save_weights(state.evaluated_embedder, self.out / START)
        if config.select.untrained and state.selection.by != "last":
            state.selection.offer_start(self.score(state.selection.by))
            state.save_weights(state.evaluated_embedder, self.out / BEST)

    def start_epoch(self) -> None:
        """Prepare the loss and the network for the current epoch."""
        state = self.state
        if state.consumed == 0:
            state.loss.start_epoch(state.epoch)
        frozen = self.config.model.freeze_backbone or state.epoch < self.config.schedule.warm_up_epochs
        trained = {id(parameter) for group in state.optimizer.param_groups for parameter in group["params"]}
        for parameter in state.embedder.trunk_parameters():
            if id(parameter) in trained:  # the others were frozen before training
                parameter.requires_grad_(not frozen)
        state.set_train_mode()

    def batches(self) -> Iterator[Batch]:
        """Yield the remaining batches of the epoch.

        Each batch has the inputs of this process, and the labels and indices of the global batch of all processes.
        """
        sampler, loader, world_size = self.state.sampler, self.train_loader, process_group.world_size()
        global_batches: deque[list[int]] = deque()  # a queue, because the loader may read several batches ahead

        def local_rows() -> Iterator[list[int]]:
            epoch = iter(sampler)
            while True:
                missing = sampler.samples_to_embed()
                if missing is not None:
                    sampler.write_embeddings(self.evaluator.embed(self.state.embedder, loader, "embed", missing))
                    self.state.set_train_mode()
                try:
                    rows = next(epoch)
                except StopIteration:
                    return
                if len(rows) < world_size:
                    raise NearfarError(
                        f"a batch of {counted(len(rows), 'sample')} cannot be split over {world_size} processes: "
                        "use larger batches or fewer processes"
                    )
                global_batches.append(rows)
                yield process_group.local_part(rows)

        for batch in loader.load(local_rows(), epoch=self.state.epoch, read_ahead=not sampler.is_adaptive):
            rows = global_batches.popleft()
            if world_size == 1:
                yield batch
            else:
                indices = torch.tensor(rows)
                yield Batch(batch.x, loader.dataset.labels[indices], indices)

    def _end_epoch(self) -> dict[str, Any]:
        """Update the pacer and the selection. Return the log entry of the epoch."""
        state = self.state
        entry: dict[str, Any] = {"epoch": state.epoch}
        is_last = state.step == self.steps
        if state.pacer is not None and not is_last and state.pacer.should_update(state.epoch):
            embeddings = self.evaluator.embed(state.embedder, self.train_loader, "pacing").to(state.device)
            entry["pacing"] = state.pacer.update(embeddings, self.train_loader.dataset.labels, loss=state.loss)
            process_group.broadcast_from_main([state.pacer.weights])
        if self.config.log_train:
            # the gap between the scores of training classes and of unseen classes shows overfitting
            rows = sample_whole_classes(self.splits.train.labels, MAX_TRAIN_SCORED)[:MAX_TRAIN_SCORED].tolist()
            embeddings = self.evaluator.embed(state.evaluated_embedder, self.train_loader, "train", rows)
            entry["train"] = self.evaluator.score(embeddings, self.splits.train.subset(rows))
            entry["compactness"] = measure_compactness(embeddings, state.loss)
        by = state.selection.by
        if state.selection.should_score(state.epoch, is_last=is_last):
            entry[by] = self.score(by)
            if state.selection.update(entry[by], state.epoch):
                state.save_weights(state.evaluated_embedder, self.out / BEST)
        return entry

    def score(self, name: str, network: Embedder | None = None) -> dict[str, float]:
        """Return the scores of the current weights, or of another network, on a split: "validation" or "test"."""
        manifest, loader = self.evaluated[name]
        network = self.state.evaluated_embedder if network is None else network
        return self.evaluator.score(self.evaluator.embed(network, loader, name), manifest)

    def _save_if_due(self) -> None:
        is_due = time.monotonic() - self._last_save > self.config.save_every
        if self.state.is_sharded:  # all processes take part in the save, so the main process decides for all
            if self.state.step % SHARDED_SAVE_STEPS and self.config.save_every > 0:
                return
            is_due = process_group.broadcast_text(lambda: "yes" if is_due else "no") == "yes"
        if is_due:
            with self._explain_errors():
                self.state.watchdog.wait()
            self.state.save(self.out)
            self._last_save = time.monotonic()

    def _explain_errors(self) -> AbstractContextManager[None]:
        return explain_errors(self.state, self.out, train=self.splits.train)


def _ignore(*_: object) -> None:
    """Do nothing."""
