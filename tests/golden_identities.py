"""The identities that the golden file lists by their text, computed by our own code.

Each must meet its expectation on a batch of the method's golden file, and those of DRO, whose batch is known, equal the
golden value. A text that is not here is a failure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from golden_cases import files, load
from nearfar.losses import create
from nearfar.losses.proxies.multi_proxy import pool_similarities
from nearfar.losses.proxy_isa import progress
from nearfar.metrics import evaluate
from nearfar.mining import multi_similarity
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs, log_sum_exp, pair_masks
from nearfar.pacing.coordinate import stochastic_gradient
from nearfar.pacing.objective import WeightProblem
from nearfar.pacing.xi import hardness
from nearfar.training.projection import Projection
from oracle_dro import create_dro


def inputs_of(file: str, variant: str) -> dict[str, Any]:
    (inputs,) = (v["inputs"] for v in load(file)["variants"] if v["variant"] == variant)
    return inputs


def batch(file: str = "dro_kl", variant: str = "margin_unbalanced_gamma0.1_paper") -> tuple[Tensor, Tensor]:
    inputs = inputs_of(file, variant)
    return torch.tensor(inputs["embeddings"], dtype=torch.float64), torch.tensor(inputs["labels"])


def margins() -> Tensor:
    """The margin losses of all unordered pairs of the toy batch."""
    x, labels = batch()
    i, j = torch.triu_indices(len(x), len(x), 1)
    sim, same = cosine_matrix(x)[i, j], labels[i] == labels[j]
    return torch.where(same, 0.7 - sim, sim - 0.3).relu()


def dro(**options: Any) -> Tensor:
    x, labels = batch()
    return create_dro(**options)(x, labels)


def robust(gamma: float) -> Tensor:
    loss: Any = create_dro(uncertainty="kl", gamma=gamma)
    return loss.robust_value(*batch())


def topk_ordered() -> Tensor:
    losses = margins().repeat(2)
    return dro(uncertainty="topk", k=7) - losses.topk(14).values.mean()


def kl_ordered() -> Tensor:
    losses = margins().repeat(2)
    p = torch.where(losses > 0, losses / 0.1, -torch.inf).softmax(0)
    return dro(uncertainty="kl", gamma=0.1) - (p * losses).sum()


def monotone() -> Tensor:
    losses = margins()
    mean = losses[losses > 0].mean()
    return torch.minimum(robust(0.1) - robust(0.9), robust(0.9) - mean)


def lifted_lambda() -> Tensor:
    x, labels = batch()
    return create("lifted", form="anchor", threshold=0.5)(x, labels) - create("lifted", form="anchor", threshold=-3.0)(
        x, labels
    )


def literal_zero() -> Tensor:
    """The paper's y = 0: a function of our own, which has no slope; ours has."""
    x, labels = batch()
    x.requires_grad_()

    def margin(sim: Tensor, same: Tensor) -> Tensor:
        return (0.2 + same.to(sim.dtype) * (0.5 - sim)).relu()

    loss: Any = create("dro", pair=margin, uncertainty="mean")
    sim = cosine_matrix(x.detach()).requires_grad_()
    (slope,) = torch.autograd.grad(margin(sim, pair_masks(labels)[0]).sum(), sim)
    assert loss(x, labels).requires_grad
    return slope[pair_masks(labels)[1]].abs().max()


def mined_alone() -> Tensor:
    x, labels = batch()
    kept = multi_similarity(Pairs(cosine_matrix(x), *pair_masks(labels)), epsilon=0.1)
    return (kept.same.any(1) != kept.diff.any(1)).sum().double()


def proxy_loss(name: str, file: str, variant: str, **options: Any) -> tuple[Any, Tensor, Tensor]:
    """A proxy loss with the proxies of a golden variant, and its batch."""
    inputs = inputs_of(file, variant)
    proxies = torch.tensor(inputs["proxies"], dtype=torch.float64)
    loss: Any = create(name, classes=len(proxies), dim=proxies.shape[-1], **options)
    loss.proxies.data = proxies.reshape(loss.proxies.shape).clone()
    return loss.eval(), torch.tensor(inputs["embeddings"], dtype=torch.float64), torch.tensor(inputs["labels"])


def slope_by_similarity(loss: Any, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """dL/dS and S, both [C, B]."""
    sims = loss.class_similarities(x, labels)
    sim = sims.matrix.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss.cost(replace(sims, matrix=sim)), sim)
    return slope, sim.detach()


def mpa(name: str, variant: str = "K3_balanced", **options: Any) -> tuple[Any, Tensor, Tensor]:
    k = len(inputs_of("mpa", variant)["proxies"][0])
    per_class = k if isinstance(inputs_of("mpa", variant)["proxies"][0][0], list) else 1
    return proxy_loss(name, "mpa", variant, proxies_per_class=per_class, reg_eps=0.0, **options)


def soft_triple() -> tuple[Tensor, Tensor, Tensor]:
    """dL/dS_y of every sample by autograd, p_y, and S [C, B]."""
    k = len(inputs_of("soft_triple", "batch_mean_no_eps")["proxies"][0])
    loss, x, labels = proxy_loss("soft-triple", "soft_triple", "batch_mean_no_eps", proxies_per_class=k, reg_eps=0.0)
    slope, sim = slope_by_similarity(loss, x, labels)
    logits = 20 * sim
    own = torch.zeros_like(sim, dtype=torch.bool)
    own[labels, torch.arange(len(labels))] = True
    p = torch.where(own, logits - 20 * 0.01, logits).softmax(0)
    return slope[labels, torch.arange(len(labels))] * len(labels), p[labels, torch.arange(len(labels))], sim


def soft_triple_slope() -> Tensor:
    slope, p, _ = soft_triple()
    return (slope + 20 * (1 - p)).abs().max()


def soft_triple_printed() -> Tensor:
    """lambda / (sum_{c != y} l_R + 1) is positive, whatever the sign of the exponent of l_R; the slope is not."""
    slope, p, _ = soft_triple()
    return (20 * p - slope).min()


def eq9() -> Tensor:
    loss, x, labels = mpa("mpa", tau=0.0)
    slope, sim = slope_by_similarity(loss, x, labels)
    own = torch.arange(len(sim))[:, None] == labels
    wanted = torch.zeros_like(sim)
    present = len(labels.unique())
    for c in range(len(sim)):
        for i in range(len(labels)):
            if own[c, i]:
                rest = sum(math.exp(-32 * (sim[c, j] - sim[c, i])) for j in range(len(labels)) if own[c, j])
                wanted[c, i] = -32 / present / (math.exp(32 * (sim[c, i] - 0.1)) + rest)
            else:
                rest = sum(math.exp(32 * (sim[c, j] - sim[c, i])) for j in range(len(labels)) if not own[c, j])
                wanted[c, i] = 32 / len(sim) / (math.exp(-32 * (sim[c, i] + 0.1)) + rest)
    return (slope - wanted).abs().max()


def eq14() -> Tensor:
    loss, x, labels = mpa("mpa-dw", tau=0.0)
    slope, sim = slope_by_similarity(loss, x, labels)
    wanted, n = torch.zeros_like(sim), len(labels)
    for i, y in enumerate(labels.tolist()):
        for c in range(len(sim)):
            if c == y:
                wanted[c, i] = -32 / n / (math.exp(32 * (sim[c, i] - 0.1)) + 1)
            else:
                rest = sum(math.exp(32 * (sim[k, i] - sim[c, i])) for k in range(len(sim)) if k != y)
                wanted[c, i] = 32 / n / (math.exp(-32 * (sim[c, i] + 0.1)) + rest)
    return (slope - wanted).abs().max()


def eq18() -> Tensor:
    loss, x, labels = mpa("mpa-ap", tau=0.0)
    slope, sim = slope_by_similarity(loss, x, labels)
    sign = torch.where(torch.arange(len(sim))[:, None] == labels, -1.0, 1.0)
    shifted = sign * sim + 0.1
    gaps = 32 * (shifted[:, None] - shifted[None])  # over c, at c'
    wanted = 32 / len(labels) / (torch.exp(-32 * shifted) + gaps.exp().sum(0))
    return (slope - sign * wanted).abs().max()


def dw_minus_ap() -> Tensor:
    return value(*mpa("mpa-dw", tau=0.0)) - value(*mpa("mpa-ap", tau=0.0))


def value(loss: Any, x: Tensor, labels: Tensor) -> Tensor:
    result: Tensor = loss(x, labels).detach()
    return result


def k1_minus_proxy_anchor() -> Tensor:
    anchor = proxy_loss("proxy-anchor", "mpa", "K1")
    return value(*mpa("mpa", "K1")) - value(*anchor)


def strategy(gamma: float, limit: str) -> Tensor:
    """Eq. 1 of all samples and classes, minus its limit."""
    inputs = inputs_of("mpa", "K3_balanced")
    x = torch.nn.functional.normalize(torch.tensor(inputs["embeddings"], dtype=torch.float64), dim=1)
    w = torch.nn.functional.normalize(torch.tensor(inputs["proxies"], dtype=torch.float64), dim=-1)
    sim = w @ x.T
    return (pool_similarities(sim, gamma=gamma) - pool_similarities(sim, limit)).abs().max()


def identical_proxies() -> Tensor:
    anchor, x, labels = proxy_loss("proxy-anchor", "mpa", "K1")
    # tau=0: rounding in 2 - 2 w.w leaves a root of 1e-8 of the regularizer of equal proxies
    loss: Any = create("mpa", classes=anchor.classes, dim=anchor.dim, proxies_per_class=3, tau=0.0)
    loss.proxies.data = anchor.proxies.data[:, None].repeat(1, 3, 1)
    return value(loss, x, labels) - value(anchor, x, labels)


def proposition_1() -> Tensor:
    z = cosine_matrix(batch()[0])
    p = torch.cat([z, torch.zeros_like(z[:, :1])], 1).softmax(1)
    mine = log_sum_exp(z, torch.ones_like(z, dtype=torch.bool), plus_one=True)
    return (mine - (p[:, :-1] * z).sum(1) - torch.special.entr(p).sum(1)).abs().max()


def schedule(n: Tensor) -> Any:
    return progress(n, torch.ones(len(n)), volume=100.0, sensitivity=0.9, margin=0.1, tau=1.5)


FOREVER = torch.tensor([10**7])
ALL_COUNTS = torch.arange(3000)


def effective_recursion() -> Tensor:
    first, second = schedule(torch.tensor([37, 38])).effective
    return second - (1 + 0.99 * first)


def isa_minus_proxy_anchor() -> Tensor:
    isa, x, labels = proxy_loss(
        "proxy-isa", "mpa", "K1", positive_penalty="none", negative_penalty="none", memory_size=20
    )
    return value(isa, x, labels) - value(*proxy_loss("proxy-anchor", "mpa", "K1"))


def proposition_4_1() -> Tensor:
    """A negative at eps- = sqrt(eps+^2 + eps) is just far enough for a positive at eps+."""

    def at(chord: float) -> list[float]:
        angle = 2 * math.asin(chord / 2)
        return [math.cos(angle), math.sin(angle)]

    rows = torch.tensor([[1.0, 0.0], at(0.3), at(math.sqrt(0.3**2 + 0.2))], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    return create("triplet", margin=0.2)(rows[:1], labels[:1], ref_emb=rows[1:], ref_labels=labels[1:])


def weight_problem(mu: float | None = None) -> tuple[WeightProblem, Any]:
    """The toy weight sub-problem of BSPML, and its weights."""
    inputs = load("bspml")["weight_subproblem"]["inputs"]
    h = inputs["hyper"]
    x, labels = torch.tensor(inputs["embeddings"], dtype=torch.float64), torch.tensor(inputs["labels"])
    pos, neg = hardness(x, labels, alpha=h["alpha"], beta=h["beta"], threshold=h["rho"])
    problem = WeightProblem.of(pos, neg, labels, age=h["lambda"], mu=h["mu"] if mu is None else mu)
    return problem, np.array(inputs["weights"])


def mean_of_all_draws() -> Tensor:
    """Anchor 4 is the first of the second class; every choice of one positive, one class and one of it."""
    problem, w = weight_problem()
    mean = problem.sums(w).mean
    mates = [i for i in range(len(w)) if problem.labels[i] == problem.labels[4] and i != 4]
    others = [np.flatnonzero(problem.labels == k) for k in range(problem.classes) if k != problem.labels[4]]

    def g(p: int, n: int) -> float:
        return stochastic_gradient(problem, w, mean, mean.sum(), 4, np.array([p]), np.array([n]))

    draws = [np.mean([g(p, n) for n in rows]) for p in mates for rows in others]
    return torch.tensor(np.mean(draws) - problem.gradient(w)[4])


def curvature(mu: float | None, anchors: range) -> Tensor:
    """The largest second difference of the objective in one weight, minus 2 mu / N_c^2."""
    problem, w = weight_problem(mu)
    found = []
    for a in anchors:
        at = [problem.value(np.where(np.arange(len(w)) == a, t, w)) for t in (0.0, 0.5, 1.0)]
        size = problem.sizes[problem.labels[a]]
        found.append(4 * (at[0] - 2 * at[1] + at[2]) - 2 * problem.mu / size**2)
    return torch.tensor(found).abs().max()


def projection_at_rest() -> Tensor:
    theta = torch.tensor(load("profs")["regulariser"]["theta"], dtype=torch.float64, requires_grad=True)
    theta.grad = torch.zeros_like(theta)
    Projection([theta], weight=1e-3).add_to_gradients()
    return theta.grad.abs().max()


def map_at_r_excess() -> Tensor:
    data = load("metrics")["same_set"]
    x, labels = torch.tensor(data["embeddings"], dtype=torch.float64), torch.tensor(data["labels"])
    scores = evaluate(x, labels, metrics=("map@r", "r-precision")).per_query()
    return torch.as_tensor(scores["map@r"] - scores["r-precision"]).max()


def perfect_ndcg() -> Tensor:
    labels = torch.arange(3).repeat_interleave(5)
    scores = evaluate(torch.eye(3, dtype=torch.float64)[labels], labels, metrics=("ndcg@8",))
    return torch.tensor(scores["ndcg@8"] - 1, dtype=torch.float64)


IDENTITIES: dict[str, Callable[[], Tensor]] = {
    "DRO-TopK with K=1 minus max pair loss": lambda: dro(uncertainty="topk", k=1) - dro(uncertainty="max"),
    "DRO-TopK with K=all minus mean pair loss": lambda: (
        dro(uncertainty="topk", k=len(margins())) - dro(uncertainty="mean")
    ),
    "DRO-TopK(K unordered) minus DRO-TopK(2K ordered), K=7": topk_ordered,
    "DRO-KL robust value, gamma=1e4, minus mean of non-zero losses": lambda: (
        robust(1e4) - margins()[margins() > 0].mean()
    ),
    "DRO-KL robust value, gamma=0.003, minus max loss (-> -gamma log n)": lambda: robust(0.003) - margins().max(),
    "DRO-KL: F(0.1) >= F(0.9) >= mean (monotone in gamma): min of the two gaps": monotone,
    "DRO-KL weighted loss over ordered pairs minus over unordered pairs": kl_ordered,
    "LS (Eq. 8) is independent of lambda: value at 0.5 minus value at -3": lifted_lambda,
    "margin loss with literal y=0 for negatives: gradient of [m + 0*(lam-S)]_+ w.r.t. S": literal_zero,
    "MS mining: number of anchors where exactly one mined set is empty": mined_alone,
    "SoftTriple dL/dS_y: complex step minus -lambda(1-p_y)": soft_triple_slope,
    "SoftTriple Eq. (5) as printed (positive case) minus the true derivative": soft_triple_printed,
    "MPA Eq. (9) gradient w.r.t. class similarity: max abs error": eq9,
    "MPA-DW Eq. (14) with S_DR = S(x,c) - S(x,c') (corrected index): max abs error": eq14,
    "MPA-AP Eq. (18) times dS'/dS (-1 for the positive class): max abs error": eq18,
    "MPA-DW minus MPA-AP similarity loss (log(1+a)+log(1+b) >= log(1+a+b))": dw_minus_ap,
    "MPA with K=1 minus Proxy-Anchor (same proxies, >= 2 classes in the batch)": k1_minus_proxy_anchor,
    "Eq. (1) with gamma=1e-3 minus max_k x.w_k": lambda: strategy(1e-3, "max"),
    "Eq. (1) with gamma=1e6 minus mean_k x.w_k": lambda: strategy(1e6, "mean"),
    "three identical proxies per class: MPA minus Proxy-Anchor (regulariser 0)": identical_proxies,
    "Prop. 1: log(1+sum e^z) minus (sum p z + H(p)) with H over n+1 outcomes (dummy logit 0)": proposition_1,
    "sigma at n=0 minus 1": lambda: schedule(torch.tensor([0])).sigma[0] - 1,
    "sigma at n->inf minus 1/(1+log(1+V))": lambda: schedule(FOREVER).sigma[0] - 1 / (1 + math.log(101)),
    "nu at n->inf (V=100)": lambda: schedule(FOREVER).nu[0],
    "sigma non-increasing in n: largest increase": lambda: schedule(ALL_COUNTS).sigma.diff().max(),
    "sigma >= nu for all n: min(sigma-nu)": lambda: (schedule(ALL_COUNTS).sigma - schedule(ALL_COUNTS).nu).min(),
    "E_n recursion E_{n+1} = 1 + beta E_n (n=37, V=100)": effective_recursion,
    "Proxy-ISA with all omega = 1 minus Proxy-Anchor": isa_minus_proxy_anchor,
    "PROFS regulariser gradient when theta == theta_k (so M=1 reproduces the baseline step)": projection_at_rest,
    "Proposition 4.1: eps_minus for triplet with eps_plus=0.3, eps=0.2: [eps+^2 - eps-^2 + eps]": proposition_4_1,
    "E[G] over all (K=1,P=1) samples minus exact gradient of Eq. 6 with 1/N^c (anchor 4)": mean_of_all_draws,
    "coordinate curvature of Eq. 6 minus 2 mu / (N^c)^2 (anchor 5, N^c=3)": lambda: curvature(None, range(5, 6)),
    "SPMS (mu=0): objective is linear in every single weight (curvature)": lambda: curvature(0.0, range(10)),
    "max over queries of MAP@R - R-precision": map_at_r_excess,
    "perfect ranking nDCG@8 with R=4": perfect_ndcg,
}


def meets(expect: str, value: float) -> bool:
    """What the golden file expects, in its own words; words nobody knows are a KeyError."""
    if limit := re.fullmatch(r"0 \(<= (\S+)\)", expect):
        return abs(value) <= float(limit[1])
    if limit := re.fullmatch(r"(?:O\(1/gamma\): )?\|\.\| < (\S+)", expect):
        return abs(value) < float(limit[1])
    if near := re.fullmatch(r"(\d\.\d+)\.\.\.", expect):
        return abs(value - float(near[1])) < 1e-5  # the limit; the golden value is that of a finite n
    if expect.startswith("not 0: "):
        return abs(value) > 1e-3
    known = {
        ">= 0": value >= -1e-12,
        "<= 0": value <= 1e-12,
        "0": value == 0,
        "0: no learning signal, hence y must be -1": value == 0,
        "in [-gamma*log(n), 0]": -0.003 * math.log(len(margins())) <= value <= 0,
    }
    return known[expect]


def listed() -> list[Any]:
    return load("identities")["identities_list"] if "identities" in files() else []


def test_every_identity_is_known() -> None:
    if "identities" not in files():
        pytest.skip("no identities.json in this golden directory")
    assert set(load("identities")) <= {"identities_list", "note"}
    for entry in listed():
        assert set(entry) == {"identity", "value", "expect"}
        assert entry["identity"] in IDENTITIES, entry["identity"]


@pytest.mark.parametrize(
    "entry", [pytest.param(e, id=e["identity"][:60]) for e in listed() if e["identity"] in IDENTITIES]
)
def test_identity(entry: dict[str, Any]) -> None:
    ours = float(IDENTITIES[entry["identity"]]())
    assert meets(entry["expect"], ours), f"{ours}, expected {entry['expect']}"
    if entry["identity"].startswith("DRO") and "dro_kl" in files():
        assert ours == pytest.approx(entry["value"], rel=1e-6, abs=1e-9)
