"""bspml.json: the weighted batch loss, Eq. 7, the weight sub-problem, Eqs. 6 and 8, and Algorithm 3 step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from golden_cases import DTYPES, KEYS, close, files, load, mined
from nearfar.losses import create
from nearfar.pacing.coordinate import stochastic_gradient
from nearfar.pacing.objective import WeightProblem, maw, sdaw
from nearfar.pacing.xi import hardness

DATA: dict[str, Any] = load("bspml") if "bspml" in files() else {"variants": []}
VARIANTS = {"weighted_batch_loss_eq7_rho1", "weighted_batch_loss_eq7_rho0.5", "weighted_batch_loss_all_ones"}
BLOCKS = {"algorithm3_trace", "identities", "weight_subproblem"}
needs = pytest.mark.skipif(not set(DATA) >= BLOCKS, reason="this golden directory has no weight sub-problem")


def test_every_block_and_variant_is_known() -> None:
    assert set(DATA) <= {"note", "variants", *BLOCKS}
    assert {v["variant"] for v in DATA["variants"]} <= VARIANTS


@DTYPES
@pytest.mark.parametrize("variant", DATA["variants"], ids=lambda v: v["variant"])
def test_weighted_batch_loss(variant: dict[str, Any], dtype: torch.dtype) -> None:
    inputs, expected = variant["inputs"], dict(variant["expected"])
    assert inputs["normalize_embeddings"]
    options = {KEYS["multi-similarity"][key]: value for key, value in inputs["hyper"].items()}
    x = torch.tensor(inputs["embeddings"], dtype=dtype, requires_grad=True)
    labels, weights = torch.tensor(inputs["labels"]), torch.tensor(inputs["sample_weights"], dtype=dtype)
    value = create("multi-similarity", weighting="outside", **options)(x, labels, weights=weights)
    value.backward()
    close(value, expected.pop("loss"), dtype)
    close(x.grad, expected.pop("grad_embeddings"), dtype)
    if "mined" in expected:
        assert mined(x, inputs) == expected.pop("mined")
    if variant["variant"] == "weighted_batch_loss_all_ones":
        close(create("multi-similarity", **options)(x, labels), value.item(), dtype)
    assert not expected, f"nobody checked {list(expected)}"


def weight_problem(dtype: torch.dtype = torch.float64, **changes: float) -> WeightProblem:
    inputs = DATA["weight_subproblem"]["inputs"]
    h = inputs["hyper"] | changes
    x, labels = torch.tensor(inputs["embeddings"], dtype=dtype), torch.tensor(inputs["labels"])
    pos, neg = hardness(x, labels, alpha=h["alpha"], beta=h["beta"], threshold=h["rho"])
    return WeightProblem.of(pos, neg, labels, age=h["lambda"], mu=h["mu"])


@needs
@DTYPES
def test_hardness(dtype: torch.dtype) -> None:
    expected = DATA["weight_subproblem"]["expected"]
    problem = weight_problem(dtype)
    close(torch.tensor(problem.pos), expected["xi_plus"], dtype)
    close(torch.tensor(problem.neg), expected["xi_minus"], dtype)
    problem = weight_problem(dtype, alpha=2.0, beta=50.0, rho=1.0)
    close(torch.tensor(problem.pos), expected["xi_plus_paper_alpha2_beta50_rho1"], dtype)
    close(torch.tensor(problem.neg), expected["xi_minus_paper_alpha2_beta50_rho1"], dtype)


@needs
def test_weight_subproblem() -> None:
    block = DATA["weight_subproblem"]
    expected, labels, w = dict(block["expected"]), block["inputs"]["labels"], np.array(block["inputs"]["weights"])
    problem = weight_problem()
    close(problem.value(w), expected.pop("objective_eq6_with_prefactor"))
    close(torch.tensor(problem.gradient(w)), expected.pop("grad_w_exact_with_prefactor"))
    close(torch.tensor(problem.gradient(w)), expected.pop("G_paper_exhaustive"))
    close(torch.tensor(weight_problem(mu=0.0).gradient(w)), expected.pop("grad_w_SPMS_mu0"))
    close(maw(w, labels), expected.pop("MAW"))
    close(sdaw(w, labels), expected.pop("SDAW"))
    # what is printed in Eq. 6 is not what we minimize
    assert abs(problem.value(w) - expected.pop("objective_eq6_as_printed")) > 1
    assert np.abs(problem.gradient(w) - expected.pop("grad_w_as_printed_without_prefactor")).max() > 0.1
    assert all(key.startswith("xi_") for key in expected), f"nobody checked {list(expected)}"


@needs
def test_algorithm_3() -> None:
    block = DATA["algorithm3_trace"]
    problem, w = weight_problem(), np.array(block["w0"])
    for step in block["steps"]:
        mean, a = problem.sums(w).mean, step["anchor"]
        draws = np.array(step["pos"]), np.array(step["negs"]).ravel()
        g = stochastic_gradient(problem, w, mean, mean.sum(), a, *draws)
        close(g, step["G"])
        w[a] = np.clip(w[a] - block["learning_rate"] * g, 0, 1)
        close(torch.tensor(w), step["w_after"])


@needs
def test_identities() -> None:
    known = dict(DATA["identities"])
    assert known.pop("WBL(w=1) - MS with mining") == 0  # test_weighted_batch_loss computes it
    assert known.pop("max|exact grad of Eq.6 WITH prefactor 1/N^c - paper G with exhaustive sampling|") < 1e-12
    assert known.pop("max|exact grad of Eq.6 WITHOUT prefactor - paper G with exhaustive sampling| (not zero)") > 1
    assert not known
    problem, w = weight_problem(), np.array(DATA["weight_subproblem"]["inputs"]["weights"])
    mean, draws = problem.sums(w).mean, np.arange(len(w))
    for a in range(len(w)):
        # classes of different sizes: exhaustive sampling averages within each class first
        mates = draws[(problem.labels == problem.labels[a]) & (draws != a)]
        others = [draws[problem.labels == k] for k in range(problem.classes) if k != problem.labels[a]]
        parts = [stochastic_gradient(problem, w, mean, mean.sum(), a, mates, rows) for rows in others]
        assert np.mean(parts) == pytest.approx(problem.gradient(w)[a], abs=1e-12)
