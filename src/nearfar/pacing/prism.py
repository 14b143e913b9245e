"""PRISM: drop the samples of a batch whose label is probably wrong, judged by the mean embeddings of the classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses.proxies.class_memory import ClassMemory
from nearfar.losses.proxies.proxy_loss import check_class_ids
from nearfar.ops.geometry import unit
from nearfar.pacing.pacer import Pacer, register
from nearfar.validation import check_choice, check_count

MAX_PENDING = 1000  # maximum number of batches whose weights wait to be copied to the CPU


@register("prism")
class PRISM(Pacer):
    """Probabilistic ranking-based instance selection with memory (Liu et al., CVPR 2021, arXiv 2103.16047).

    PRISM keeps the samples of a batch that are probably labeled correctly:

    P_clean(i) = e^{v_y . x_i} / sum_c e^{v_c . x_i}

    x_i is the unit embedding of sample i, y is its label, and v_c is the mean of the unit embeddings of class c in a
    memory of past samples. In every batch, samples with P_clean above a threshold get weight 1 and are added to the
    memory. The others get weight 0. `weights` has the most recent weight of every sample.

    Two rules follow the released code. If a class has no embeddings in the memory, its v_c is 0 and P_clean of
    its samples is 1. If no sample of a batch is above the threshold, the threshold "batch" is used for this batch.

    Two rules differ from the released code. If a batch is too small to drop a single sample (`noise_rate` times the
    batch size is below 1), all samples are kept; the released code fails. v_c is always the mean of the current memory.

    Args:
        samples: Number of training samples.
        classes: Number of training classes.
        noise_rate: Expected fraction of wrong labels. The default is from the only released configuration (Cars-98N).
        threshold: "batch" (TRM in the paper) is the quantile `noise_rate` of P_clean in the current batch, so that this
            fraction of the batch is dropped. "smooth" (sTRM) is the average of this quantile over the last `window`
            batches; it restarts from the latest quantile after a batch in which no sample is above it.
        window: Number of batches for "smooth". The default is from the released configuration.
        size: Number of embeddings in the memory; new ones replace the oldest. The default is from the released code.
        warm_up: Number of batches at the start of training in which every sample is kept and added to the memory.
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
            raise ValueError(f"warm_up must be at least 0 batches, got {warm_up}")
        self.warm_up = warm_up
        if not 0 <= noise_rate < 1:
            raise ValueError(f"noise_rate must be at least 0 and below 1, got {noise_rate}")
        self.noise_rate, self.window, self.size = noise_rate, check_count("window", window), check_count("size", size)
        self.threshold = check_choice("threshold", threshold, ("smooth", "batch"))
        self.memory: ClassMemory | None = None
        # the last `window` quantiles, the newest last; NaN where there is none yet
        self.recent = torch.full((window,), torch.nan, dtype=torch.float64)
        self._pending: list[tuple[Tensor, Tensor]] = []

    @property
    def weights(self) -> Tensor:
        """The most recent weights [N], on the CPU."""
        # The weights of past batches are copied here, not in `batch_weights`, so that no step waits for a GPU.
        for indices, keep in self._pending:
            self._weights[indices] = keep.to(self._weights)
        self._pending.clear()
        return self._weights

    @weights.setter
    def weights(self, value: Tensor) -> None:
        self._weights, self._pending = value, []

    def batch_weights(self, embeddings: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Return the weights [B] of the batch, and add the samples with weight 1 to the memory."""
        check_class_ids(labels, self.classes)
        x = unit(embeddings.detach().float())
        memory = self._get_memory(x)
        if self.rounds < self.warm_up:
            keep = torch.ones(len(x), dtype=torch.bool, device=x.device)
        else:
            keep = self.select(clean_probability(x, labels, memory))
        self.rounds += 1
        memory.add(x, labels, keep)
        self._pending.append((indices.cpu(), keep))
        if len(self._pending) >= MAX_PENDING:
            _ = self.weights
        return keep.to(embeddings.dtype)

    def select(self, clean: Tensor) -> Tensor:
        """Return the mask [B] of the samples to keep, given P_clean [B].

        For threshold="smooth", also update the list of recent quantiles.
        """
        dropped = int(self.noise_rate * len(clean))
        if dropped == 0:
            return torch.ones_like(clean, dtype=torch.bool)
        lowest = clean.argsort(stable=True)[:dropped]
        quantile = clean.index_select(0, lowest[-1:])
        by_rank = torch.ones_like(clean, dtype=torch.bool).index_fill(0, lowest, False)
        if self.threshold == "batch":
            return by_rank
        recent = self.recent.to(clean.device, non_blocking=True)
        # P_clean is exactly 1 only for samples whose class has no embeddings in the memory, so a quantile of 1 is not
        # recorded.
        recent = torch.where(quantile < 1, torch.cat([recent[1:], quantile.double()]), recent)
        keep = clean > recent.nanmean()  # if no quantile has been recorded, the mean is NaN and no sample is kept here
        has_kept = keep.any()
        only_newest = torch.full_like(recent, torch.nan)
        only_newest[-1:] = recent[-1:]
        self.recent = torch.where(has_kept, recent, only_newest)
        return torch.where(has_kept, keep, by_rank)

    def should_update(self, epoch: int) -> bool:
        """Return False, because PRISM computes its weights in `batch_weights`, not at the end of an epoch."""
        return False

    def update(self, embeddings: Tensor, labels: Tensor, *, loss: nn.Module | None = None) -> dict[str, float]:
        """Return statistics of the current weights, without changing the weights."""
        self.check_samples(embeddings, labels)
        return self.summary(labels)

    def _get_memory(self, x: Tensor) -> ClassMemory:
        if self.memory is None:
            self.memory = ClassMemory(classes=self.classes, dim=x.shape[1], size=self.size)
        return self.memory.to(x.device)  # a state that was loaded from a file is on the CPU

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict() | {"recent": self.recent[~self.recent.isnan()].tolist()}
        if self.memory is not None:
            state |= {f"memory.{key}": value.clone() for key, value in self.memory.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        recent = [torch.nan] * self.window + [float(value) for value in state["recent"]]
        self.recent = torch.tensor(recent[-self.window :], dtype=torch.float64)
        memory = {key.removeprefix("memory."): value for key, value in state.items() if key.startswith("memory.")}
        if memory:
            if len(memory["rows"]) != self.size:
                raise ValueError(
                    f"the state has a memory of size {len(memory['rows'])}, but this pacer has size={self.size}: "
                    "use the size of the saved run"
                )
            self._get_memory(memory["rows"]).load_state_dict(memory)


@torch.no_grad()
def clean_probability(x: Tensor, labels: Tensor, memory: ClassMemory) -> Tensor:
    """Compute the probability that each label is correct, P_clean [B] (see `PRISM`), from unit vectors x [B, d].

    The result is float64. It is 1 for samples whose class has no embeddings in the memory.

    >>> memory = ClassMemory(classes=2, dim=2, size=4)
    >>> memory.add(torch.eye(2), torch.tensor([0, 1]), torch.tensor([True, True]))
    >>> clean_probability(torch.eye(2), torch.tensor([0, 0]), memory)
    tensor([0.7311, 0.2689], dtype=torch.float64)
    """
    means = memory.sums * memory.unit / memory.counts.clamp_min(1)[:, None]
    clean = (x.double() @ means.T).softmax(1).gather(1, labels[:, None])[:, 0]
    return torch.where(memory.counts[labels] > 0, clean, 1.0)
