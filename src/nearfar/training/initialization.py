"""Initialize the head and the proxies from the training data, and share the result between runs in one process.

A suite compares several methods, which all start from the same network on the same data. The PCA of the head needs a
pass over the training samples, and the scores before training need a pass over the test samples. Both are computed once
and reused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from nearfar.config.schema import Config
from nearfar.data import BatchLoader
from nearfar.data.activations import ActivationDataset
from nearfar.errors import NearfarError
from nearfar.files import expand_user
from nearfar.losses import ProxyLoss
from nearfar.losses.combined import losses_of
from nearfar.models import Embedder, init_head_from_pca, init_proxies_from_class_means
from nearfar.training.evaluate import default_batch_size, dtype_of, embedding_function, to_device

CACHE_SIZE = 8


@dataclass
class InitialState:
    """Results that a run computes before its first step. Each is None until it is computed.

    Attributes:
        head: State of the head before training.
        embeddings: Embeddings of the training samples with that head.
        scores: Test scores before training.
        raw_scores: Test scores of the features that the head takes as input.
    """

    head: dict[str, Tensor] | None = None
    embeddings: Tensor | None = None
    scores: dict[str, float] | None = None
    raw_scores: dict[str, float] | None = None


class InitialStateCache:
    """The initial states of the most recent runs of this process."""

    def __init__(self) -> None:
        self._states: dict[str, InitialState] = {}

    def get(self, config: Config) -> InitialState:
        """Return the initial state for a configuration.

        Runs that agree in all settings that affect this state share one object. The first of these runs fills it.
        """
        sections = [asdict(section) for section in (config.model, config.data, config.images, config.cache)]
        del sections[0]["proxies"]  # runs that differ only in this setting share one state
        weights = config.model.pretrained
        file = expand_user(weights) if isinstance(weights, str) else None
        # The key contains the size and modification time of the weight file, because overwriting the file changes the
        # initial state.
        version = (file.stat().st_size, file.stat().st_mtime_ns) if file is not None and file.is_file() else None
        key = json.dumps([*sections, version, config.seed, config.autocast, config.device, sorted(config.metrics)])
        state = self._states.pop(key, InitialState())
        self._states[key] = state  # dicts keep insertion order, so the least recently used state is first
        while len(self._states) > CACHE_SIZE:
            del self._states[next(iter(self._states))]
        return state


@torch.no_grad()
def initialize_from_data(
    config: Config, embedder: Embedder, loss: nn.Module, train: BatchLoader, initial: InitialState
) -> None:
    """Initialize the head by PCA of its inputs and the proxies by class means, in place, depending on the settings.

    `model.init` applies to the head; PCA is the default for feature vectors. `model.proxies` applies to the proxies;
    class means are the default if the head starts from PCA.

    Args:
        config: The configuration of the run.
        embedder: The embedder, whose head is initialized.
        loss: The loss, whose proxies are initialized if it has any.
        train: BatchLoader of the training samples.
        initial: Results that earlier runs may have computed. Missing results are computed and stored in it.
    """
    init = config.model.init or ("pca" if config.model.backbone == "features" else None)
    use_pca = init == "pca" and config.model.head != "identity"
    proxies = config.model.proxies or ("class-means" if use_pca else "random")
    proxy_losses = [part for part in losses_of(loss) if isinstance(part, ProxyLoss) and proxies == "class-means"]
    if not use_pca and not proxy_losses:
        return
    if initial.head is None or initial.embeddings is None:
        device, dtype = next(embedder.parameters()).device, dtype_of(embedder)
        batches = train.load_all(batch_size=default_batch_size(embedder))
        inputs = (to_device(batch.x, device, dtype, channels_last=embedder.channels_last) for batch in batches)
        initial.embeddings = (_pca_embeddings if use_pca else _embeddings)(embedder, train, inputs)
        initial.head = {name: value.clone() for name, value in embedder.head.state_dict().items()}
    if use_pca:
        embedder.head.load_state_dict(initial.head)
    for proxy_loss in proxy_losses:
        # the losses inside a Matryoshka loss use only the leading dimensions
        embeddings = initial.embeddings[:, : proxy_loss.dim]
        try:
            init_proxies_from_class_means(proxy_loss, embeddings, train.dataset.labels, seed=config.seed)
        except ValueError as error:
            raise NearfarError(f"model: {error}; set model.proxies=random to start from random proxies") from None


def _pca_embeddings(embedder: Embedder, train: BatchLoader, inputs: Iterable[Tensor]) -> Tensor:
    try:
        return init_head_from_pca(embedder, inputs, are_activations=isinstance(train.dataset, ActivationDataset))
    except ValueError as error:
        raise NearfarError(f"model: {error}; set model.init=random to initialize without PCA") from None


def _embeddings(embedder: Embedder, train: BatchLoader, inputs: Iterable[Tensor]) -> Tensor:
    is_training = embedder.training
    compute = embedding_function(embedder, train)
    embedder.eval()
    embeddings = torch.cat([compute(x).float() for x in inputs])
    embedder.train(is_training)
    return embeddings
