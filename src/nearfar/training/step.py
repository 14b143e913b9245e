"""A single training step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearfar.data import Batch
from nearfar.training.distributed import process_group
from nearfar.training.evaluate import autocast, to_device
from nearfar.training.failed_batch import LossError
from nearfar.training.image_parts import embed_in_parts, training_part_size
from nearfar.training.schedule import lr_factor
from nearfar.training.state import TrainState
from nearfar.training.two_pass import two_pass


@dataclass(frozen=True, eq=False)
class StepResult:
    """The result of a step for the global batch: loss and embeddings (both detached), labels, and sample weights."""

    loss: Tensor
    embeddings: Tensor
    labels: Tensor
    weights: Tensor | None


def train_step(state: TrainState, batch: Batch, *, steps: int) -> StepResult:
    """Train on one batch and return the result. This updates the parameters, but does not increment `state.step`.

    With several processes, `batch.x` holds the samples of this process, and `batch.labels` and `batch.indices` those of
    the global batch. Each process embeds its samples, gathers the embeddings of the other processes, and computes the
    loss of the global batch.

    Args:
        state: The state of training.
        batch: The batch.
        steps: Number of steps of the whole run, for the schedule.

    Raises:
        LossError: If the loss fails or is not finite.
    """
    config, sampler = state.config, state.sampler
    if state.projection is not None and sampler.cycle != state.cycle:
        state.projection.snapshot()
        state.cycle = sampler.cycle
    factor = lr_factor(config.schedule, step=state.step, steps=steps, epoch=state.epoch)
    for group in state.optimizer.param_groups:
        group["lr"] = group["top_lr"] * factor
    state.optimizer.zero_grad(set_to_none=True)
    x = to_device(batch.x, state.device, state.dtype, channels_last=state.embedder.channels_last)
    labels = batch.labels.to(state.device, non_blocking=True)
    weights: Tensor | None = None
    loss = embeddings = torch.empty(0)

    # Do not split the batch if the network is compiled or sharded: torch.compile would compile it again for the size of
    # a part, and FSDP needs all processes for every part.
    is_splittable = not config.compile and not state.is_network_sharded
    part_size = training_part_size(state.embedder, x) if is_splittable else None

    def embed(inputs: Tensor) -> Tensor:
        with autocast(config.autocast, state.device):
            return embed_in_parts(state.network, inputs, size=part_size)

    def compute_loss(local_embeddings: Tensor) -> Tensor:
        nonlocal weights, loss, embeddings
        embeddings = process_group.gather_parts(local_embeddings, len(labels))
        with shared_random():
            if state.pacer is not None:
                weights = state.pacer.batch_weights(embeddings.detach(), labels, batch.indices)
            failure = LossError("", state.step, batch, embeddings.detach(), weights, torch.get_rng_state())
            try:
                if state.pairs is None:
                    loss = state.loss(embeddings, labels, weights=weights, representatives=sampler.representatives)
                else:
                    loss = state.loss(embeddings, state.pairs.relation(batch.indices))
            except ValueError as error:
                failure.args = error.args
                raise failure from error
            state.watchdog.watch(loss.detach(), embeddings.detach(), failure)
        scaled: Tensor = state.scaler.scale(loss)
        return scaled

    reduce = state.network_gradients.reduce
    with process_group.per_rank_random(config.seed, state.step) as shared_random, state.loss_gradients.reduce():
        if config.micro_batch is None or process_group.largest_part_size(len(labels)) <= config.micro_batch:
            scaled_loss = compute_loss(embed(x))
            with reduce():
                scaled_loss.backward()  # type: ignore[no-untyped-call]
        else:
            micro_batch = process_group.even_chunk_size(len(labels), config.micro_batch)
            two_pass(state.embedder, compute_loss, x, micro_batch=micro_batch, embed=embed, last_backward=reduce)

    state.scaler.unscale_(state.optimizer)
    if state.projection is not None:
        state.projection.add_to_gradients()
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    if config.optimizer.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, config.optimizer.clip_value)
    if config.optimizer.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, config.optimizer.clip_norm)
    state.watchdog.skip_failed_updates(is_scaled=state.scaler.is_enabled())
    state.scaler.step(state.optimizer)
    state.scaler.update()
    if state.ema is not None:
        state.ema.update_parameters(state.embedder)
    loss, embeddings = loss.detach(), embeddings.detach()
    sampler.observe(embeddings, loss)
    return StepResult(loss, embeddings, batch.labels, weights)
