"""Our defaults for each kind of data, and the defaults of papers. No default was chosen by scores on test classes.

docs/training.md has the measurements, and docs/results/text.md those on texts. To change a default, change it here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from nearfar.config.tree import merge_trees

Tree = dict[str, Any]

OURS: dict[str, Tree] = {
    "pixels": {
        "model": {"backbone": "small", "dim": 512},
        "optimizer": {"name": "adamw", "lr": 2e-3, "weight_decay": 1e-2, "proxy_lr_multiplier": 10.0},
        "steps": 2000,
    },
    "features": {
        "model": {"backbone": "features", "dim": 512},
        "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 1e-2, "proxy_lr_multiplier": 10.0},
        "select": {"untrained": True},
        "steps": 300,
    },
    "text": {
        # These values were found with Proxy-Anchor on validation classes of CLINC150 (docs/results/text.md).
        # train_from=0.3 trains the upper two of the six layers of MiniLM.
        "model": {
            "backbone": "all-minilm-l6-v2",
            "pretrained": True,
            "dim": None,
            "head": "identity",
            "init": "pca",  # has no effect on the identity head; setting `dim` selects a linear head
            "center": True,  # MAP@R is 0.8 and 1.4 points higher on two sets of validation classes
            "proxies": "random",
            "train_from": 0.3,
        },
        "optimizer": {"name": "adamw", "lr": 2e-4, "weight_decay": 1e-4, "proxy_lr_multiplier": 100.0},
        "epochs": 1,
    },
    # Fine-tuning of a pretrained network at its own input size.
    "files": {
        "model": {
            "backbone": "efficientnet-lite0",
            "pretrained": True,
            "pooling": "average+max",
            "dim": 512,
            "init": "pca",
            "freeze_bn": True,
        },
        "optimizer": {"name": "adamw", "lr": 1e-4, "weight_decay": 1e-4, "proxy_lr_multiplier": 100.0},
        "data": {"workers": 2},
        "select": {"untrained": True},
        "epochs": 4,
    },
}

# Defaults for image files in four cases: in suites (benchmark sweeps), with setting=paper, for networks with random
# weights, and for your own network. Our suite results in docs/results were made with these values.
PLAIN_FILES: Tree = {
    "model": {"backbone": "efficientnet-lite0", "pretrained": True, "dim": 512, "freeze_bn": True},
    "optimizer": {"name": "adamw", "lr": 3e-4, "weight_decay": 1e-4, "proxy_lr_multiplier": 100.0},
    "data": {"workers": 2},
    "epochs": 5,
}

# Changes to the fine-tuning defaults if there is no GPU. If all blocks are trained, training images are smaller than
# test images. If the lower blocks are frozen, their output is cached.
WITHOUT_GPU: Tree = {"images": {"train_crop": 0.7}}
CACHED: Tree = {"cache": {"views": 4}}

# A small dataset has few steps per epoch. Fine-tuning therefore has at least as many epochs as are needed to draw this
# many images or texts in total, but at most MOST_EPOCHS.
LEAST_SAMPLES, LEAST_TEXTS, MOST_EPOCHS = 20_000, 10_000, 20

# Defaults with setting=paper for settings that the recipes do not state. They follow the released code of most papers:
# weight decay applies to all parameters, the learning rate has no warm-up, and the backbone starts from public weights.
PAPER: Tree = {
    "model": {"pretrained": True, "center": False},
    "optimizer": {"decay_vectors": True, "proxy_weight_decay": None},
    "schedule": {"warm_up": 0.0},
    "steps": None,
}


def fine_tuning_defaults(model: Mapping[str, Any], *, samples: int | None, cache: str | None) -> Tree:
    """Return the defaults for image files.

    Args:
        model: The settings of `model` that the user gave, as a dict. Some defaults depend on them.
        samples: Number of training images if it is known. It determines the number of epochs.
        cache: Folder for the activations of frozen blocks, if there is no GPU.
    """
    if not model.get("pretrained", True):
        return PLAIN_FILES
    tree = copy.deepcopy(OURS["files"])
    if samples is not None:
        tree["epochs"] = max(tree["epochs"], _count_epochs(LEAST_SAMPLES, samples))
    if ":" in str(model.get("backbone", "")):
        del tree["model"]["pooling"]  # networks from other libraries output vectors and may not have blocks
        return tree
    if cache is None or model.get("freeze_backbone"):
        return tree
    if model.get("train_from") is None:
        return merge_trees(tree, WITHOUT_GPU)
    return merge_trees(tree, merge_trees(CACHED, {"cache": {"activations": cache}}))


def text_defaults(*, samples: int | None) -> Tree:
    """Return the defaults for texts. The number of training texts, if it is known, determines the number of epochs."""
    tree = copy.deepcopy(OURS["text"])
    if samples is not None:
        tree["epochs"] = max(tree["epochs"], _count_epochs(LEAST_TEXTS, samples))
    return tree


def _count_epochs(least: int, samples: int) -> int:
    """Return the number of epochs in which `least` samples are drawn, but at most MOST_EPOCHS."""
    return min(MOST_EPOCHS, math.ceil(least / max(1, samples)))
