"""Every variant of every golden file: value and gradient, float64 at rtol 1e-9 / atol 1e-10, float32 at 1e-4 / 1e-5.

NEARFAR_GOLDEN names another directory of the same schema. A file, block or variant that is not known is a failure.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

from golden_cases import DTYPES, GOLDEN, MODULES, OURS, VARIANTS, close, files, load, loss_and_options, mined
from nearfar.losses import create
from nearfar.ops.pairs import pair_masks

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
    assert (file in VARIANTS) != (file in MODULES)
    if file in VARIANTS:
        data = load(file)
        assert set(data) <= BLOCKS
        assert {v["variant"] for v in data["variants"]} <= set(VARIANTS[file])


@pytest.mark.skipif(GOLDEN != OURS, reason="another directory may hold a part of the files")
def test_no_file_is_missing() -> None:
    assert set(files()) == set(VARIANTS) | set(MODULES)


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


# The checks of the other modules run here too, under their own names with the module's in front.
for module in sorted({MODULES[file] for file in files() if file in MODULES}):
    for name, check in list(vars(import_module(module)).items()):
        if name.startswith("test_"):
            globals()[name.replace("test_", f"test_{module}_", 1)] = check
