"""How the golden files name things, in our words: the loss and options of each variant, and the option of each hyper
key.

Golden files write m, lambda, alpha_neg, beta_pos and so on; this is the one table that translates.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nearfar.mining import multi_similarity
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs, pair_masks
from oracle_dro import nest

OURS = Path(__file__).parent / "golden"
GOLDEN = Path(os.environ.get("NEARFAR_GOLDEN") or OURS)

TOLERANCE = {torch.float64: {"rtol": 1e-9, "atol": 1e-10}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float64", "float32"])

# Files whose checks have a module of their own, which knows their variants and blocks as strictly.
MODULES = {
    "bspml": "golden_bspml",
    "dro_kl": "golden_dro",
    "dro_kl_g": "golden_dro",
    "dro_topk": "golden_dro",
    "dro_topk_pn": "golden_dro",
    "identities": "golden_identities",
    "metrics": "golden_metrics",
    "mpa": "golden_proxy",
    "mpa_ap": "golden_proxy",
    "mpa_dw": "golden_proxy",
    "profs": "golden_profs",
    "proxy_anchor": "golden_proxy",
    "proxy_isa": "golden_proxy",
    "proxy_nca": "golden_proxy",
    "soft_triple": "golden_proxy",
}

SONG = {"form": "song"}
ANCHOR = {"form": "anchor"}
# file -> variant -> (loss, options that the variant's name stands for)
VARIANTS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "contrastive": {
        "profs_eq3_1_all_pairs_balanced": ("contrastive", {"form": "squared"}),
        "profs_eq3_1_all_pairs_unbalanced": ("contrastive", {"form": "squared"}),
        "unsquared_mean_of_nonzero": ("contrastive", {"form": "distance"}),
        "cosine_pos1_neg0_mean_of_nonzero (BSPML baseline wording)": ("contrastive", {"form": "cosine"}),
    },
    "triplet": {
        "profs_eq3_2_all_triplets_squared": ("triplet", {}),
        "profs_eq3_2_all_triplets_squared_unbalanced": ("triplet", {}),
        "unsquared_mean_of_nonzero": ("triplet", {"squared": False, "average": "nonzero"}),
        "triplet_smooth (BSPML baseline)": ("triplet", {"squared": False, "smooth": True}),
    },
    "margin": {
        "profs_eq3_3_all_pairs_mean": ("margin", {}),
        "profs_eq3_3_all_pairs_mean_unbalanced": ("margin", {}),
        "normalised_by_nonzero_pairs": ("margin", {"average": "nonzero"}),
    },
    "lifted_structured": {
        "song2016_normalized": ("lifted", SONG),
        "song2016_raw_embeddings": ("lifted", SONG),
        "dro_eq3_eq8_generalised": ("lifted", ANCHOR),
        "dro_eq3_eq8_generalised_other_lambda": ("lifted", ANCHOR),
        "dro_eq3_eq8_unbalanced_with_singleton": ("lifted", ANCHOR),
        "wang_code_scaled": ("lifted", {"form": "scaled"}),
    },
    "n_pair": {
        "plain_raw": ("n-pair", {}),
        "with_embedding_l2": ("n-pair", {}),
        "plain_normalized": ("n-pair", {}),
    },
    "angular": {
        "npair_batch": ("angular", {"batch": "n-pair"}),
        "full_batch": ("angular", {"batch": "full"}),
    },
    "multi_similarity": {
        "no_mining": ("multi-similarity", {"epsilon": None}),
        "mining_eps0.1_lambda0.5": ("multi-similarity", {}),
        "mining_eps0.1_rho1 (BSPML text)": ("multi-similarity", {}),
        "mining_unbalanced_with_singleton": ("multi-similarity", {}),
    },
}

# loss -> hyper key of the golden file -> our option
KEYS: dict[str, dict[str, str]] = {
    "contrastive": {"eps": "neg_margin", "pos_margin": "pos_margin", "neg_margin": "neg_margin"},
    "triplet": {"eps": "margin", "margin": "margin"},
    "margin": {"beta": "beta", "delta": "delta"},
    "lifted": {"alpha": "alpha", "lambda": "threshold", "alpha_neg": "scale_neg", "beta_pos": "scale_pos"},
    "n-pair": {"l2_reg": "l2_reg"},
    "angular": {"alpha_deg": "angle"},
    "multi-similarity": {
        "alpha": "alpha",
        "beta": "beta",
        "lambda": "threshold",
        "rho": "threshold",
        "epsilon": "epsilon",
    },
}

# Losses whose rows may be raw or unit: the others normalize always, and a variant that says otherwise is not theirs.
NORMALIZE_OPTION = {"lifted", "n-pair"}


# DRO: file -> its variants; whose losses, options and blocks follow from the hyper keys
DRO_VARIANTS: dict[str, set[str]] = {
    "dro_topk": {
        *(
            f"{base}_{kind}_K{k}"
            for base in ("margin", "binomial")
            for kind in ("balanced", "unbalanced")
            for k in (5, 8)
        ),
        "margin_K_larger_than_number_of_nonzero",
    },
    "dro_topk_pn": {
        *(f"{base}_{kind}_K8" for base in ("margin", "binomial") for kind in ("balanced", "unbalanced")),
        "margin_unbalanced_K_exceeds_positives",
    },
    "dro_kl": {
        *(
            f"margin_{kind}_gamma{form}"
            for kind in ("balanced", "unbalanced")
            for form in ("0.1_paper", "0.9_paper", "0.1_code_expm1")
        ),
        "binomial_balanced_gamma0.5_all_pairs",
        "robust_objective_gamma0.1_balanced",
    },
    "dro_kl_g": {
        *(f"margin_{kind}_gamma{gamma}" for kind in ("balanced", "unbalanced") for gamma in ("1", "0.1", "0.01")),
        "hap2s_e_gamma0.3",
    },
}
DRO_BLOCKS = {
    "dro_topk": {"pair_losses_margin_balanced [i,j,y,l]", "pair_losses_binomial_balanced [i,j,y,l]"},
    "dro_topk_pn": set[str](),
    "dro_kl": {"identities", "released_code_sampling_distribution"},
    "dro_kl_g": {"identities", "grad_LS_balanced", "grad_MS_two_thresholds_balanced"},
}
DRO_PAIRS = {"margin": "pair-margin", "binomial": "binomial"}
DRO_PAIR_KEYS = {"m": "m", "lambda": "threshold", "alpha_neg": "scale_neg", "beta_pos": "scale_pos"}
DRO_KEYS = {"K": "k", "gamma": "gamma", "weights": "weights", "drop_zero": "drop_zero"}


def dro_options(file: str, variant: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The loss and options of a variant of a DRO file; a KeyError says which name is not known."""
    hyper = dict(variant["inputs"]["hyper"])
    if variant["variant"].startswith("hap2s_e"):
        return "hap2s", {"gamma": hyper.pop("gamma"), "margin": hyper.pop("m"), **hyper}
    options: dict[str, Any] = {"pair": DRO_PAIRS[hyper.pop("base_loss", "margin")], "pair_options": {}}
    options["uncertainty"] = {"dro_topk": "topk", "dro_topk_pn": "topk-pn", "dro_kl": "kl", "dro_kl_g": "kl-g"}[file]
    if "reduction" in hyper:
        options["reduction"] = {"mean over anchors": "mean"}[hyper.pop("reduction")]
    for key, value in hyper.items():
        if key in DRO_PAIR_KEYS:
            options["pair_options"][DRO_PAIR_KEYS[key]] = value
        else:
            options[DRO_KEYS[key]] = value
    return "dro", nest(**options)


# Proxy losses: file -> variant -> options that the variant's name stands for; the loss is the file's name
MPA_VARIANTS: dict[str, dict[str, Any]] = {
    "K3_balanced": {},
    "K3_unbalanced": {},
    "K3_small_alpha": {},
    "K3_reg_eps_1e-5": {},
    "K1": {},
}
PROXY_VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "proxy_nca": {
        "original_negatives_only": {},
        "positive_in_denominator_scaled": {"positive_in_denominator": True},
        "cosine_scale12_negatives_only (Proxy-ISA repository form)": {"form": "cosine"},
    },
    "proxy_anchor": {"default": {}, "unbalanced": {}, "small_alpha": {}},
    "soft_triple": {"batch_mean_no_eps": {}, "official_code_reg_eps_1e-5": {}, "K1": {}},
    "mpa": MPA_VARIANTS,
    "mpa_dw": MPA_VARIANTS,
    "mpa_ap": MPA_VARIANTS,
    "proxy_isa": {
        "initial_no_memory_no_filter": {},
        "warmup_negative_weights_only": {},
        "filter_on_mid_training": {},
        "filter_on_small_alpha": {},
    },
}
# hyper key of the golden file -> our option, where they differ
PROXY_KEYS: dict[str, dict[str, str]] = {
    "soft_triple": {"lambda": "scale"},
    "proxy_isa": {"V": "volume", "k": "sensitivity", "lambda": "margin", "h": "hardness"},
}
# hyper keys of Proxy-ISA that are its state before the step
ISA_STATE = ("filter_on", "counter_before", "S_learned_before", "memory_before")


def proxy_options(file: str, variant: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The loss and options of a variant of a proxy file; a KeyError says which name is not known."""
    inputs = variant["inputs"]
    if not (inputs["normalize_embeddings"] and inputs["normalize_proxies"]):
        raise KeyError(f"{file}/{variant['variant']}: raw rows for a loss that normalizes")
    options = dict(PROXY_VARIANTS[file][variant["variant"]])
    keys, proxies = PROXY_KEYS.get(file, {}), inputs["proxies"]
    options |= {keys.get(key, key): value for key, value in inputs["hyper"].items() if key not in ISA_STATE}
    options |= {"classes": len(proxies), "dim": len(inputs["embeddings"][0])}
    if isinstance(proxies[0][0], list):
        options["proxies_per_class"] = len(proxies[0])
    return file.replace("_", "-"), options


def load(name: str) -> dict[str, Any]:
    """A golden file; one that another directory does not have (an identity may need its batch) is taken from ours."""
    path = GOLDEN / f"{name}.json"
    data: dict[str, Any] = json.loads((path if path.exists() else OURS / path.name).read_text())
    return data


def files() -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob("*.json"))


def loss_and_options(file: str, variant: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The loss and all options of a golden variant; a KeyError says which name is not known."""
    loss, options = VARIANTS[file][variant["variant"]]
    options = dict(options)
    for key, value in variant["inputs"]["hyper"].items():
        options[KEYS[loss][key]] = value
    normalize = variant["inputs"]["normalize_embeddings"]
    if loss in NORMALIZE_OPTION and options.get("form", "song") == "song":
        options["normalize"] = normalize
    elif not normalize:
        raise KeyError(f"{file}/{variant['variant']}: raw rows for a loss that normalizes")
    return loss, options


def close(ours: Tensor | float | None, golden: Any, dtype: torch.dtype = torch.float64) -> None:
    """Equal within the tolerance of the dtype."""
    assert ours is not None
    ours = torch.as_tensor(ours, dtype=dtype).detach()
    torch.testing.assert_close(ours, torch.tensor(golden, dtype=dtype), **TOLERANCE[dtype])


def mined(embeddings: Tensor, inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """What multi-similarity mining keeps, in the golden files' form."""
    pairs = Pairs(cosine_matrix(embeddings), *pair_masks(torch.tensor(inputs["labels"])))
    kept = multi_similarity(pairs, epsilon=inputs["hyper"]["epsilon"])
    masks = {"pos": kept.same, "neg": kept.diff}
    return [
        {"anchor": i} | {name: mask[i].nonzero().flatten().tolist() for name, mask in masks.items()}
        for i in range(len(embeddings))
    ]
