"""profs.json: the six losses with representatives and which pairs they take, cycle lengths, HNCM, the projection term.

The "-Hard" baselines are checked on the embeddings of profs.json as an ordinary batch: against a slow loop in any
golden directory, and against golden values of our own where profs.json holds the embeddings they were made for.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from golden_cases import DTYPES, GOLDEN, OURS, close, files, load
from nearfar.losses import create
from nearfar.mining import closest_negatives
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs, pair_masks
from nearfar.samplers import HNCM, steps_per_cycle
from nearfar.training.projection import Projection

# variant -> loss and option of each hyper key; "lifted" and "n_pair" may be raw or normalized
VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "contrastive": ("contrastive", {"eps": "neg_margin"}),
    "triplet": ("triplet", {"eps": "margin"}),
    "margin": ("margin", {"beta": "beta", "delta": "delta"}),
    "lifted": ("lifted", {"alpha": "alpha"}),
    "n_pair": ("n-pair", {"l2_reg": "l2_reg"}),
    "angular": ("angular", {"alpha_deg": "angle"}),
}
DATA: dict[str, Any] = load("profs") if "profs" in files() else {"variants": []}


def test_every_block_and_variant_is_known() -> None:
    assert set(DATA) <= {"note", "variants", "selection", "M_values", "hncm_single_seed", "regulariser"}
    assert {v["variant"] for v in DATA["variants"]} <= set(VARIANTS)


@DTYPES
@pytest.mark.parametrize("variant", DATA["variants"], ids=lambda v: v["variant"])
def test_loss_with_representatives(variant: dict[str, Any], dtype: torch.dtype) -> None:
    inputs, expected = variant["inputs"], dict(variant["expected"])
    name, keys = VARIANTS[variant["variant"]]
    options: dict[str, Any] = {keys[key]: value for key, value in inputs["hyper"].items()}
    if name in ("lifted", "n-pair"):
        options["normalize"] = inputs["normalize_embeddings"]
    else:
        assert inputs["normalize_embeddings"]
    loss = create(name, **options).to(dtype)
    rows = [torch.tensor(inputs[k], dtype=dtype, requires_grad=True) for k in ("representatives", "examples")]
    labels = torch.tensor(inputs["representative_labels"] + inputs["example_labels"])
    value = loss(torch.cat(rows), labels, representatives=len(rows[0]))
    value.backward()
    close(value, expected.pop("loss"), dtype)
    close(rows[0].grad, expected.pop("grad_representatives"), dtype)
    close(rows[1].grad, expected.pop("grad_examples"), dtype)
    if "grad_beta" in expected:
        close(loss.beta.grad, expected.pop("grad_beta"), dtype)  # type: ignore[union-attr]
    assert not expected, f"nobody checked {list(expected)}"


@pytest.mark.parametrize("chosen", DATA.get("selection", []), ids=lambda c: f"representative {c['representative']}")
def test_selection(chosen: dict[str, Any]) -> None:
    """Positives, and as many negatives, the closest first; columns count the examples."""
    (inputs,) = (v["inputs"] for v in DATA["variants"] if v["variant"] == "contrastive")
    representatives, examples = (torch.tensor(inputs[k], dtype=torch.float64) for k in ("representatives", "examples"))
    masks = pair_masks(torch.tensor(inputs["representative_labels"]), torch.tensor(inputs["example_labels"]))
    kept = closest_negatives(Pairs(cosine_matrix(representatives, examples), *masks))
    i = chosen["representative"]
    negatives = sorted(kept.diff[i].nonzero().flatten().tolist(), key=lambda j: -kept.sim[i, j].item())
    assert kept.same[i].nonzero().flatten().tolist() == chosen["positives"]
    assert negatives == chosen["hard_negatives_closest_first"]


@pytest.mark.parametrize("row", DATA.get("M_values", []), ids=lambda r: f"{r['dataset']}, I={r['I']}")
def test_steps_of_a_cycle(row: dict[str, Any]) -> None:
    assert steps_per_cycle(classes=row["L"], size=row["B"], per_class=row["I"], rho=row["rho"]) == row["M"]


@pytest.mark.skipif("hncm_single_seed" not in DATA, reason="the block is not in this directory")
def test_hncm_chooses_the_seed_and_its_nearest() -> None:
    block = DATA["hncm_single_seed"]
    rows = torch.tensor(block["stored_representative_embeddings"], dtype=torch.float64)
    for normalize in (True, False):
        hncm = HNCM(len(rows), normalize=normalize)
        hncm.write(np.arange(len(rows)), rows)
        chosen = hncm.choose([block["seed_class"]], block["classes_per_batch"], np.random.default_rng(0))
        assert chosen.tolist() == block["selected_classes_in_order"]


@DTYPES
@pytest.mark.skipif("regulariser" not in DATA, reason="the block is not in this directory")
def test_projection_term(dtype: torch.dtype) -> None:
    block = DATA["regulariser"]
    # two parameters, and gradients that are there already
    start = torch.tensor(block["theta_k"], dtype=dtype)
    parameters = [part.clone().requires_grad_() for part in start.split([2, 4])]
    projection = Projection(parameters, weight=block["lambda"])
    for p, theta in zip(parameters, torch.tensor(block["theta"], dtype=dtype).split([2, 4]), strict=True):
        p.data.copy_(theta)
        p.grad = torch.ones_like(p)
    projection.add_to_gradients()
    close(projection.value(), block["value"], dtype)
    close(torch.cat([p.grad - 1 for p in parameters]), block["grad_theta"], dtype)  # type: ignore[operator]


# Made by loops over samples in numpy, gradients by complex steps: loss -> value, sum of |gradient|, its first row.
# They belong to the embeddings and labels with this checksum; another golden directory has others.
HARD_INPUTS = 3231559225
HARD: dict[str, tuple[float, float, list[float]]] = {
    "contrastive": (
        1.1455646848109564,
        1.6151106433254268,
        [-0.012417047326663712, 0.028262421674066292, -0.012915617981328335, 0.0680525936836466],
    ),
    "margin": (
        0.5223093205167483,
        0.8555949487569252,
        [0.008329967751654642, 0.003134101307233158, 0.005580545221656119, 0.041901730723760494],
    ),
    "triplet": (
        1.6636734885835178,
        3.682723704093351,
        [0.03484630431542979, 0.039542512250873296, -0.0012865797910039801, 0.21885988535587114],
    ),
}


def hard_batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return the embeddings and labels of profs.json as an ordinary batch."""
    inputs = next(v["inputs"] for v in DATA["variants"] if v["variant"] == "contrastive")
    x = torch.tensor(inputs["representatives"] + inputs["examples"], dtype=dtype, requires_grad=True)
    return x, torch.tensor(inputs["representative_labels"] + inputs["example_labels"])


def checksum(x: Tensor, labels: Tensor) -> int:
    return zlib.crc32(json.dumps([x.tolist(), labels.tolist()]).encode())


def slow_hard_baseline(name: str, x: Tensor, labels: Tensor) -> Tensor:
    """Compute a "-Hard" baseline by loops: every positive, and as many negatives per anchor, the closest first."""
    unit = torch.nn.functional.normalize(x)
    costs = []
    for i in range(len(x)):
        d = [(unit[i] - unit[j]).norm() if j != i else torch.zeros(()) for j in range(len(x))]
        positives = [d[j] for j in range(len(x)) if j != i and labels[j] == labels[i]]
        negatives = sorted(d[j] for j in range(len(x)) if labels[j] != labels[i])[: len(positives)]
        if name == "contrastive":
            costs += [p**2 for p in positives] + [(1 - n).relu() ** 2 for n in negatives]
        elif name == "margin":
            costs += [(p - 1.0).relu() for p in positives] + [(1.4 - n).relu() for n in negatives]
        else:
            costs += [(p**2 - n**2 + 0.2).relu() for p in positives for n in negatives]
    return torch.stack(costs).mean()


@DTYPES
@pytest.mark.parametrize("name", HARD)
@pytest.mark.skipif(not DATA["variants"], reason="the embeddings are not in this directory")
def test_hard_baseline(name: str, dtype: torch.dtype) -> None:
    x, labels = hard_batch(dtype)
    value = create(name, mine="closest-negatives").to(dtype)(x, labels)
    value.backward()
    assert x.grad is not None
    exact, labels = hard_batch()
    slow = slow_hard_baseline(name, exact, labels)
    (gradient,) = torch.autograd.grad(slow, exact)
    close(value, slow.item(), dtype)
    close(x.grad, gradient.tolist(), dtype)
    if checksum(exact, labels) == HARD_INPUTS:
        for ours, golden in zip((value, x.grad.abs().sum(), x.grad[0]), HARD[name], strict=True):
            close(ours, golden, dtype)


@pytest.mark.skipif(GOLDEN != OURS, reason="the golden values belong to our directory")
def test_golden_values_of_the_hard_baselines_are_used() -> None:
    assert checksum(*hard_batch()) == HARD_INPUTS


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("seed", range(3))
def test_hard_baseline_equals_the_loop(name: str, seed: int) -> None:
    """Classes of different sizes, one of a single sample."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])
    x = torch.randn(10, 5, generator=g, dtype=torch.float64)
    ours = create(name, mine="closest-negatives").double()(x, labels)
    torch.testing.assert_close(ours, slow_hard_baseline(name, x, labels), rtol=1e-9, atol=1e-10)


def test_only_pair_losses_mine_and_by_known_names() -> None:
    with pytest.raises(ValueError, match=r"mine must be one of .* did you mean 'closest-negatives'"):
        create("contrastive", mine="closest-negative")
    with pytest.raises(ValueError, match="loss 'proxy-anchor' does not use pairs: remove mine"):
        create("proxy-anchor", classes=3, dim=2, mine="hardest")
