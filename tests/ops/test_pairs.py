import math

import pytest
import torch

from nearfar.ops.pairs import Pairs, log_sum_exp, pair_masks, ratio, row_count, same_kind, softplus


def test_masks_leave_out_self_and_nothing_else() -> None:
    same, diff = pair_masks(torch.tensor([0, 0, 1]))
    assert same.tolist() == [[False, True, False], [True, False, False], [False] * 3]
    assert diff.tolist() == [[False, False, True], [False, False, True], [True, True, False]]


def test_masks_against_references_have_no_self() -> None:
    same, diff = pair_masks(torch.tensor([0, 1]), torch.tensor([0, 1, 0]))
    assert same.tolist() == [[True, False, True], [False, True, False]]
    assert torch.equal(diff, ~same)


@pytest.mark.parametrize("base", [2**24, 2**31, 2**53, 2**62, -(2**63)])
def test_neighboring_ids_stay_apart(base: int) -> None:
    ids = torch.tensor([base, base + 1, base])
    assert same_kind(ids, ids).tolist() == [[True, False, True], [False, True, False], [True, False, True]]


def test_multi_hot_rows_are_the_same_kind_if_they_share_a_label() -> None:
    rows = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0]])
    same, diff = pair_masks(rows)
    assert same.nonzero().tolist() == [[0, 1], [0, 2], [1, 0], [2, 0]]
    assert not diff.diagonal().any(), "a row without any label is still not different from itself"
    assert diff[3].tolist() == [True, True, True, False]


def test_log_sum_exp_is_the_formula() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(5, 7, dtype=torch.float64, generator=g, requires_grad=True)
    mask = torch.rand(5, 7, generator=g) > 0.4
    w = torch.rand(7, dtype=torch.float64, generator=g)
    for one in (False, True):
        expected = [
            math.log(one + sum(float(w[j]) * math.exp(z[i, j].item()) for j in range(7) if mask[i, j]))
            for i in range(5)
        ]
        torch.testing.assert_close(log_sum_exp(z, mask, weights=w, plus_one=one), torch.tensor(expected, dtype=z.dtype))
        assert torch.autograd.gradcheck(lambda z, one=one: log_sum_exp(z, mask, weights=w, plus_one=one), z)


@pytest.mark.parametrize("plus_one", [False, True])
def test_log_sum_exp_of_extremes(plus_one: bool) -> None:
    z = torch.tensor([[1e4, 1e4], [-1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    out = log_sum_exp(z, mask, plus_one=plus_one)
    large, small, empty = out.tolist()
    assert large == pytest.approx(1e4 + math.log(2))
    assert small == pytest.approx(0 if plus_one else -1e4 + math.log(2))
    assert empty == (0 if plus_one else -math.inf)
    out[:2].sum().backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


def test_gradient_of_an_empty_row_is_zero() -> None:
    z = torch.zeros(1, 3, requires_grad=True)
    torch.exp(log_sum_exp(z, torch.zeros(1, 3, dtype=torch.bool))).sum().backward()
    assert z.grad is not None
    assert (z.grad == 0).all()


def test_means_are_weighted_and_empty_ones_are_zero_with_a_graph() -> None:
    sim = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    yes, no = torch.ones(2, 2, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.bool)
    pairs = Pairs(sim, yes, no, torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
    assert pairs.mean(sim).item() == pytest.approx((1 + 2 + 3 * 3 + 3 * 4) / 8)
    assert pairs.anchor_mean(sim[:, 0]).item() == pytest.approx((1 + 9) / 4)
    assert pairs.row_mean(sim, yes).tolist() == [1.5, 3.5]
    empty = pairs.mean(sim, no) + Pairs(sim, yes, no).mean(sim, no) + pairs.anchor_mean(sim[:, 0], no[0])
    assert empty.item() == 0
    empty.backward()
    assert sim.grad is not None
    assert (sim.grad == 0).all()


def test_counts_and_ratio() -> None:
    mask = torch.rand(300, 700) > 0.5
    assert torch.equal(row_count(mask).long(), mask.sum(1))
    assert ratio(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0])).tolist() == [0.5, 0]


def test_softplus_keeps_its_slope() -> None:
    x = torch.tensor([25.0, -800.0, 800.0], dtype=torch.float64, requires_grad=True)
    softplus(x).sum().backward()
    assert x.grad is not None
    assert float(1 - x.grad[0]) == pytest.approx(math.exp(-25), rel=1e-4)
    assert x.grad[1:].tolist() == [0, 1]
