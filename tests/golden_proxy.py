"""Every variant, state entry and block of the golden files of the proxy losses, at the tolerances of test_golden."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from golden_cases import DTYPES, PROXY_VARIANTS, close, files, load, proxy_options
from nearfar.losses import ProxyISALoss, ProxyLoss, create
from nearfar.losses.proxies.multi_proxy import regularizer
from nearfar.losses.proxy_isa import Progress, progress

FILES = sorted(set(PROXY_VARIANTS) & set(files()))
INPUTS = {"embeddings", "labels", "proxies", "hyper", "normalize_embeddings", "normalize_proxies"}
CURVE = re.compile(
    r"schedule_curve_V(?P<V>[\d.]+)_k(?P<k>[\d.]+)_lambda(?P<l>[\d.]+)_tau(?P<t>[\d.]+)_learned(?P<s>[\d.]+)"
)
# golden name of a class's state -> ours
PROGRESS = {
    "E": "effective",
    "nu": "nu",
    "sigma": "sigma",
    "eta": "eta",
    "S_learned": "learned",
    "S_outlier": "outlier",
}


@pytest.mark.parametrize("file", FILES)
def test_every_block_and_variant_is_known(file: str) -> None:
    data = load(file)
    extra = set(data) - {"note", "variants"}
    assert all(CURVE.fullmatch(block) for block in extra) if file == "proxy_isa" else not extra
    assert {v["variant"] for v in data["variants"]} <= set(PROXY_VARIANTS[file])
    assert all(set(v["inputs"]) == INPUTS for v in data["variants"])


@DTYPES
@pytest.mark.parametrize(
    ("file", "variant"),
    [pytest.param(f, v, id=f"{f}-{v['variant']}") for f in FILES for v in load(f)["variants"]],
)
def test_value_gradients_and_state(file: str, variant: dict[str, Any], dtype: torch.dtype) -> None:
    name, options = proxy_options(file, variant)
    inputs, expected = variant["inputs"], dict(variant["expected"])
    loss = create(name, **(options | isa_switches(inputs["hyper"]))).to(dtype)
    assert isinstance(loss, ProxyLoss)
    with torch.no_grad():
        loss.proxies.copy_(torch.tensor(inputs["proxies"], dtype=torch.float64))
    x, labels = torch.tensor(inputs["embeddings"], dtype=dtype, requires_grad=True), torch.tensor(inputs["labels"])
    if isinstance(loss, ProxyISALoss):
        before(loss, inputs["hyper"], dtype)
        check_weights(loss, x, labels, expected, dtype)

    value = loss(x, labels)
    value.backward()
    close(value, expected.pop("loss"), dtype)
    close(x.grad, expected.pop("grad_embeddings"), dtype)
    close(loss.proxies.grad, expected.pop("grad_proxies"), dtype)

    sims = loss.class_similarities(x, labels)
    if "class_similarity" in expected:
        close(sims.matrix.T, expected.pop("class_similarity"), dtype)
    if "regulariser" in expected:
        assert sims.gram is not None
        close(regularizer(sims.gram, options["reg_eps"]), expected.pop("regulariser"), dtype)
    if isinstance(loss, ProxyISALoss):
        check_state_after(loss, expected.pop("state_after"), dtype)
    assert not expected, f"nobody checked {list(expected)}"


def isa_switches(hyper: dict[str, Any]) -> dict[str, Any]:
    """Memory and filter on from epoch 0, or not in it."""
    if "filter_on" not in hyper:
        return {}
    on = {"memory_epoch": hyper["memory_before"] is not None, "filter_epoch": hyper["filter_on"]}
    return {"memory_size": 50} | {key: 0 if value else 1 for key, value in on.items()}


def before(loss: ProxyISALoss, hyper: dict[str, Any], dtype: torch.dtype) -> None:
    loss.seen.copy_(torch.tensor(hyper["counter_before"]))
    loss.learned.copy_(torch.tensor(hyper["S_learned_before"], dtype=torch.float64))
    remembered = hyper["memory_before"]
    if remembered:
        assert all(set(entry) == {"feature", "label"} for entry in remembered)
        rows = torch.tensor([entry["feature"] for entry in remembered], dtype=dtype)
        labels = torch.tensor([entry["label"] for entry in remembered])
        loss.memory.add(rows, labels, torch.ones(len(rows), dtype=torch.bool))


def check_weights(
    loss: ProxyISALoss, x: torch.Tensor, labels: torch.Tensor, expected: dict[str, Any], dtype: torch.dtype
) -> None:
    check_progress(loss.progress(), expected.pop("class_state"), dtype)
    positive, negative, filtered = loss.similarity_weights(loss.class_similarities(x, labels))
    close(negative.scatter(0, labels[None], positive[None]).T, expected.pop("omega"), dtype)
    assert filtered.nonzero().flatten().tolist() == expected.pop("filtered_indices")


def check_progress(ours: Progress, golden: list[dict[str, float]], dtype: torch.dtype) -> None:
    assert all(set(entry) - {"n"} == set(PROGRESS) for entry in golden)
    for theirs, name in PROGRESS.items():
        close(getattr(ours, name).to(dtype), [entry[theirs] for entry in golden], dtype)


def check_state_after(loss: ProxyISALoss, golden: dict[str, Any], dtype: torch.dtype) -> None:
    golden = dict(golden)
    assert loss.seen.tolist() == golden.pop("counter")
    close(loss.progress().effective.to(dtype), golden.pop("E"), dtype)
    close(loss.learned, golden.pop("S_learned"), dtype)
    assert int(loss.memory.counts.sum()) == (golden.pop("memory_size") or 0)
    assert not golden, f"nobody checked {list(golden)}"


@DTYPES
@pytest.mark.parametrize("block", [b for b in load("proxy_isa") if CURVE.fullmatch(b)] if "proxy_isa" in FILES else [])
def test_schedule_curve(block: str, dtype: torch.dtype) -> None:
    named = CURVE.fullmatch(block)
    assert named is not None
    at = {key: float(value) for key, value in named.groupdict().items()}
    golden = load("proxy_isa")[block]
    seen = torch.tensor([entry["n"] for entry in golden])
    learned = torch.full((len(golden),), at["s"], dtype=torch.float64)
    ours = progress(seen, learned, volume=at["V"], sensitivity=at["k"], margin=at["l"], tau=at["t"])
    check_progress(ours, golden, dtype)
