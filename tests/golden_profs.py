"""profs.json: the six losses with representatives, and which pairs they take. The rest of the file comes with PROFS."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from golden_cases import DTYPES, NOT_BUILT_BLOCKS, close, files, load
from nearfar.geometry import cosine_matrix
from nearfar.losses import create
from nearfar.mining import closest_negatives
from nearfar.pairs import Pairs, pair_masks

# variant -> loss and option of each hyper key; "lifted" and "n_pair" may be raw or normalised
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
    assert set(DATA) <= {"note", "variants", "selection"} | NOT_BUILT_BLOCKS["profs"]
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
