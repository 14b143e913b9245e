"""bspml.json: the weighted batch loss, Eq. 7. The weight sub-problem and its solver come with BSPML."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from golden_cases import DTYPES, KEYS, NOT_BUILT_BLOCKS, close, files, load, mined
from nearfar.losses import create

DATA: dict[str, Any] = load("bspml") if "bspml" in files() else {"variants": []}
VARIANTS = {"weighted_batch_loss_eq7_rho1", "weighted_batch_loss_eq7_rho0.5", "weighted_batch_loss_all_ones"}


def test_every_block_and_variant_is_known() -> None:
    assert set(DATA) <= {"note", "variants"} | NOT_BUILT_BLOCKS["bspml"]
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
