"""Classic self-paced weights: samples whose loss is small count, the others do not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfar.pacing.pacer import Pacer, register
from nearfar.pacing.schedule import schedule, share_count

CHUNK = 1024


@register("point-wise")
class PointWise(Pacer):
    """w_i = 1 where the loss of sample i is at most the age, else 0 (Kumar et al., NIPS 2010; BSPML's Eq. 2).

    For losses with `per_sample` values: the softmax family, SoftTriple, Proxy-NCA, MPA-DW, MPA-AP. The age is the loss
    below which `share` of the samples lie (0.7, times `growth` 1.05 each round, at most `most` 0.95: ours), ties
    included; or the number `age`, times growth.
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
        self.schedule = schedule(share=share, age=age, growth=growth, most=most)

    @torch.no_grad()
    def update(self, embeddings: Tensor, labels: Tensor, *, loss: nn.Module | None = None) -> dict[str, float]:
        """Weights from the loss of every sample; logs also lambda (the age) and the objective of Eq. 1."""
        self.check_rows(embeddings, labels)
        per_sample = getattr(loss, "per_sample", None)
        if per_sample is None:
            raise ValueError(
                f"loss must have per_sample values for the pacer 'point-wise', got {type(loss).__name__}: take a loss "
                "over samples and proxies (mpa-ap, soft-triple, arcface, ...) or the pacer 'self-paced'"
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
