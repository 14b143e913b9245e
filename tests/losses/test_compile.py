"""Every loss is one graph for torch.compile, and the compiled loss is the loss."""

from __future__ import annotations

import pytest
import torch

import nearfar.losses as losses
from compiling import needs_compiler
from oracles import CASES, Case, make_batch, value_and_grads


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def check(case: Case, kind: str, backend: str, rtol: float) -> None:
    loss = losses.create(case.name, **case.options).double()
    batch = make_batch(case, kind)
    params = dict(loss.named_parameters())
    wanted, wanted_grads = value_and_grads(loss, batch, params)

    compiled = torch.compile(loss, fullgraph=True, backend=backend, dynamic=False)
    value, grads = value_and_grads(compiled, batch, params)

    torch.testing.assert_close(value, wanted, rtol=rtol, atol=1e-10)
    torch.testing.assert_close(grads, wanted_grads, rtol=rtol, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_graph(case: Case) -> None:
    check(case, "unbalanced", "eager", rtol=1e-9)


# One form of a loss is enough for the other inputs, and one loss for the labels: they are parsed before the form
# matters, and before the loss.
@pytest.mark.parametrize("case", [c for c in CASES if not c.options], ids=str)
@pytest.mark.parametrize("kind", ["weighted-references", "weighted-representatives"])
def test_one_graph_with_every_input(case: Case, kind: str) -> None:
    check(case, kind, "eager", rtol=1e-9)


@pytest.mark.parametrize("kind", ["multi-hot", "multi-hot-references", "huge-ids"])
def test_one_graph_with_every_kind_of_label(kind: str) -> None:
    check(default_case("supcon"), kind, "eager", rtol=1e-9)


def default_case(name: str) -> Case:
    return next(c for c in CASES if c.name == name and not c.options)


@needs_compiler
def test_inductor() -> None:
    check(default_case("triplet"), "weighted", "inductor", rtol=1e-7)
