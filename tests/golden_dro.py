"""Every variant and every other block of the golden files of DRO: value, gradient, p, selected pairs, identities.

An entry that nobody checks is a failure. NEARFAR_GOLDEN names another directory of the same schema.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from golden_cases import DRO_BLOCKS, DRO_VARIANTS, DTYPES, close, dro_options, files, load
from nearfar.losses import create
from nearfar.losses.dro import TopK
from nearfar.losses.pair_batch import PairBatch
from nearfar.ops.pairs import pair_masks
from oracle_dro import create_dro

MS_ALPHA, MS_BETA = 2.0, 5.0  # of grad_MS_two_thresholds_balanced, which does not say; its numbers do
FILES = [file for file in files() if file in DRO_VARIANTS]


def variants() -> list[Any]:
    return [
        pytest.param(file, variant, id=f"{file}-{variant['variant']}")
        for file in FILES
        for variant in load(file)["variants"]
    ]


def batch_of(inputs: dict[str, Any], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    assert inputs["normalize_embeddings"]  # our pair losses always do
    return torch.tensor(inputs["embeddings"], dtype=dtype, requires_grad=True), torch.tensor(inputs["labels"])


def balanced(file: str, name: str) -> tuple[Tensor, Tensor]:
    (variant,) = (v for v in load(file)["variants"] if v["variant"] == name)
    return batch_of(variant["inputs"])


def gradient(value: Tensor, x: Tensor) -> Tensor:
    (grad,) = torch.autograd.grad(value, x)
    return grad


def unordered(matrix: Tensor, rows: list[list[Any]]) -> Tensor:
    """The entries of both directions of the pairs of [[i, j, ...], ...], added."""
    i, j = torch.tensor([row[:2] for row in rows]).T
    return matrix[i, j] + matrix[j, i]


@pytest.mark.parametrize("file", FILES)
def test_every_block_and_variant_is_known(file: str) -> None:
    data = load(file)
    assert set(data) <= DRO_BLOCKS[file] | {"note", "variants"}
    assert {v["variant"] for v in data["variants"]} <= DRO_VARIANTS[file]


@DTYPES
@pytest.mark.parametrize(("file", "variant"), variants())
def test_value_gradient_and_what_else_it_says(file: str, variant: dict[str, Any], dtype: torch.dtype) -> None:
    inputs, expected = variant["inputs"], dict(variant["expected"])
    x, labels = batch_of(inputs, dtype)
    name, options = dro_options(file, variant)
    loss: Any = create(name, **options)
    value = (loss.robust_value if variant["variant"].startswith("robust_objective") else loss)(x, labels)
    close(value, expected.pop("loss"), dtype)
    close(gradient(value, x), expected.pop("grad_embeddings"), dtype)
    for key in list(expected):
        CHECKS[key](loss, x, labels, inputs["hyper"], expected.pop(key), dtype)


def check_ordered(
    loss: Any, x: Tensor, labels: Tensor, hyper: dict[str, Any], golden: float, dtype: torch.dtype
) -> None:
    losses = pair_losses(loss, x, labels)
    same, diff = pair_masks(labels)
    if isinstance(loss.uncertainty, TopK):
        close(losses[same | diff].topk(2 * hyper["K"]).values.mean(), golden, dtype)
    else:
        close(torch.cat([losses[side].topk(hyper["K"]).values for side in (same, diff)]).mean(), golden, dtype)


def check_selected(loss: Any, x: Tensor, labels: Tensor, hyper: Any, golden: list[Any], dtype: torch.dtype) -> None:
    p = loss.weights_of(x, labels)
    chosen = [(i, j) for i in range(len(p)) for j in range(i + 1, len(p)) if p[i, j] + p[j, i] > 0]
    if dtype == torch.float64:
        losses = pair_losses(loss, x, labels)
        chosen.sort(key=lambda pair: -losses[pair].item())
        assert [list(pair) for pair in chosen] == [row[:2] for row in golden]
    assert sorted(chosen) == sorted((i, j) for i, j, _ in golden)
    assert all((labels[i] == labels[j]) == (y == 1) for i, j, y in golden)
    close(unordered(p, golden), [1 / hyper["K"]] * hyper["K"], dtype)


def check_p(loss: Any, x: Tensor, labels: Tensor, hyper: Any, golden: list[Any], dtype: torch.dtype) -> None:
    close(unordered(loss.weights_of(x, labels), golden), [row[3] for row in golden], dtype)
    assert len(golden) == len(labels) * (len(labels) - 1) // 2
    assert all((labels[i] == labels[j]) == (y == 1) for i, j, y, _ in golden)


def check_p_ordered(loss: Any, x: Tensor, labels: Tensor, hyper: Any, golden: list[Any], dtype: torch.dtype) -> None:
    wanted = torch.zeros(len(labels), len(labels), dtype=dtype)
    for i, j, p in golden:
        wanted[i, j] = p
    close(loss.weights_of(x, labels) * len(labels), wanted.tolist(), dtype)


def check_f(loss: Any, x: Tensor, labels: Tensor, hyper: Any, golden: float, dtype: torch.dtype) -> None:
    close(loss.robust_value(x, labels), golden, dtype)


def check_penalized(loss: Any, x: Tensor, labels: Tensor, hyper: Any, golden: float, dtype: torch.dtype) -> None:
    """sum p l - gamma KL(p || uniform), uniform over the pairs that can have weight."""
    p, losses = loss.weights_of(x, labels), pair_losses(loss, x, labels)
    same, diff = pair_masks(labels)
    support = (same | diff) if hyper["weights"] == "softmax_all" else (same | diff) & (losses > 0)
    log_ratio = (p * support.sum())[support].clamp_min(1e-300).log()
    close((p * losses).sum() - hyper["gamma"] * (p[support] * log_ratio).sum(), golden, dtype)
    close(loss.robust_value(x, labels), golden, dtype)


def check_sum(loss: Any, x: Tensor, labels: Tensor, hyper: Any, golden: float, dtype: torch.dtype) -> None:
    options = loss.options
    options["uncertainty"] |= {"reduction": "sum"}
    close(create("dro", **options)(x, labels), golden, dtype)


def check_num_pairs(loss: Any, x: Tensor, labels: Tensor, hyper: Any, golden: int, dtype: torch.dtype) -> None:
    same, diff = pair_masks(labels)
    assert (same | diff).sum() == 2 * golden


def check_num_nonzero(loss: Any, x: Tensor, labels: Tensor, hyper: Any, golden: int, dtype: torch.dtype) -> None:
    same, diff = pair_masks(labels)
    assert ((pair_losses(loss, x, labels) > 0) & (same | diff)).sum() == 2 * golden
    assert hyper["K"] > golden


def check_num_positives(loss: Any, x: Tensor, labels: Tensor, hyper: Any, golden: int, dtype: torch.dtype) -> None:
    same, _ = pair_masks(labels)
    assert same.sum() == 2 * golden
    assert hyper["K"] // 2 > golden
    p = loss.weights_of(x, labels)
    assert (p[same] > 0).all()
    close(p[same].sum(), 0.5, dtype)


CHECKS: dict[str, Callable[..., None]] = {
    "loss_with_2K_ordered_pairs": check_ordered,
    "selected_unordered_pairs": check_selected,
    "p [i,j,y,p]": check_p,
    "p_ordered [i,j,p]": check_p_ordered,
    "robust_value F = gamma log mean exp(l/gamma)": check_f,
    "sum p l - gamma KL(p||uniform) (must equal robust_value)": check_penalized,
    "loss_sum_over_anchors": check_sum,
    "num_pairs": check_num_pairs,
    "num_nonzero": check_num_nonzero,
    "num_unordered_positives": check_num_positives,
}


def pair_losses(loss: Any, x: Tensor, labels: Tensor) -> Tensor:
    """The loss of every pair [B, B], by the pair loss alone."""
    return loss.pair.elementwise(loss.pair.compare(PairBatch(x.detach(), labels)))


@pytest.mark.parametrize(("base", "pair"), [("margin", "pair-margin"), ("binomial", "binomial")])
def test_pair_losses(base: str, pair: str) -> None:
    for file in set(FILES) & {"dro_topk"}:
        golden = load(file)[f"pair_losses_{base}_balanced [i,j,y,l]"]
        x, labels = balanced(file, f"{base}_balanced_K5")
        losses = pair_losses(create("dro", pair=pair), x, labels)
        close(unordered(losses, golden) / 2, [row[3] for row in golden])
        assert all((labels[i] == labels[j]) == (y == 1) for i, j, y, _ in golden)


def test_released_sampling() -> None:
    """The pairs that the released code keeps, their p, and what its sampled loss is on average."""
    for file in set(FILES) & {"dro_kl"}:
        block = load(file)["released_code_sampling_distribution"]
        x, labels = batch_of(block["inputs"])
        hyper, expected = dict(block["inputs"]["hyper"]), dict(block["expected"])
        loss: Any = create_dro(
            pair_options={"m": hyper.pop("m"), "threshold": hyper.pop("lambda")},
            uncertainty="kl",
            weights="expm1",
            gamma=hyper.pop("gamma"),
            truncate=hyper.pop("K_unordered"),
            sampling=True,
        )
        draws = hyper.pop("draws_with_replacement")
        assert draws == 2 * loss.uncertainty.truncate
        assert not hyper
        p = loss.weights_of(x, labels)
        kept = expected.pop("kept_ordered_pairs [i,j,p]")
        assert expected.pop("number_kept") == len(kept) == torch.count_nonzero(p)
        close(p[tuple(torch.tensor([row[:2] for row in kept]).T)], [row[2] for row in kept])
        mean = expected.pop("expected_value_of_sampled_loss")
        losses = pair_losses(loss, x, labels)
        close((p * losses).sum(), mean)
        index, share = loss.draw(p)
        assert index.shape == share.shape == (draws,)
        with torch.no_grad():
            sampled = torch.stack([loss(x, labels) for _ in range(2000)])
        assert (sampled.mean() - mean).abs() < 5 * sampled.std() / math.sqrt(len(sampled))
        assert not expected


def test_danskin() -> None:
    for file in set(FILES) & {"dro_kl"}:
        (golden,) = load(file)["identities"].items()
        assert golden[0] == "danskin_max_abs_diff(grad sum p l, grad F)"
        x, labels = balanced(file, "margin_balanced_gamma0.1_paper")
        loss: Any = create_dro(uncertainty="kl", gamma=0.1)
        difference = gradient(loss(x, labels), x) - gradient(loss.robust_value(x, labels), x)
        assert difference.abs().max() < 1e-15


def test_recoveries() -> None:
    """Lifted structure, two-threshold multi-similarity and HAP2S_E out of KL-G, to 1e-12."""
    for file in set(FILES) & {"dro_kl_g"}:
        data = load(file)
        golden = dict(data["identities"])
        x, labels = balanced(file, "margin_balanced_gamma1")

        def grouped(m: float, **options: Any) -> Tensor:
            loss = create_dro(pair_options={"m": m}, uncertainty="kl-g", reduction="sum", **options)
            return gradient(loss(x, labels), x)  # noqa: B023

        ls = gradient(create("lifted", form="anchor")(x, labels), x)
        close(ls, data["grad_LS_balanced"])
        assert (grouped(5.0, gamma=1.0) - ls).abs().max() < 1e-12
        assert golden.pop(next(k for k in golden if k.startswith("LS:"))) < 1e-12

        mine = grouped(2.0, gamma=1 / MS_ALPHA, gamma_neg=1 / MS_BETA, dummy=True)
        thresholds = {"threshold": 2.5, "neg_threshold": -1.5}
        one = {"alpha": MS_ALPHA, "beta": MS_BETA, "epsilon": None}
        ms = gradient(len(x) * create("multi-similarity", **one, **thresholds)(x, labels), x)
        close(ms, data["grad_MS_two_thresholds_balanced"])
        assert (mine - ms).abs().max() < 1e-12
        assert golden.pop(next(k for k in golden if k.startswith("MS: max"))) < 1e-12
        single = gradient(len(x) * create("multi-similarity", **one, threshold=0.5)(x, labels), x)
        close((mine - single).abs().max(), golden.pop(next(k for k in golden if k.startswith("MS: same against"))))

        hap2s = gradient(create("hap2s", gamma=0.3, margin=3.0)(x, labels), x)
        assert (grouped(5.0, gamma=0.3) - len(x) * hap2s).abs().max() < 1e-12
        assert golden.pop(next(k for k in golden if k.startswith("HAP2S_E"))) < 1e-12
        assert not golden
