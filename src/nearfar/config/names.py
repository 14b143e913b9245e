"""Suggest the setting that a user most likely meant by an unknown key."""

from __future__ import annotations

from collections.abc import Sequence

from nearfar.spelling import closest

# Names that other libraries use, and the corresponding settings of nearfar.
ALIASES: dict[str, str] = {
    "amp": "autocast",
    "arch": "model.backbone",
    "batch_size": "batches.size",
    "bs": "batches.size",
    "classes_per_batch": "batches.classes",
    "crop_size": "images.crop",
    "criterion": "loss.name",
    "data_dir": "data.source",
    "dataset": "data.source",
    "early_stopping_patience": "select.patience",
    "embed_dim": "model.dim",
    "embedding_dim": "model.dim",
    "embedding_size": "model.dim",
    "freeze": "model.freeze_backbone",
    "gpu": "device",
    "grad_clip": "optimizer.clip_norm",
    "gradient_clip_val": "optimizer.clip_norm",
    "image_size": "images.crop",
    "img_size": "images.crop",
    "input_size": "images.crop",
    "iterations": "steps",
    "learning_rate": "optimizer.lr",
    "loss_fn": "loss.name",
    "lr_scheduler": "schedule.name",
    "m": "batches.per_class",
    "m_per_class": "batches.per_class",
    "max_epochs": "epochs",
    "max_steps": "steps",
    "miner": "loss.mine",
    "mixed_precision": "autocast",
    "n_epochs": "epochs",
    "num_epochs": "epochs",
    "num_steps": "steps",
    "num_workers": "data.workers",
    "optim": "optimizer.name",
    "precision": "autocast",
    "random_seed": "seed",
    "sampler": "batches.name",
    "samples_per_class": "batches.per_class",
    "scheduler": "schedule.name",
    "train_epochs": "epochs",
    "warmup": "schedule.warm_up",
    "warmup_epochs": "schedule.warm_up_epochs",
    "wd": "optimizer.weight_decay",
}
MOST_SUGGESTED = 2


def suggest_setting(key: str, siblings: Sequence[str], where: str, every: Sequence[str]) -> str:
    """Return "; did you mean ...?" for an unknown key, or "." if no setting or more than two settings match.

    Args:
        key: The last part of the unknown key.
        siblings: The valid keys of the section that has the unknown key.
        where: The dotted name of that section, or "" at the top level.
        every: All dotted keys of the configuration. If empty, only the siblings are searched.

    >>> top = ["optimizer", "batches", "epochs"]
    >>> every = [*top, "optimizer.lr", "batches.size", "select.patience", "batches.patience"]
    >>> for key in ("lr", "batch_size", "epoch", "patience", "optimiser", "temperature"):
    ...     print(key + suggest_setting(key, top, "", every))
    lr; did you mean 'optimizer.lr'?
    batch_size; did you mean 'batches.size'?
    epoch; did you mean 'epochs'?
    patience; did you mean 'select.patience' or 'batches.patience'?
    optimiser; did you mean 'optimizer'?
    temperature.
    """
    word = key.lower().replace("-", "_")
    leaves = [name for name in every if name.rpartition(".")[2] == word]
    if every and word in ALIASES:
        found = [ALIASES[word]]
    elif match := closest(word, siblings, cutoff=0.85):
        found = [match]
    elif leaves:
        found = leaves
    elif match := closest(word, siblings):
        found = [match]
    else:
        leaf = closest(word, [name.rpartition(".")[2] for name in every], cutoff=0.8)
        found = [name for name in every if name.rpartition(".")[2] == leaf]
    if not found or len(found) > MOST_SUGGESTED:
        return "."
    inside = f"{where}."
    return f"; did you mean {' or '.join(repr(name.removeprefix(inside)) for name in found)}?"
