"""DRO: a pair loss under the worst weights that an uncertainty set allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.dro.chi_square import Chi2
from nearfar.losses.dro.kl import KL, GroupedKL
from nearfar.losses.dro.uncertainty import TWICE_BATCH, Max, Mean, Selection, TopK, TopKPN, Uncertainty
from nearfar.losses.pair_loss import PairBatch, PairLoss
from nearfar.ops.geometry import unit
from nearfar.ops.pairs import Pairs
from nearfar.ops.sparse_entries import draw, entries
from nearfar.validation import check_choice, nearest

# From this many multiplications of the dense product on, and up to one in FEW entries, a sparse one is faster.
SPARSE_FROM, FEW = 10_000_000, 16

PairFunction = Callable[[Tensor, Tensor], Tensor]
UNCERTAINTIES: dict[str, type[Uncertainty]] = {u.name: u for u in (Mean, Max, TopK, TopKPN, KL, GroupedKL, Chi2)}


@register("dro")
class DROLoss(PairLoss):
    """Distributionally robust pair loss (Qi et al., arXiv 1912.11194, Eq. 1): sum p_ij l_ij, p from an uncertainty set.

    `pair` says what a pair costs: the name of an elementwise loss ("pair-margin", the paper's, is the default;
    "binomial", "contrastive") with `pair_options`, such a loss itself, or your own elementwise function
    (cosines, same) -> losses >= 0.
    `uncertainty` says which pairs count: "mean", "max", "topk" (default), "topk-pn", "kl", "kl-g", "chi2", which name
    the classes Mean, Max, TopK, TopKPN, KL, GroupedKL, Chi2, or one of these; `k`, `gamma`, `gamma_neg`, `rho`,
    `weights`, `truncate`, `drop_zero`, `dummy`, `reduction` are the options of the named one, None its default.

    p is constant in the gradient, which is then that of the robust value F (Danskin): `weights_of(...)` gives p [A, R]
    and `robust_value(...)` gives F, both called like the loss. If every loss is 0 the value is 0 with a graph.

    sampling=True estimates the sum without bias by the mean of `num_draws` entries drawn from p with replacement
    (default 2K, K = `truncate` or 2B; the released code's). Draws are a function of `seed` and of the number of
    training calls so far, which is in the state_dict; in eval() mode that number stands still.

    >>> from nearfar.losses import create
    >>> x, labels = torch.eye(3), torch.tensor([0, 0, 1])
    >>> create("dro", uncertainty="topk", k=1)(x, labels)  # the one positive pair, m + lambda - S
    tensor(0.7000)
    >>> DROLoss(lambda sim, same: torch.where(same, 1 - sim, sim), KL(gamma=0.1)).weights_of(x, labels)[0]
    tensor([0.0000, 0.5000, 0.0000])
    """

    def __init__(
        self,
        pair: str | PairLoss | PairFunction = "pair-margin",
        uncertainty: str | Uncertainty = "topk",
        *,
        pair_options: Mapping[str, Any] | None = None,
        k: int | str | None = None,
        gamma: float | None = None,
        gamma_neg: float | None = None,
        rho: float | None = None,
        weights: str | None = None,
        truncate: int | str | None = None,
        drop_zero: bool | None = None,
        dummy: bool | None = None,
        reduction: str | None = None,
        sampling: bool = False,
        num_draws: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.pair_name, self.pair = as_pair_loss(pair, dict(pair_options or {}))
        given: dict[str, Any] = {
            "k": k,
            "gamma": gamma,
            "gamma_neg": gamma_neg,
            "rho": rho,
            "weights": weights,
            "truncate": truncate,
            "drop_zero": drop_zero,
            "dummy": dummy,
            "reduction": reduction,
        }
        given = {key: value for key, value in given.items() if value is not None}
        self.uncertainty = as_uncertainty(uncertainty, given)
        if num_draws is not None and (not sampling or num_draws < 1):
            raise ValueError(f"num_draws must be at least 1 and comes with sampling=True, got {num_draws}")
        self.sampling, self.num_draws, self.seed = sampling, num_draws, seed
        if sampling:
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    calls: Tensor

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"pair": self.pair_name or self.pair, "uncertainty": self.uncertainty}
        if self.pair_name and isinstance(self.pair, PairLoss):
            options["pair_options"] = self.pair.options
        if type(self.uncertainty) in UNCERTAINTIES.values():
            options["uncertainty"] = self.uncertainty.name
            options |= {key: value for key, value in asdict(self.uncertainty).items() if value is not None}
        if self.sampling:
            options |= {"sampling": True, "num_draws": self.num_draws, "seed": self.seed}
        return options

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self.pair.similarity(x, y) if isinstance(self.pair, PairLoss) else super().similarity(x, y)

    def losses(self, pairs: Pairs) -> Tensor:
        """The loss of every pair, [A, R]."""
        if isinstance(self.pair, PairLoss):
            losses: Tensor = self.pair.elementwise(pairs)  # type: ignore[operator]
            return losses
        # entries that are no pair get a harmless cosine: a NaN there would reach the gradient even with p = 0
        losses = self.pair(torch.where(pairs.same | pairs.diff, pairs.sim, 0.0), pairs.same)
        if losses.shape != pairs.sim.shape:
            raise ValueError(
                f"pair must return one loss for each entry, {list(pairs.sim.shape)}, got {list(losses.shape)}"
            )
        return losses

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        constant, compiling = replace(pairs, sim=pairs.sim.detach()), torch.compiler.is_compiling()
        sparse = not compiling and self.is_cosine and pairs.sim.numel() * batch.emb.shape[1] >= SPARSE_FROM
        if self.sampling:
            index, p = self.draw(self.uncertainty(self.losses(constant), constant))
        elif isinstance(self.uncertainty, Selection) and (pairs.weights is None or not compiling):
            index, p = self.uncertainty.select(self.losses(constant), constant)
        else:
            losses = self.losses(pairs)
            p = self.uncertainty(losses.detach(), constant)
            if not sparse or torch.count_nonzero(p) * FEW > p.numel():
                return (p * losses).sum()
            index = p.flatten().nonzero()[:, 0]
            p = p.flatten()[index]
        # only the chosen entries enter the graph
        sim, same, diff = (x.flatten().gather(0, index)[None] for x in (pairs.sim, pairs.same, pairs.diff))
        if sparse:
            rows = unit(batch.emb)
            sim = entries(constant.sim, rows, rows if batch.ref_emb is None else unit(batch.ref_emb), index)[None]
        return (p * self.losses(Pairs(sim, same, diff))[0]).sum()

    @property
    def is_cosine(self) -> bool:
        """Whether the pair loss is one of cosines."""
        return not isinstance(self.pair, PairLoss) or type(self.pair).similarity is PairLoss.similarity

    def draw(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """(index, p) of entries drawn from p [A, R] with replacement, each of them 1/n of its sum."""
        n = self.num_draws
        if n is None:
            k = getattr(self.uncertainty, "truncate", None) or TWICE_BATCH
            n = 2 * (k if isinstance(k, int) else 2 * len(p))
        index: Tensor = draw(p, n, self.calls + self.seed)
        if self.training:
            self.calls += 1
        return index, (p.sum() / n).expand(n)

    def weights_of(self, embeddings: Tensor, labels: Tensor, **inputs: Any) -> Tensor:
        """p [A, R], before any drawing; called like the loss. sum p l is the loss."""

        def p(pairs: Pairs) -> Tensor:
            return self.uncertainty(self.losses(pairs).detach(), pairs).detach()

        result: Tensor = _Reading(self, p)(embeddings, labels, **inputs)
        return result

    def robust_value(self, embeddings: Tensor, labels: Tensor, **inputs: Any) -> Tensor:
        """F, the maximum over the uncertainty set with its penalty; called like the loss, and differentiable."""

        def value(pairs: Pairs) -> Tensor:
            return self.uncertainty.value(self.losses(pairs), pairs)

        result: Tensor = _Reading(self, value)(embeddings, labels, **inputs)
        return result


class _Reading(PairLoss):
    """A call of a DRO loss that returns something else of its pairs."""

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
    """(name, loss) from a name with options, a loss, or a function; the name is None where there is none."""
    from nearfar import losses  # the registry, which imports this module

    elementwise = {name: cls for name in losses.names() if hasattr(cls := losses.loss_class(name), "elementwise")}
    if isinstance(pair, str):
        made = losses.create(check_choice("pair", pair, elementwise), **options)
        assert isinstance(made, PairLoss)
        return pair, made
    if options:
        raise ValueError(f"pair_options={options} was given with a pair loss that is made already: {pair!r}")
    if isinstance(pair, PairLoss):
        if not hasattr(pair, "elementwise"):
            raise ValueError(f"pair must be an elementwise loss ({', '.join(elementwise)}), got {pair!r}")
        return next((name for name, cls in elementwise.items() if type(pair) is cls), None), pair
    if not callable(pair):
        raise ValueError(f"pair must be the name of a loss, a loss or a function (sim, same) -> losses, got {pair!r}")
    return None, pair


def as_uncertainty(uncertainty: str | Uncertainty, options: dict[str, Any]) -> Uncertainty:
    """An uncertainty set from its name with options, or itself."""
    if isinstance(uncertainty, Uncertainty):
        if options:
            raise ValueError(
                f"{', '.join(options)} was given with an uncertainty that is made already: {uncertainty!r}"
            )
        return uncertainty
    make = UNCERTAINTIES[check_choice("uncertainty", uncertainty, UNCERTAINTIES)]
    known = [field.name for field in fields(make)]
    for key in options:
        if key not in known:
            raise ValueError(
                f"uncertainty {uncertainty!r} has no option {key!r}{nearest(key, known)} "
                f"Options: {', '.join(known) or 'none'}"
            )
    return make(**options)
