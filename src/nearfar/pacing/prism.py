"""PRISM: samples that look unlike the remembered mean of their class do not count in this batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses.proxies.class_memory import ClassMemory
from nearfar.losses.proxies.proxy_loss import check_class_ids
from nearfar.ops.geometry import unit
from nearfar.pacing.pacer import Pacer, register
from nearfar.validation import check_choice, check_count


@register("prism")
class PRISM(Pacer):
    """Noise-resistant selection by ranking (Liu et al., CVPR 2021, arXiv 2103.16047).

    P_clean(i) = e^{v_y . x_i} / sum_c e^{v_c . x_i}, x_i the unit embedding of sample i of label y, v_c the mean of the
    remembered unit rows of class c. Samples above a threshold count 1, the others 0, and only the former enter the
    memory, a ring of the last `size` rows (8192, the released code's).

    threshold="smooth" (sTRM): the mean over the last `window` batches of the `noise_rate` quantile of P_clean.
    threshold="batch" (TRM): the quantile of this batch alone, so the share `noise_rate` always leaves.

    As in the released code a class without remembered rows has v_c = 0 in the sum, and its samples count; a batch of
    which nobody would count falls back on "batch". noise_rate=0.5 and window=30 are those of its only released
    configuration (Cars-98N). Unlike there, a batch too small to lose one sample (noise_rate B < 1) keeps all instead of
    failing, and v_c is always that of the rows in memory. The first `warm_up` batches (0) are remembered whole.
    `weights` are the last decision on every sample.
    """

    def __init__(
        self,
        *,
        samples: int,
        classes: int,
        noise_rate: float = 0.5,
        threshold: str = "smooth",
        window: int = 30,
        size: int = 8192,
        warm_up: int = 0,
    ) -> None:
        super().__init__(samples=samples, classes=classes)
        if warm_up < 0:
            raise ValueError(f"warm_up must be a number of batches, at least 0, got {warm_up}")
        self.warm_up = warm_up
        if not 0 <= noise_rate < 1:
            raise ValueError(f"noise_rate must be at least 0 and below 1, got {noise_rate}")
        self.noise_rate, self.window, self.size = noise_rate, check_count("window", window), check_count("size", size)
        self.threshold = check_choice("threshold", threshold, ("smooth", "batch"))
        self.memory: ClassMemory | None = None
        self.recent: list[float] = []

    def batch_weights(self, embeddings: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Decide on the batch [B], then remember those that count."""
        check_class_ids(labels, self.classes)
        rows = unit(embeddings.detach().float())
        memory = self._memory(rows)
        if self.rounds < self.warm_up:
            keep = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        else:
            keep = self.keep(clean_probability(rows, labels, memory))
        self.rounds += 1
        memory.add(rows, labels, keep)
        self.weights[indices.to(self.weights.device)] = keep.to(self.weights)
        return keep.to(embeddings.dtype)

    def keep(self, clean: Tensor) -> Tensor:
        """Which samples of a batch count [B]; moves the window on."""
        out = int(self.noise_rate * len(clean))
        if out == 0:
            return torch.ones_like(clean, dtype=torch.bool)
        lowest = clean.argsort(stable=True)[:out]
        quantile = float(clean[lowest[-1]])
        by_rank = torch.ones_like(clean, dtype=torch.bool)
        by_rank[lowest] = False
        if self.threshold == "batch":
            return by_rank
        if quantile < 1:  # 1 is only a class that memory does not know
            self.recent = [*self.recent, quantile][-self.window :]
        if not self.recent:
            return by_rank
        keep = clean > sum(self.recent) / len(self.recent)
        if bool(keep.any()):
            return keep
        self.recent = self.recent[-1:]
        return by_rank

    def should_update(self, epoch: int) -> bool:
        """Never: PRISM decides batch by batch."""
        return False

    def update(self, embeddings: Tensor, labels: Tensor, *, loss: nn.Module | None = None) -> dict[str, float]:
        """Changes nothing; the summary of the last decisions."""
        self.check_rows(embeddings, labels)
        return self.summary(labels)

    def _memory(self, rows: Tensor) -> ClassMemory:
        if self.memory is None:
            self.memory = ClassMemory(classes=self.classes, dim=rows.shape[1], size=self.size).to(rows.device)
        return self.memory

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict() | {"recent": list(self.recent)}
        if self.memory is not None:
            state |= {f"memory.{key}": value.clone() for key, value in self.memory.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.recent = [float(value) for value in state["recent"]]
        remembered = {key.removeprefix("memory."): value for key, value in state.items() if key.startswith("memory.")}
        if remembered:
            if len(remembered["rows"]) != self.size:
                raise ValueError(f"state has a memory of {len(remembered['rows'])} rows, this pacer of {self.size}")
            self._memory(remembered["rows"]).load_state_dict(remembered)


@torch.no_grad()
def clean_probability(rows: Tensor, labels: Tensor, memory: ClassMemory) -> Tensor:
    """P_clean of unit rows [B], in float64; 1 where memory has no rows of the class.

    >>> memory = ClassMemory(classes=2, dim=2, size=4)
    >>> memory.add(torch.eye(2), torch.tensor([0, 1]), torch.tensor([True, True]))
    >>> clean_probability(torch.eye(2), torch.tensor([0, 0]), memory)
    tensor([0.7311, 0.2689], dtype=torch.float64)
    """
    means = memory.sums * memory.unit / memory.counts.clamp_min(1)[:, None]
    clean = (rows.double() @ means.T).softmax(1).gather(1, labels[:, None])[:, 0]
    return torch.where(memory.counts[labels] > 0, clean, 1.0)
