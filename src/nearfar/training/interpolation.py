"""Average the weights before and after training (WiSE-FT: Wortsman et al., CVPR 2022, arXiv 2109.01903, Eq. 1).

    weights(share) = (1 - share) * start + share * end

Here start and end are the weights before and after training. Fine-tuned weights fit the training classes better, and
the weights before training often transfer better to other data. An average of both can be better than either on new
classes. The paper averages all weights, including those of the head. Averaging is therefore most useful with
`model.init=pca`, because the head then already works before training.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from nearfar.config.schema import Config
from nearfar.errors import NearfarError
from nearfar.models import Embedder

if TYPE_CHECKING:
    from nearfar.training.trainer import Trainer


@torch.no_grad()
def interpolate(start: Embedder, end: Embedder, share: float) -> Embedder:
    """Return an embedder with the weights (1 - share) * start + share * end.

    Floating-point buffers, such as the statistics of batch norms, are averaged as well. Other buffers are copied from
    `end`.

    >>> from nearfar.models import create_embedder
    >>> start, end = (create_embedder("features", channels=4, dim=2, init="random") for _ in range(2))
    >>> middle = interpolate(start, end, 0.5).head.linear.weight
    >>> torch.allclose(middle, (start.head.linear.weight + end.head.linear.weight) / 2)
    True
    """
    result = copy.deepcopy(end)
    before = start.state_dict()
    for name, value in result.state_dict().items():
        if value.is_floating_point():
            value.lerp_(before[name].to(value), 1 - share)
    return result


def check_interpolation(config: Config, *, has_validation: bool) -> None:
    """Raise an error if `model.interpolate` has several values and there are no validation classes to choose one."""
    shares = config.model.interpolate
    if len(shares) > 1 and not has_validation:
        raise NearfarError(
            f"model.interpolate={list(shares)} needs validation classes to choose a value: set data.validation=0.2, or "
            "give a single value"
        )


def choose_interpolation(trainer: Trainer, start: Embedder, end: Embedder) -> tuple[Embedder, float]:
    """Return the interpolated network with the best validation score, and its share.

    The candidates are the shares in `model.interpolate`, and share 1, which is the trained network. If there are no
    validation classes, `model.interpolate` has only one share, and this share is used.
    """
    config = trainer.config
    shares = config.model.interpolate
    if "validation" not in trainer.evaluated:
        return interpolate(start, end, shares[0]), shares[0]
    best, best_share, best_score = end, 1.0, trainer.score("validation", end)[config.select.metric]
    for share in shares:
        network = interpolate(start, end, share)
        score = trainer.score("validation", network)[config.select.metric]
        if score > best_score:
            best, best_share, best_score = network, share, score
    return best, best_share
