import pytest
import torch

from nearfar.losses import create
from nearfar.ops import triplets
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import pair_masks, row_count


@pytest.mark.parametrize("nonzero", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_sorting_positives_equals_a_pass_for_each(
    monkeypatch: pytest.MonkeyPatch, weighted: bool, nonzero: bool
) -> None:
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (40,), generator=g)
    w = torch.rand(40, dtype=torch.float64, generator=g).mul_(torch.rand(40, generator=g) > 0.2) if weighted else None
    loss = create("triplet", average="nonzero" if nonzero else "all")
    results = []
    for first in (10**9, 1):
        monkeypatch.setattr(triplets, "SORT_FROM", first)
        x = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        value = loss(x, labels, weights=w)
        value.backward()
        results.append((value.detach(), x.grad))
    torch.testing.assert_close(*(r[0] for r in results), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*(r[1] for r in results), rtol=1e-12, atol=1e-12)


def test_one_class_with_many_positives_takes_the_sorted_way_and_is_exact() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(150, 6, dtype=torch.float64, generator=g)
    labels = (torch.arange(150) >= 100).long()
    assert int(pair_masks(labels)[0].sum(1).max()) >= triplets.SORT_FROM
    s = cosine_matrix(x)
    same, diff = pair_masks(labels)
    t = 0.2 + 2 * (s[:, None, :] - s[:, :, None])
    there = same[:, :, None] & diff[:, None, :]
    torch.testing.assert_close(create("triplet")(x, labels), t[there].relu().mean(), rtol=1e-12, atol=0)


def test_second_derivative_is_an_error() -> None:
    x = torch.randn(6, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="not support second derivatives"):
        torch.autograd.grad(create("triplet")(x, torch.arange(6) // 2), x, create_graph=True)


def test_semi_hard_negatives_count_the_positives_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def count(mask: torch.Tensor) -> torch.Tensor:
        counted.append(mask)
        return row_count(mask)

    monkeypatch.setattr(triplets, "row_count", count)
    same, diff = pair_masks(torch.tensor([0, 0, 1, 1]))
    sim = torch.tensor([[1.0, 0.5, 0.4, 0.6], [0.5, 1.0, 0.1, 0.2], [0.4, 0.1, 1.0, 0.3], [0.6, 0.2, 0.3, 1.0]])
    found = triplets.semi_hard_negatives(sim, same, diff)
    assert found.tolist() == [[-1, 2, -1, -1], [3, -1, -1, -1], [-1, -1, -1, 1], [-1, -1, 1, -1]]
    assert len(counted) == 1
