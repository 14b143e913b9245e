"""Every variant of every golden file: value and gradient, float64 at rtol 1e-9 / atol 1e-10, float32 at 1e-4 / 1e-5.

NEARFAR_GOLDEN names another directory of the same schema. A file, block or variant that is not known is a failure.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from golden_cases import GOLDEN, NOT_BUILT, VARIANTS, files, load, loss_and_options
from nearfar.geometry import cosine_matrix
from nearfar.losses import create
from nearfar.mining import multi_similarity
from nearfar.pairs import Pairs, pair_masks

TOLERANCE = {torch.float64: {"rtol": 1e-9, "atol": 1e-10}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float64", "float32"])
# what a file may hold beside its variants
BLOCKS = {"note", "variants", "num_triplets"}


def cases() -> list[Any]:
    return [
        pytest.param(file, variant, id=f"{file}-{variant['variant']}")
        for file in files()
        if file in VARIANTS
        for variant in load(file)["variants"]
    ]


def test_there_are_golden_files() -> None:
    assert files(), f"no golden files in {GOLDEN}"


@pytest.mark.parametrize("file", files())
def test_every_file_block_and_variant_is_known(file: str) -> None:
    if file in NOT_BUILT:
        assert file not in VARIANTS, f"{file} is built: take it off NOT_BUILT"
        return
    data = load(file)
    assert set(data) <= BLOCKS
    assert {v["variant"] for v in data["variants"]} <= set(VARIANTS[file])


def test_no_built_file_is_missing() -> None:
    assert set(VARIANTS) <= set(files())


@DTYPES
@pytest.mark.parametrize(("file", "variant"), cases())
def test_value_and_gradient(file: str, variant: dict[str, Any], dtype: torch.dtype) -> None:
    name, options = loss_and_options(file, variant)
    loss = create(name, **options).to(dtype)
    inputs, expected = variant["inputs"], dict(variant["expected"])
    rows = {
        key: torch.tensor(inputs[key], dtype=dtype, requires_grad=True)
        for key in ("embeddings", "anchors", "positives")
        if key in inputs
    }
    if "anchors" in rows:
        ids = torch.arange(len(rows["anchors"]))
        value = loss(rows["anchors"], ids, ref_emb=rows["positives"], ref_labels=ids)
    else:
        value = loss(rows["embeddings"], torch.tensor(inputs["labels"]))
    value.backward()
    close(value, expected.pop("loss"), dtype)
    for key, x in rows.items():
        assert x.grad is not None
        close(x.grad, expected.pop(f"grad_{key}"), dtype)
    if "grad_beta" in expected:
        close(loss.beta.grad, expected.pop("grad_beta"), dtype)
    if "mined" in expected:
        assert mined(rows["embeddings"], inputs) == expected.pop("mined")
    assert not expected, f"nobody checked {list(expected)}"


def mined(embeddings: Tensor, inputs: dict[str, Any]) -> list[dict[str, Any]]:
    pairs = Pairs(cosine_matrix(embeddings), *pair_masks(torch.tensor(inputs["labels"])))
    kept = multi_similarity(pairs, epsilon=inputs["hyper"]["epsilon"])
    return [
        {
            "anchor": i,
            "pos": kept.same[i].nonzero().flatten().tolist(),
            "neg": kept.diff[i].nonzero().flatten().tolist(),
        }
        for i in range(len(embeddings))
    ]


def close(ours: Tensor | None, golden: Any, dtype: torch.dtype) -> None:
    assert ours is not None
    torch.testing.assert_close(ours.detach(), torch.tensor(golden, dtype=dtype), **TOLERANCE[dtype])


def test_number_of_triplets() -> None:
    """The count by which the triplet loss divides."""
    for file in set(files()) & {"triplet"}:
        data = load(file)
        for kind, count in data.get("num_triplets", {}).items():
            variant = {"balanced": "profs_eq3_2_all_triplets_squared"}.get(
                kind, f"profs_eq3_2_all_triplets_squared_{kind}"
            )
            (labels,) = (torch.tensor(v["inputs"]["labels"]) for v in data["variants"] if v["variant"] == variant)
            same, diff = pair_masks(labels)
            assert int((same.sum(1) * diff.sum(1)).sum()) == count
