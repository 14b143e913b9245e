"""The end of a run: choose the weights, test and save them, and write the results."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

import nearfar
from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.formatting import metric_title
from nearfar.metrics.detection import measure_detection
from nearfar.models import Embedder
from nearfar.runs import BEST, START
from nearfar.training.distributed import process_group
from nearfar.training.embedder_file import load_embedder
from nearfar.training.interpolation import choose_interpolation
from nearfar.training.monitor import Monitor

if TYPE_CHECKING:
    from nearfar.training.trainer import Trainer

CENTERED = 4096  # maximum number of training samples whose mean embedding is subtracted with `model.center`
REMEDY = (
    "train fewer epochs or blocks (model.train_from), lower optimizer.lr or optimizer.layer_decay, or set "
    "model.interpolate=[0.25,0.5,0.75] with data.validation=0.2"
)


def finish_run(trainer: Trainer, monitor: Monitor) -> None:
    """Test the selected weights of a trainer, save them, and write the results."""
    config, state, splits, out = trainer.config, trainer.state, trainer.splits, trainer.out
    process_group.barrier()  # the main process may still be writing the best weights
    use_last = state.selection.by == "last"
    selected = state.evaluated_embedder if use_last else load_embedder(out / BEST, trainer.network).to(state.device)
    result: dict[str, Any] = {
        **state.selection.result(state.epoch),
        "steps": state.step,
        "batch": state.sampler.size,
        "seconds": round(monitor.seconds, 1),
        "nearfar": nearfar.__version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    about = {"classes": len(splits.train.classes), "recipe": config.recipe}
    model = out / "model.safetensors"
    state.save_weights(selected, model, about)  # save before scoring, so that an error in scoring does not lose them
    if config.model.interpolate and not state.selection.kept_start:
        process_group.barrier()
        start, end = (load_embedder(path, trainer.network).to(state.device) for path in (out / START, model))
        selected, result["interpolation"] = choose_interpolation(trainer, start, end)
        state.save_weights(selected, model, about)
    if selected.center is not None:
        center_embeddings(trainer, selected)
        state.save_weights(selected, model, about)
    if config.test and "test" in trainer.evaluated:
        manifest, loader = trainer.evaluated["test"]
        try:
            embeddings = trainer.evaluator.embed(selected, loader, "test")
            result["test"] = trainer.evaluator.score(embeddings, manifest)
        except (ValueError, NearfarError) as error:
            raise NearfarError(f"the test samples cannot be scored: {error}; the model is in {model}") from error
        trainer.test_embeddings = manifest, embeddings
        if not use_last:
            result["test_last"] = trainer.score("test")
    if splits.train.notes:
        result["notes"] = list(splits.train.notes)
    if state.untrained is not None:
        result["untrained"] = state.untrained
    if state.raw is not None:
        result["raw"] = state.raw
    if state.pacer is not None and splits.wrong is not None and splits.wrong.any():
        result["detection"] = measure_detection(1 - state.pacer.weights.numpy(), splits.wrong)
    if state.selection.kept_start:
        result["no_gain"] = f"on the {state.selection.by} classes, no epoch is better than the network before training"
    elif (better := _find_better_start(result, config.select.metric)) is not None:
        result["no_gain"] = better
    monitor.write("end", result)
    if process_group.is_main_process():
        with atomic(out / "scores.json") as draft:
            draft.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def center_embeddings(trainer: Trainer, network: Embedder) -> None:
    """Set the mean that the network subtracts from embeddings to that of training samples.

    The samples are spread evenly over the training set.
    """
    assert network.center is not None
    network.center.mean.zero_()
    count = len(trainer.splits.train)
    rows = torch.linspace(0, count - 1, min(count, CENTERED)).round().long().tolist()
    embeddings = trainer.evaluator.embed(network, trainer.train_loader, "center", rows)
    network.center.fit(embeddings.to(network.center.mean.device))
    process_group.broadcast_from_main([network.center.mean])


def _find_better_start(result: Mapping[str, Any], metric: str) -> str | None:
    """Return a message if the untrained network or the raw features have a better test score, and None otherwise."""
    after = result.get("test", {}).get(metric)
    for kind, name in (("untrained", "the network before training"), ("raw", "the raw features")):
        before = result.get(kind, {}).get(metric)
        if before is not None and after is not None and after < before:
            return f"{metric_title(metric)} on the test classes is below that of {name}"
    return None
