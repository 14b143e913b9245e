"""The scores to beat: those of the network before training, and those of its features without the head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfar.config.schema import Config
from nearfar.data import BatchLoader, Manifest
from nearfar.models import Embedder
from nearfar.training.evaluate import Evaluator
from nearfar.training.initialization import InitialState
from nearfar.training.state import TrainState

RAW_TITLE = "raw features"


class FeaturesAndEmbeddings(nn.Module):
    """Compute the pooled features and the embeddings of a network in one pass, as [B, features + dim]."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder, self.input_size = embedder, embedder.input_size

    def forward(self, x: Tensor) -> Tensor:
        return self._with_embeddings(self.embedder.pool(x))

    def upper(self, activations: Tensor) -> Tensor:
        """Compute the same output from the activations of the frozen part of the network."""
        return self._with_embeddings(self.embedder.pool_activations(activations))

    def _with_embeddings(self, features: Tensor) -> Tensor:
        return torch.cat([features, self.embedder.embed_features(features)], dim=1)


def score_start(
    state: TrainState, evaluator: Evaluator, manifest: Manifest, loader: BatchLoader, initial: InitialState
) -> None:
    """Score the network before training and, if `has_useful_features` is true, its features without the head.

    The scores are stored in `state.untrained` and `state.raw`. The features of a sharded network are never scored.

    Args:
        state: The state of training.
        evaluator: Computes embeddings and scores.
        manifest: The test samples.
        loader: BatchLoader of the test samples.
        initial: Results that earlier runs may have computed. Missing results are computed and stored in it.
    """
    embedder = state.evaluated_embedder
    if initial.scores is None and has_useful_features(state.config) and not state.is_sharded:
        both = evaluator.embed(FeaturesAndEmbeddings(embedder), loader, "test")
        initial.raw_scores = evaluator.score(both[:, : -embedder.dim].contiguous(), manifest)
        initial.scores = evaluator.score(both[:, -embedder.dim :].contiguous(), manifest)
    if initial.scores is None:
        initial.scores = evaluator.score(evaluator.embed(embedder, loader, "test"), manifest)
    state.untrained, state.raw = initial.scores, initial.raw_scores


def has_useful_features(config: Config) -> bool:
    """Return whether to score the input of the head, which is useful for feature vectors and pretrained networks."""
    if config.model.head == "identity" and not config.model.layer_norm:
        return False  # the input of the head equals the embeddings, which are scored anyway
    return config.model.backbone == "features" or bool(config.model.pretrained)


def start_title(config: Config) -> str:
    """Return the title of the scores before training, which says how the head was initialized."""
    model = config.model
    if model.head == "identity":
        return "before training"
    init = model.init or ("pca" if model.backbone == "features" else "kaiming")
    return f"before training ({'PCA' if init == 'pca' else 'random'} head)"
