"""Initialize the head and the proxies from the training data, and share the result between runs of one process.

All methods of a suite start from the same network on the same data. The PCA of the head needs a pass over the
training samples, and the scores before training need one over the test samples, so both are computed once.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nearfar.config.schema import Config
from nearfar.data import BatchLoader
from nearfar.errors import NearfarError
from nearfar.losses import ProxyLoss
from nearfar.models import Embedder, init_head_from_pca, init_proxies_from_class_means
from nearfar.training.evaluate import dtype_of, to_device

CACHE_SIZE = 8


@dataclass
class InitialState:
    """What a run computes before its first step; None where it is not computed yet.

    Attributes:
        head: State of the head that PCA initialized.
        embeddings: Embeddings of the training samples under that head.
        scores: Test scores before training.
    """

    head: dict[str, Tensor] | None = None
    embeddings: Tensor | None = None
    scores: dict[str, float] | None = None


class InitialStateCache:
    """The initial states of the most recent runs of this process."""

    def __init__(self) -> None:
        self._states: dict[str, InitialState] = {}

    def get(self, config: Config) -> InitialState:
        """Return the state that runs with the same network, data, images and seed share, or an empty one."""
        sections = [asdict(section) for section in (config.model, config.data, config.images)]
        weights = config.model.pretrained
        file = Path(weights).expanduser() if isinstance(weights, str) else None
        # a weight file that is overwritten gives another initial state
        version = (file.stat().st_size, file.stat().st_mtime_ns) if file is not None and file.is_file() else None
        key = json.dumps([*sections, version, config.seed, config.autocast, config.device, sorted(config.metrics)])
        state = self._states.pop(key, InitialState())
        self._states[key] = state  # dicts keep insertion order: the most recent is last
        while len(self._states) > CACHE_SIZE:
            del self._states[next(iter(self._states))]
        return state


@torch.no_grad()
def initialize_from_data(
    config: Config, embedder: Embedder, loss: nn.Module, train: BatchLoader, initial: InitialState
) -> None:
    """Initialize the head by PCA of its inputs and the proxies by class means, in place, if `model.init` is pca.

    PCA is the default for feature vectors.

    Args:
        config: The configuration of the run.
        embedder: The embedder, whose head is initialized.
        loss: The loss, whose proxies are initialized if it has any.
        train: BatchLoader of the training samples.
        initial: Results of an earlier run. Missing ones are computed and stored there.
    """
    init = config.model.init or ("pca" if config.model.backbone == "features" else None)
    if init != "pca" or config.model.head == "identity":
        return
    device = next(embedder.parameters()).device
    if initial.head is None or initial.embeddings is None:
        try:
            initial.embeddings = init_head_from_pca(
                embedder, (to_device(batch.x, device, dtype_of(embedder)) for batch in train.load_all())
            )
        except ValueError as error:
            raise NearfarError(f"model: {error} (model.init=random does not use PCA)") from None
        initial.head = {name: value.clone() for name, value in embedder.head.state_dict().items()}
    embedder.head.load_state_dict(initial.head)
    if isinstance(loss, ProxyLoss):
        init_proxies_from_class_means(loss, initial.embeddings, train.dataset.labels, seed=config.seed)
