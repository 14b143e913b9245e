"""DRO: a pair loss whose pair weights are the worst case within an uncertainty set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from nearfar.host_reads import is_on_host
from nearfar.losses.base import LOSSES, register
from nearfar.losses.dro.uncertainty import TWICE_BATCH, UNCERTAINTY_SETS, SparseSet, UncertaintySet
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.geometry import unit
from nearfar.ops.pairs import Pairs
from nearfar.ops.sparse_entries import draw, entries
from nearfar.validation import check_choice

# In the backward pass, a sparse matrix product is faster than a dense one if the dense product has at least SPARSE_FROM
# multiplications and at most 1 / FEW of the entries of the similarity matrix are needed.
SPARSE_FROM, FEW = 10_000_000, 16

PairFunction = Callable[[Tensor, Tensor], Tensor]


@register("dro")
class DROLoss(PairLoss):
    """Distributionally robust pair loss (Qi et al., arXiv 1912.11194, Eq. 1).

    The loss is sum_ij p_ij l_ij, where l_ij are the losses of the pairs and the weights p_ij come from an uncertainty
    set. p is treated as a constant in the gradient. By Danskin's theorem, this gradient is that of the robust value F,
    the maximum of sum_ij p_ij l_ij over the uncertainty set (minus a penalty for "kl" and "kl-g"). `weights_of(...)`
    returns p [A, R] for A anchors, each compared with R samples, and `robust_value(...)` returns F. Both take the same
    arguments as the loss, and both use the pairs that the attribute `mine` selects. If every l_ij is 0, the loss is 0
    and backward() still works.

    Args:
        pair: The loss of a pair: the name of an elementwise loss ("pair-margin", "binomial" or "contrastive"), an
            instance of such a loss, or a function (sim, same) -> losses. The paper uses "pair-margin". The function
            gets the cosines of all pairs and the mask of the positive pairs, and returns losses >= 0, elementwise.
        uncertainty: The uncertainty set: one of the names in `nearfar.losses.dro.names()`, a mapping with the key
            "name" and the options of the set, or an instance.
        pair_options: The options of the pair loss, if `pair` is a name.
        sampling: If True, estimate the sum from `num_draws` pairs, which are drawn with replacement and with
            probabilities proportional to p. The estimate is unbiased. The draws depend on `seed` and on the number
            of calls in train() mode, which is stored in the state_dict.
        num_draws: The number of draws. None uses 2K, as in the released code. K is the option `truncate` of the
            uncertainty set. If the set has no option `truncate`, or if `truncate` is None, K is twice the number of
            anchors.
        seed: The seed of the draws.

    >>> from nearfar.losses import create
    >>> x, labels = torch.eye(3), torch.tensor([0, 0, 1])
    >>> create("dro", uncertainty={"name": "topk", "k": 1})(x, labels)  # the positive pair: m + threshold - S
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
            raise ValueError(f"num_draws must be at least 1 and needs sampling=True, got {num_draws=}, {sampling=}")
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
        """Compute the loss of every pair. The result has the shape of `pairs.sim`."""
        if isinstance(self.pair, PairLoss):
            losses: Tensor = self.pair.elementwise(pairs)  # type: ignore[operator]
            return losses
        # Entries that are not pairs get the cosine 0. If self.pair returned NaN for such an entry, the gradient would
        # be NaN even though the weight of the entry is 0.
        losses = self.pair(torch.where(pairs.same | pairs.diff, pairs.sim, 0.0), pairs.same)
        if losses.shape != pairs.sim.shape:
            raise ValueError(
                f"pair must return losses of shape {list(pairs.sim.shape)}, one per pair, got shape "
                f"{list(losses.shape)}"
            )
        return losses

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        constant, on_host = replace(pairs, sim=pairs.sim.detach()), is_on_host(pairs.sim)
        # The sparse product computes the gradient of the embeddings, not that of pairs.sim.
        is_learned = batch.emb.requires_grad or (batch.ref_emb is not None and batch.ref_emb.requires_grad)
        sparse = is_learned and on_host and self.is_cosine and pairs.sim.numel() * batch.emb.shape[1] >= SPARSE_FROM
        if self.sampling:
            index, p = self.draw(self.uncertainty(self.losses(constant), constant))
        elif isinstance(self.uncertainty, SparseSet) and (pairs.weights is None or on_host):
            index, p = self.uncertainty.select(self.losses(constant), constant)
        else:
            losses = self.losses(pairs)
            p = self.uncertainty(losses.detach(), constant)
            if not sparse or torch.count_nonzero(p) * FEW > p.numel():
                return (p * losses).sum()
            index = p.flatten().nonzero()[:, 0]
            p = p.flatten()[index]
        # Recompute the losses of the selected entries only, so that the other entries are not in the autograd graph.
        sim, same, diff = (x.flatten().gather(0, index)[None] for x in (pairs.sim, pairs.same, pairs.diff))
        if sparse:
            rows = unit(batch.emb)
            sim = entries(constant.sim, rows, rows if batch.ref_emb is None else unit(batch.ref_emb), index)[None]
        return (p * self.losses(Pairs(sim, same, diff))[0]).sum()

    @property
    def is_cosine(self) -> bool:
        """Return whether the pair loss is a function of cosines."""
        return not isinstance(self.pair, PairLoss) or type(self.pair).similarity is PairLoss.similarity

    def draw(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Draw n pairs with replacement, with probabilities proportional to their weights p [A, R].

        Return their indices [n] into the flattened p, and n equal weights sum(p) / n.
        """
        n = self.num_draws
        if n is None:
            k = getattr(self.uncertainty, "truncate", None) or TWICE_BATCH
            n = 2 * (k if isinstance(k, int) else 2 * len(p))
        index: Tensor = draw(p, n, self.calls + self.seed)
        if self.training:
            self.calls += 1
        return index, (p.sum() / n).expand(n)

    def weights_of(self, embeddings: Tensor, labels: Tensor, **inputs: Any) -> Tensor:
        """Return the weights of all pairs, with one row per anchor. The arguments are those of the loss.

        The option `sampling` has no effect on these weights.
        """

        def p(pairs: Pairs) -> Tensor:
            return self.uncertainty(self.losses(pairs).detach(), pairs).detach()

        result: Tensor = _Reading(self, p)(embeddings, labels, **inputs)
        return result

    def robust_value(self, embeddings: Tensor, labels: Tensor, **inputs: Any) -> Tensor:
        """Return the robust value F (see `UncertaintySet.value`). The arguments are those of the loss."""

        def value(pairs: Pairs) -> Tensor:
            return self.uncertainty.value(self.losses(pairs), pairs)

        result: Tensor = _Reading(self, value)(embeddings, labels, **inputs)
        return result


class _Reading(PairLoss):
    """A pair loss that computes the same pairs as a DRO loss, but returns read(pairs) instead of the loss."""

    def __init__(self, loss: DROLoss, read: Callable[[Pairs], Tensor]) -> None:
        super().__init__()
        self.loss, self.read, self.mine = loss, read, loss.mine

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self.loss.similarity(x, y)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return self.read(pairs)


def as_pair_loss(
    pair: str | PairLoss | PairFunction, options: dict[str, Any]
) -> tuple[str | None, PairLoss | PairFunction]:
    """Return the name and the pair loss for the argument `pair` of `DROLoss`.

    A name is looked up and the loss is created with `options`. The name is None for a function and for a loss that is
    not registered.
    """
    elementwise = {name: cls for name in LOSSES.names() if hasattr(cls := LOSSES.get(name), "elementwise")}
    if isinstance(pair, str):
        loss: PairLoss = LOSSES.create(check_choice("pair", pair, elementwise), **options)
        return pair, loss
    if options:
        raise ValueError(
            f"pair_options={options} is only allowed if pair is a name, got {pair!r}: remove pair_options, and set the "
            "options in pair itself"
        )
    if isinstance(pair, PairLoss):
        if not hasattr(pair, "elementwise"):
            raise ValueError(f"pair must be an elementwise loss ({', '.join(elementwise)}), got {pair!r}")
        return next((name for name, cls in elementwise.items() if type(pair) is cls), None), pair
    if not callable(pair):
        raise ValueError(f"pair must be the name of a loss, a loss or a function (sim, same) -> losses, got {pair!r}")
    return None, pair


def as_uncertainty_set(uncertainty: str | Mapping[str, Any] | UncertaintySet) -> UncertaintySet:
    """Return an uncertainty set from its name, or from a mapping with its name and options.

    An instance is returned unchanged.
    """
    if isinstance(uncertainty, UncertaintySet):
        return uncertainty
    options: dict[str, Any] = {"name": uncertainty} if isinstance(uncertainty, str) else dict(uncertainty)
    if "name" not in options:
        raise ValueError(f"uncertainty={options} has no name: add one of {', '.join(UNCERTAINTY_SETS.names())}")
    # An option that is None keeps its default, as in recipe files.
    name = options.pop("name")
    created: UncertaintySet = UNCERTAINTY_SETS.create(
        name, **{option: value for option, value in options.items() if value is not None}
    )
    return created


def describe(uncertainty: UncertaintySet) -> Any:
    """Return a mapping with the name and options of a registered uncertainty set. Return other sets unchanged."""
    for name in UNCERTAINTY_SETS.names():
        if type(uncertainty) is UNCERTAINTY_SETS.get(name):
            values = {option: getattr(uncertainty, option) for option in UNCERTAINTY_SETS.options(name)}
            return {"name": name, **{option: value for option, value in values.items() if value is not None}}
    return uncertainty
