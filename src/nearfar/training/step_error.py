"""Turn the exception of a training step into an error message that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearfar.data import Manifest
from nearfar.data.taxonomy import class_levels
from nearfar.errors import NearfarError, is_out_of_memory
from nearfar.training.distributed import process_group
from nearfar.training.failed_batch import LossError, save_failed_batch
from nearfar.training.state import TrainState

SAVED = " (checkpoints saved earlier are kept)"
LOWER_RATE = "if training diverged, lower optimizer.lr"
ADVICE = f"{LOWER_RATE} or set optimizer.clip_norm=1{SAVED}"
SHARDED_ADVICE = f"{LOWER_RATE}{SAVED}"  # sharded runs do not support optimizer.clip_norm


@contextmanager
def explain_errors(state: TrainState, out: Path, *, train: Manifest) -> Iterator[None]:
    """Replace known errors of a training step by those that `describe_step_error` returns."""
    try:
        yield
    except (ValueError, RuntimeError, MemoryError) as error:
        known = describe_step_error(error, state, out, train=train)
        if known is None:
            raise
        raise known from error


def describe_step_error(
    error: ValueError | RuntimeError | MemoryError, state: TrainState, out: Path, *, train: Manifest
) -> NearfarError | None:
    """Return the error to raise instead of `error`, or None if `error` is not a known problem of a step.

    If the loss failed or was not finite, the main process saves the batch, unless the state is sharded.

    Args:
        error: The exception of the step.
        state: The state of training before the step.
        out: The run directory.
        train: The training samples.
    """
    if is_out_of_memory(error):
        return _describe_out_of_memory(state)
    if not isinstance(error, ValueError):
        return None
    saved, step = "", state.step
    if isinstance(error, LossError):
        step = error.inputs["step"]
        saved = " (the main process saves the batch)"
        if state.is_sharded:
            saved = " (the batch is not saved, because other processes hold parts of the network or the loss)"
        elif process_group.is_main_process():
            levels, pairs = class_levels(train), state.pairs
            inputs = {
                "classes": train.label_count,
                "levels": None if levels is None else levels.tolist(),
                "relation": None if pairs is None else pairs.relation(error.inputs["indices"]),
                "graded": pairs is not None and pairs.is_graded,
                "representatives": state.sampler.representatives,
                "embedder": state.embedder.state_dict(),
                "loss": state.loss.state_dict(),
            }
            saved = f" ({save_failed_batch(out, error.inputs | inputs)})"
    return NearfarError(f"at step {step}: {error}{saved}; {SHARDED_ADVICE if state.is_sharded else ADVICE}")


def _describe_out_of_memory(state: TrainState) -> NearfarError:
    size, config = state.sampler.size, state.config
    local = process_group.largest_part_size(size)
    passed = local if config.micro_batch is None else min(local, config.micro_batch)
    remedies = [f"micro_batch={max(1, passed // 4)}"] if passed > 1 else []
    remedies.append("a smaller batches.size")
    if state.embedder.backbone.has_image_input:
        remedies.append("a smaller images.crop")
    if state.embedder.backbone.has_text_input:
        remedies.append("a smaller model.max_tokens")
    return NearfarError(
        f"at step {state.step}: out of memory with batches of {size} samples, {passed} of them in the network at once: "
        f"start the run again with {', or '.join(remedies)}"
    )
