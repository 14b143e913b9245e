"""Classic self-paced weights: 1 for samples with a small loss, 0 for the others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfar.pacing.pacer import Pacer, register
from nearfar.pacing.schedule import make_schedule, share_count

CHUNK = 1024


@register("point-wise")
class PointWise(Pacer):
    """Weights w_i = 1 if the loss of sample i is at most the age, else 0 (Kumar et al., NIPS 2010; Eq. 2 of BSPML).

    The loss must have the method `per_sample`: the softmax family, SoftTriple, Proxy-NCA, MPA-DW, MPA-AP.

    Args:
        samples: Number of training samples.
        classes: Number of training classes.
        share: Fraction of the samples to keep in the first round. The age is this quantile of the losses.
        age: The age of the first round, instead of `share`.
        growth: Factor by which the share or age is multiplied after each round.
        most: Upper limit of the share (default 0.95) or age. The defaults of share, growth and most are ours.
        warm_up: See `Pacer`.
        every: See `Pacer`.
    """

    def __init__(
        self,
        *,
        samples: int,
        classes: int,
        share: float = 0.7,
        age: float | None = None,
        growth: float = 1.05,
        most: float | None = None,
        warm_up: int = 1,
        every: int = 1,
    ) -> None:
        super().__init__(samples=samples, classes=classes, warm_up=warm_up, every=every)
        self.by_age = age is not None
        self.schedule = make_schedule(share=share, age=age, growth=growth, most=most)

    @torch.no_grad()
    def update(self, embeddings: Tensor, labels: Tensor, *, loss: nn.Module | None = None) -> dict[str, float]:
        """Compute the weights from the loss of every sample. Also log lambda (the age) and the objective of Eq. 1."""
        self.check_samples(embeddings, labels)
        per_sample = getattr(loss, "per_sample", None)
        if per_sample is None:
            raise ValueError(
                f"the pacer 'point-wise' needs a loss with per_sample values, got {type(loss).__name__}: use a "
                "proxy loss (mpa-ap, soft-triple, arcface, ...) or the pacer 'self-paced'"
            )
        values = torch.cat(
            [
                per_sample(embeddings[i : i + CHUNK], labels[i : i + CHUNK]).double().cpu()
                for i in range(0, len(embeddings), CHUNK)
            ]
        )
        goal = self.schedule.at(self.rounds)
        age = goal if self.by_age else float(values.kthvalue(share_count(goal, len(values))).values)
        self.weights = (values <= age).float()
        self.rounds += 1
        objective = float(((values - age) * self.weights.double()).sum())
        return self.summary(labels) | {"lambda": age, "objective": objective}
