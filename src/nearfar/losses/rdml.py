"""RDML: a triplet or margin loss whose hinge is rescaled, so that a single outlier has a bounded cost."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.margin import boundary_hinges
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.geometry import cosine_matrix, negative_distance_matrix
from nearfar.ops.pairs import Pairs
from nearfar.ops.triplets import mean_over_triplets
from nearfar.validation import check_choice, check_not_negative


@register("rdml")
class RDMLLoss(PairLoss):
    """Robust metric learning by the rescaled hinge (Al-Obaidi et al., 2020), on unit vectors.

    The loss is a mean of rescaled hinges b (1 - e^{-eta z}) with b = 1/(1 - e^{-eta}). A rescaled hinge is at most b.
    As eta approaches 0, it approaches the hinge z itself. D is the Euclidean distance.

    - hinge="triplet": z = [margin + D_ap^2 - D_an^2]_+, and the mean is over all triplets (a, p, n) of an anchor, a
      positive and a negative.
    - hinge="margin": z = [D - beta + margin]_+ for positives and [beta + margin - D]_+ for negatives, and the mean is
      over all pairs. beta is not trained.

    Args:
        eta: The strength of the rescaling; 0 turns it off. The paper searches {0.5, 1, 2, 3, 4}; the default is our
            choice.
        margin: The margin of the hinge.
        hinge: "triplet" or "margin". The default is our choice: the BSPML paper (arXiv 2211.11751) compares with
            RDML, but does not state which hinge it uses.
        beta: The boundary of hinge "margin".

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> RDMLLoss(eta=0)(x, torch.tensor([0, 0, 1]))  # the plain triplet loss
    tensor(0.1000)
    """

    def __init__(self, *, eta: float = 1.0, margin: float = 0.2, hinge: str = "triplet", beta: float = 1.2) -> None:
        super().__init__()
        if not 0 <= eta < math.inf:
            raise ValueError(f"eta must be finite and at least 0, got {eta}")
        self.eta, self.margin, self.beta = eta, check_not_negative("margin", margin), beta
        self.hinge = check_choice("hinge", hinge, ("triplet", "margin"))

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return cosine_matrix(x, y) if self.hinge == "triplet" else negative_distance_matrix(x, y)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if self.hinge == "margin":
            return pairs.mean(rescale(boundary_hinges(-pairs.sim, pairs.same, self.beta, self.margin), self.eta))
        return mean_over_triplets(
            pairs.sim,
            pairs.same,
            pairs.diff,
            pairs.weights,
            pairs.ref_weights,
            self.margin,
            2.0,  # for unit vectors, D_ap^2 - D_an^2 = 2 (S_an - S_ap)
            "rescaled" if self.eta > 0 else "hinge",
            self.eta,
            False,
        )


def rescale(z: Tensor, eta: float) -> Tensor:
    """Compute b (1 - e^{-eta z}) with b = 1/(1 - e^{-eta}), or z if eta = 0."""
    return z if eta == 0 else torch.expm1(-eta * z) / math.expm1(-eta)
