"""How the golden files name things, in our words: the loss and options of each variant, and the option of each hyper
key.

Golden files write m, lambda, alpha_neg, beta_pos and so on; this is the one table that translates.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

GOLDEN = Path(os.environ.get("NEARFAR_GOLDEN", Path(__file__).parent / "golden"))

# Files of methods that are not built yet. The list shrinks to nothing; a file that is neither here nor below is a
# failure.
NOT_BUILT = {
    "bspml",
    "dro_kl",
    "dro_kl_g",
    "dro_topk",
    "dro_topk_pn",
    "identities",
    "metrics",
    "mpa",
    "mpa_ap",
    "mpa_dw",
    "profs",
    "proxy_anchor",
    "proxy_isa",
    "proxy_nca",
    "soft_triple",
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

# Losses whose rows may be raw or unit: the others normalise always, and a variant that says otherwise is not theirs.
NORMALIZE_OPTION = {"lifted", "n-pair"}


def load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
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
        raise KeyError(f"{file}/{variant['variant']}: raw rows for a loss that normalises")
    return loss, options
