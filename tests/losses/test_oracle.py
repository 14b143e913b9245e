"""Fast loss = slow loss, in value and gradient, and the slow losses = the golden values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import nearfar.losses as losses
from oracles import CASES, Case, make_batch, oracle, value_and_grads

GOLDEN = Path(__file__).parent.parent / "golden"

# (file, start of the variant's name) -> (loss, options, golden key of each hyper-parameter -> option)
GOLDEN_LOSSES: dict[tuple[str, str], tuple[str, dict[str, Any], dict[str, str]]] = {
    ("contrastive", "profs"): ("contrastive", {}, {"eps": "neg_margin"}),
    ("contrastive", "unsquared"): ("contrastive", {"form": "distance"}, {}),
    ("contrastive", "cosine"): ("contrastive", {"form": "cosine"}, {}),
    ("triplet", "profs"): ("triplet", {}, {"eps": "margin"}),
    ("triplet", "unsquared"): ("triplet", {"squared": False, "average": "nonzero"}, {}),
    ("triplet", "triplet_smooth"): ("triplet", {"squared": False, "smooth": True}, {}),
    ("margin", "profs"): ("margin", {}, {}),
    ("margin", "normalised"): ("margin", {"average": "nonzero"}, {}),
    ("lifted_structured", "song2016_n"): ("lifted", {"normalize": True}, {}),
    ("lifted_structured", "song2016_raw"): ("lifted", {}, {}),
    ("lifted_structured", "dro"): ("lifted", {"form": "anchor"}, {"lambda": "threshold"}),
    ("lifted_structured", "wang"): (
        "lifted",
        {"form": "scaled"},
        {"alpha_neg": "scale_neg", "beta_pos": "scale_pos"},
    ),
    ("n_pair", "plain_raw"): ("n-pair", {}, {}),
    ("n_pair", "with"): ("n-pair", {}, {}),
    ("n_pair", "plain_normalized"): ("n-pair", {"normalize": True}, {}),
    ("angular", "npair"): ("angular", {"batch": "n-pair"}, {"alpha_deg": "angle"}),
    ("angular", "full"): ("angular", {}, {"alpha_deg": "angle"}),
    ("multi_similarity", "no_mining"): ("multi-similarity", {"epsilon": None}, {"lambda": "threshold"}),
    ("multi_similarity", "mining"): ("multi-similarity", {}, {"lambda": "threshold"}),
    ("bspml", "weighted"): ("multi-similarity", {"weighting": "outside"}, {"rho": "threshold"}),
    ("dro_kl_g", "hap2s_e"): ("hap2s", {}, {"m": "margin"}),
    ("profs", "contrastive"): ("contrastive", {}, {"eps": "neg_margin"}),
    ("profs", "triplet"): ("triplet", {}, {"eps": "margin"}),
    ("profs", "margin"): ("margin", {}, {}),
    ("profs", "lifted"): ("lifted", {"normalize": True}, {}),
    ("profs", "n_pair"): ("n-pair", {}, {}),
    ("profs", "angular"): ("angular", {}, {"alpha_deg": "angle"}),
}


def golden_variants() -> list[Any]:
    out = []
    for (file, start), loss in GOLDEN_LOSSES.items():
        for variant in json.loads((GOLDEN / f"{file}.json").read_text())["variants"]:
            if variant["variant"].startswith(start):
                out.append(pytest.param(variant, *loss, id=f"{file}-{variant['variant'].split()[0]}"))
    return out


def tensor(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def golden_batch(inputs: dict[str, Any]) -> dict[str, Any]:
    """The three layouts of the golden files as one call."""
    if "anchors" in inputs:
        n = len(inputs["anchors"])
        return {
            "embeddings": tensor(inputs["anchors"] + inputs["positives"]),
            "labels": torch.arange(n).repeat(2),
        }
    if "representatives" in inputs:
        return {
            "embeddings": tensor(inputs["representatives"] + inputs["examples"]),
            "labels": torch.tensor(inputs["representative_labels"] + inputs["example_labels"]),
            "representatives": len(inputs["representatives"]),
        }
    batch = {"embeddings": tensor(inputs["embeddings"]), "labels": torch.tensor(inputs["labels"])}
    if "sample_weights" in inputs:
        batch["weights"] = tensor(inputs["sample_weights"])
    return batch


def golden_gradient(expected: dict[str, Any]) -> Tensor:
    for parts in (["embeddings"], ["anchors", "positives"], ["representatives", "examples"]):
        if f"grad_{parts[0]}" in expected:
            return torch.cat([tensor(expected[f"grad_{part}"]) for part in parts])
    raise KeyError("no gradient in the golden file")


@pytest.mark.parametrize(("variant", "name", "options", "renamed"), golden_variants())
def test_oracles_match_golden(
    variant: dict[str, Any], name: str, options: dict[str, Any], renamed: dict[str, str]
) -> None:
    hyper = {renamed.get(k, k): v for k, v in variant["inputs"]["hyper"].items()}
    slow = oracle(name, options | hyper)
    batch = golden_batch(variant["inputs"])
    expected = variant["expected"]
    params = {"beta": tensor([hyper["beta"]]).requires_grad_()} if name == "margin" else {}

    value, grads = value_and_grads(lambda *a, **k: slow(*a, params=params, **k), batch, params)

    torch.testing.assert_close(value, tensor(expected["loss"]), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(grads["embeddings"], golden_gradient(expected), rtol=1e-9, atol=1e-10)
    if name == "margin":
        torch.testing.assert_close(grads["beta"], tensor(expected["grad_beta"]), rtol=1e-9, atol=1e-10)


def test_every_golden_variant_of_these_losses_is_used() -> None:
    used = {p.id for p in golden_variants()}
    for file in {file for file, _ in GOLDEN_LOSSES} - {"dro_kl_g"}:  # whose other variants are DRO's
        for variant in json.loads((GOLDEN / f"{file}.json").read_text())["variants"]:
            assert f"{file}-{variant['variant'].split()[0]}" in used


def params_of(loss: torch.nn.Module) -> dict[str, Tensor]:
    """The loss's parameters, moved away from their equal initial values."""
    for i, (_, p) in enumerate(sorted(loss.named_parameters())):
        g = torch.Generator().manual_seed(i)
        p.data += 0.1 * torch.randn(p.shape, generator=g, dtype=p.dtype)
    return dict(loss.named_parameters())


@pytest.mark.parametrize(("case", "kind"), [pytest.param(c, k, id=f"{c}-{k}") for c in CASES for k in c.kinds])
def test_fast_equals_slow(case: Case, kind: str) -> None:
    loss = losses.create(case.name, **case.options).double()
    params = params_of(loss)
    slow_params = {k: p.detach().clone().requires_grad_(p.requires_grad) for k, p in params.items()}
    slow = oracle(case.name, case.options)
    for seed in range(2):
        batch = make_batch(case, kind, seed)

        value, grads = value_and_grads(loss, batch, params)
        wanted, wanted_grads = value_and_grads(lambda *a, **k: slow(*a, params=slow_params, **k), batch, slow_params)

        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(grads, wanted_grads, rtol=1e-9, atol=1e-10)


def test_batches_are_worth_something() -> None:
    """On the random batches no oracle is zero, and none is flat on more than one kind of them."""
    for case in CASES:
        flat = []
        for kind in case.kinds:
            value, grads = value_and_grads(oracle(case.name, case.options), make_batch(case, kind))
            assert value.isfinite()
            assert value.abs() > 1e-3, f"{case} is {value} on {kind}"
            if grads["embeddings"].abs().max() < 1e-4:
                flat.append(kind)
        assert len(flat) < 2, f"{case} is flat on {flat}"
