"""Classic self-paced learning: weight 1 for samples with a small loss, weight 0 for the others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfar.pacing.pacer import Pacer, register
from nearfar.pacing.schedule import make_schedule, share_count

CHUNK = 1024


@register("point-wise")
class PointWise(Pacer):
    """Give weight 1 to samples with a loss up to the age, 0 to others (Kumar et al., NIPS 2010).

    The age is a threshold that grows during training, so that harder samples are added over time. This is Eq. 2 of the
    paper on BSPML (balanced self-paced metric learning, arXiv 2211.11751).

    The training loss must have the method `per_sample`. The losses that have it are `normalized-softmax`, `cosface`,
    `arcface`, `subcenter-arcface`, `sphereface`, `large-margin-softmax`, `p2sgrad`, `soft-triple`, `proxy-nca`,
    `mpa-dw` and `mpa-ap`.

    Args:
        samples: Number of training samples.
        classes: Number of training classes.
        share: Fraction of the samples to keep in the first round. A round is one update of the weights. In each round,
            the age is the quantile of the losses that keeps the current share.
        age: The age in the first round. If it is given, `share` is ignored.
        growth: Factor by which the share or age is multiplied after each round.
        most: Upper limit of the share or the age. By default, the limit of the share is 0.95, or `share` if that is
            larger, and the age has no limit. The defaults of `share`, `growth` and `most` are our choice.
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
        """Compute the weights from the loss of every sample.

        The returned numbers include "lambda" (the age) and the objective (Eq. 1 of the BSPML paper).
        """
        self.check_samples(embeddings, labels)
        per_sample = getattr(loss, "per_sample", None)
        if per_sample is None:
            raise ValueError(
                f"the pacer 'point-wise' needs a loss with the method per_sample, got {type(loss).__name__}: use "
                "a proxy loss such as mpa-ap, soft-triple or arcface, or the pacer 'self-paced'"
            )
        # The embeddings may be on a different device than the loss.
        parameter = next(loss.parameters(), None) if loss is not None else None
        device = embeddings.device if parameter is None else parameter.device
        values = torch.cat(
            [
                per_sample(embeddings[i : i + CHUNK].to(device), labels[i : i + CHUNK]).double().cpu()
                for i in range(0, len(embeddings), CHUNK)
            ]
        )
        goal = self.schedule.at(self.rounds)
        age = goal if self.by_age else float(values.kthvalue(share_count(goal, len(values))).values)
        self.weights = (values <= age).float()
        self.rounds += 1
        objective = float(((values - age) * self.weights.double()).sum())
        return self.summary(labels) | {"lambda": age, "objective": objective}
