"""DRO: a pair loss under the worst-case weights of an uncertainty set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from nearfar.losses.base import LOSSES, register
from nearfar.losses.dro.uncertainty import TWICE_BATCH, UNCERTAINTY_SETS, SparseSet, UncertaintySet
from nearfar.losses.pair_loss import PairBatch, PairLoss
from nearfar.ops.geometry import unit
from nearfar.ops.pairs import Pairs
from nearfar.ops.sparse_entries import draw, entries
from nearfar.validation import check_choice

# A sparse product is faster if the dense one has at least SPARSE_FROM multiplications and at most one in FEW entries
# is needed.
SPARSE_FROM, FEW = 10_000_000, 16

PairFunction = Callable[[Tensor, Tensor], Tensor]


@register("dro")
class DROLoss(PairLoss):
    """Distributionally robust pair loss (Qi et al., arXiv 1912.11194, Eq. 1): sum p_ij l_ij, p from an uncertainty set.

    p is a constant in the gradient, which is therefore the gradient of the robust value F (Danskin). `weights_of(...)`
    returns p [A, R] and `robust_value(...)` returns F; both are called like the loss. If every loss is 0, the value is
    a differentiable 0.

    Args:
        pair: The loss of a pair: the name of an elementwise loss ("pair-margin", the paper's, "binomial" or
            "contrastive"), such a loss, or an elementwise function (cosines, same) -> losses >= 0.
        uncertainty: The uncertainty set: a name of `nearfar.losses.dro.names()`, {name, ...options}, or an instance.
        pair_options: The options of a pair loss that is given by name.
        sampling: Estimate the sum without bias by the mean of `num_draws` entries drawn from p with replacement. The
            draws are a function of `seed` and of the number of training calls, which is in the state_dict and does not
            change in eval() mode.
        num_draws: The number of draws; None is 2K with K = `truncate` of the set or 2B (the released code's).
        seed: The seed of the draws.

    >>> from nearfar.losses import create
    >>> x, labels = torch.eye(3), torch.tensor([0, 0, 1])
    >>> create("dro", uncertainty={"name": "topk", "k": 1})(x, labels)  # the one positive pair, m + lambda - S
    tensor(0.7000)
    >>> DROLoss(lambda sim, same: torch.where(same, 1 - sim, sim), "kl").weights_of(x, labels)[0]
    tensor([0.0000, 0.5000, 0.0000])
    """

    moved_options: ClassVar[Mapping[str, str]] = {
        option: f"uncertainty.{option}"
        for option in ("k", "gamma", "gamma_neg", "rho", "weights", "truncate", "drop_zero", "dummy", "reduction")
    }

    def __init__(
        self,
        pair: str | PairLoss | PairFunction = "pair-margin",
        uncertainty: str | Mapping[str, Any] | UncertaintySet = "topk",
        *,
        pair_options: Mapping[str, Any] | None = None,
        sampling: bool = False,
        num_draws: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.pair_name, self.pair = as_pair_loss(pair, dict(pair_options or {}))
        self.uncertainty = as_uncertainty_set(uncertainty)
        if num_draws is not None and (not sampling or num_draws < 1):
            raise ValueError(f"num_draws must be at least 1 and needs sampling=True, got {num_draws}")
        self.sampling, self.num_draws, self.seed = sampling, num_draws, seed
        if sampling:
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    calls: Tensor

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"pair": self.pair_name or self.pair, "uncertainty": describe(self.uncertainty)}
        if self.pair_name and isinstance(self.pair, PairLoss):
            options["pair_options"] = self.pair.options
        if self.sampling:
            options |= {"sampling": True, "num_draws": self.num_draws, "seed": self.seed}
        return options

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self.pair.similarity(x, y) if isinstance(self.pair, PairLoss) else super().similarity(x, y)

    def losses(self, pairs: Pairs) -> Tensor:
        """Compute the loss of every pair, [A, R]."""
        if isinstance(self.pair, PairLoss):
            losses: Tensor = self.pair.elementwise(pairs)  # type: ignore[operator]
            return losses
        # Entries that are not pairs get the cosine 0: a NaN there would reach the gradient even with p = 0.
        losses = self.pair(torch.where(pairs.same | pairs.diff, pairs.sim, 0.0), pairs.same)
        if losses.shape != pairs.sim.shape:
            raise ValueError(
                f"pair must return one loss per entry, shape {list(pairs.sim.shape)}, got shape {list(losses.shape)}"
            )
        return losses

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        constant, compiling = replace(pairs, sim=pairs.sim.detach()), torch.compiler.is_compiling()
        sparse = not compiling and self.is_cosine and pairs.sim.numel() * batch.emb.shape[1] >= SPARSE_FROM
        if self.sampling:
            index, p = self.draw(self.uncertainty(self.losses(constant), constant))
        elif isinstance(self.uncertainty, SparseSet) and (pairs.weights is None or not compiling):
            index, p = self.uncertainty.select(self.losses(constant), constant)
        else:
            losses = self.losses(pairs)
            p = self.uncertainty(losses.detach(), constant)
            if not sparse or torch.count_nonzero(p) * FEW > p.numel():
                return (p * losses).sum()
            index = p.flatten().nonzero()[:, 0]
            p = p.flatten()[index]
        # Only the selected entries enter the graph.
        sim, same, diff = (x.flatten().gather(0, index)[None] for x in (pairs.sim, pairs.same, pairs.diff))
        if sparse:
            rows = unit(batch.emb)
            sim = entries(constant.sim, rows, rows if batch.ref_emb is None else unit(batch.ref_emb), index)[None]
        return (p * self.losses(Pairs(sim, same, diff))[0]).sum()

    @property
    def is_cosine(self) -> bool:
        """Whether the pair loss is a function of cosines."""
        return not isinstance(self.pair, PairLoss) or type(self.pair).similarity is PairLoss.similarity

    def draw(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Draw n entries from p [A, R] with replacement; return their indices and weights, each sum(p) / n."""
        n = self.num_draws
        if n is None:
            k = getattr(self.uncertainty, "truncate", None) or TWICE_BATCH
            n = 2 * (k if isinstance(k, int) else 2 * len(p))
        index: Tensor = draw(p, n, self.calls + self.seed)
        if self.training:
            self.calls += 1
        return index, (p.sum() / n).expand(n)

    def weights_of(self, embeddings: Tensor, labels: Tensor, **inputs: Any) -> Tensor:
        """Return p [A, R], before any sampling. It is called like the loss, which is sum p l."""

        def p(pairs: Pairs) -> Tensor:
            return self.uncertainty(self.losses(pairs).detach(), pairs).detach()

        result: Tensor = _Reading(self, p)(embeddings, labels, **inputs)
        return result

    def robust_value(self, embeddings: Tensor, labels: Tensor, **inputs: Any) -> Tensor:
        """Return F, the maximum over the uncertainty set including its penalty. It is called like the loss."""

        def value(pairs: Pairs) -> Tensor:
            return self.uncertainty.value(self.losses(pairs), pairs)

        result: Tensor = _Reading(self, value)(embeddings, labels, **inputs)
        return result


class _Reading(PairLoss):
    """A call of a DRO loss that returns another function of its pairs."""

    def __init__(self, loss: DROLoss, read: Callable[[Pairs], Tensor]) -> None:
        super().__init__()
        self.loss, self.read = loss, read

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self.loss.similarity(x, y)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return self.read(pairs)


def as_pair_loss(
    pair: str | PairLoss | PairFunction, options: dict[str, Any]
) -> tuple[str | None, PairLoss | PairFunction]:
    """Return (name, loss) for a name with options, a loss, or a function; a function has no name."""
    elementwise = {name: cls for name in LOSSES.names() if hasattr(cls := LOSSES.get(name), "elementwise")}
    if isinstance(pair, str):
        loss: PairLoss = LOSSES.create(check_choice("pair", pair, elementwise), **options)
        return pair, loss
    if options:
        raise ValueError(f"pair_options={options} needs pair to be a name, got {pair!r}: pass the options to that loss")
    if isinstance(pair, PairLoss):
        if not hasattr(pair, "elementwise"):
            raise ValueError(f"pair must be an elementwise loss ({', '.join(elementwise)}), got {pair!r}")
        return next((name for name, cls in elementwise.items() if type(pair) is cls), None), pair
    if not callable(pair):
        raise ValueError(f"pair must be the name of a loss, a loss or a function (sim, same) -> losses, got {pair!r}")
    return None, pair


def as_uncertainty_set(uncertainty: str | Mapping[str, Any] | UncertaintySet) -> UncertaintySet:
    """Return an uncertainty set from its name, from {name, ...options}, or from itself."""
    if isinstance(uncertainty, UncertaintySet):
        return uncertainty
    options: dict[str, Any] = {"name": uncertainty} if isinstance(uncertainty, str) else dict(uncertainty)
    if "name" not in options:
        raise ValueError(f"uncertainty={options} has no name: add one of {', '.join(UNCERTAINTY_SETS.names())}")
    # None is the default of an option, as in recipes.
    name = options.pop("name")
    created: UncertaintySet = UNCERTAINTY_SETS.create(
        name, **{option: value for option, value in options.items() if value is not None}
    )
    return created


def describe(uncertainty: UncertaintySet) -> Any:
    """Return {name, ...options} of a registered uncertainty set; other sets are returned unchanged."""
    for name in UNCERTAINTY_SETS.names():
        if type(uncertainty) is UNCERTAINTY_SETS.get(name):
            values = {option: getattr(uncertainty, option) for option in UNCERTAINTY_SETS.options(name)}
            return {"name": name, **{option: value for option, value in values.items() if value is not None}}
    return uncertainty
