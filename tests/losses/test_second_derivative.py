"""A second derivative is an error or right, never a wrong number."""

import pytest
import torch

from nearfar.losses import create
from oracles import CASES, Case, make_batch

SMOOTH = [c for c in CASES if not c.detached and c.name != "dro"]


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_second_derivative_is_refused_or_right(case: Case) -> None:
    batch = make_batch(case, "unbalanced")
    loss = create(case.name, **case.options).double()
    x, labels = batch["embeddings"].detach().requires_grad_(), batch["labels"]
    v = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    # this loss is made of plain torch operations
    is_plain = case.name == "n-pair" and not case.options.get("all_pairs")
    if not is_plain or case.options.get("normalize"):
        with pytest.raises(RuntimeError, match="not support second derivatives"):
            torch.autograd.grad(loss(x, labels), x, create_graph=True)
        return
    (g,) = torch.autograd.grad(loss(x, labels), x, create_graph=True)
    (product,) = torch.autograd.grad((g * v).sum(), x)

    def gradient(at: torch.Tensor) -> torch.Tensor:
        at = at.detach().requires_grad_()
        return torch.autograd.grad(loss(at, labels), at)[0]

    eps = 1e-6
    torch.testing.assert_close(
        product, (gradient(x + eps * v) - gradient(x - eps * v)) / (2 * eps), rtol=1e-4, atol=1e-5
    )
