import pytest
import torch

from nearfar.ops.geometry import (
    chord,
    cosine_matrix,
    distance_matrix,
    dot_matrix,
    negative_distance_matrix,
    safe_sqrt,
    unit,
)

MATRICES = [dot_matrix, cosine_matrix, distance_matrix, negative_distance_matrix]


def rows(n: int = 6, d: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_matrices_are_what_they_say() -> None:
    x, y = rows(), rows(5, seed=1)
    for i in range(len(x)):
        for j in range(len(y)):
            dot = float(x[i] @ y[j])
            cosine = dot / float(x[i].norm() * y[j].norm())
            assert dot_matrix(x, y)[i, j] == pytest.approx(dot)
            assert cosine_matrix(x, y)[i, j] == pytest.approx(cosine)
            assert distance_matrix(x, y)[i, j] == pytest.approx(float((x[i] - y[j]).norm()))
            assert negative_distance_matrix(x, y)[i, j] == pytest.approx(-((2 - 2 * cosine) ** 0.5))
            assert chord(cosine_matrix(x, y))[i, j] == pytest.approx((2 - 2 * cosine) ** 0.5)


@pytest.mark.parametrize("matrix", MATRICES)
def test_against_itself_equals_against_a_copy(matrix: object) -> None:
    """One product on the backward pass must give what two give."""
    g = rows(6, 6, seed=2).fill_diagonal_(0)  # the diagonal has no gradient in one form and rounding in the other
    grads = []
    for copy in (False, True):
        x = rows().requires_grad_()
        s = matrix(x, x.clone() if copy else None)  # type: ignore[operator]
        (s * g).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("matrix", MATRICES)
def test_gradcheck(matrix: object) -> None:
    off = ~torch.eye(5, dtype=torch.bool)
    assert torch.autograd.gradcheck(lambda x: matrix(x)[off], rows(5, 3).requires_grad_())  # type: ignore[operator]
    assert torch.autograd.gradcheck(matrix, (rows(4, 3).requires_grad_(), rows(5, 3, seed=1).requires_grad_()))


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_parallel_and_zero_rows_have_finite_gradients(matrix: object, dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [2.0, 4.0], [-1.0, -2.0], [0.0, 0.0], [0.0, 0.0]], dtype=dtype)
    x.requires_grad_()
    matrix(x).sum().backward()  # type: ignore[operator]
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_a_zero_row_stays_zero_without_gradient() -> None:
    x = torch.zeros(1, 3, requires_grad=True)
    u = unit(x)
    u.sum().backward()
    assert (u == 0).all()
    assert (x.grad == 0).all()


def test_unit_of_very_small_and_large_rows() -> None:
    for scale in (1e-15, 1e-8, 1.0, 1e8, 1e15):
        torch.testing.assert_close(unit(torch.tensor([[3.0, 4.0]]) * scale), torch.tensor([[0.6, 0.8]]))


def test_safe_sqrt_of_nothing_and_below() -> None:
    x = torch.tensor([-1.0, 0.0, 4.0], requires_grad=True)
    root = safe_sqrt(x)
    root.sum().backward()
    assert root.tolist() == [0, 0, 2]
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 0.25]


def test_second_derivatives_are_refused_not_wrong() -> None:
    x = rows().requires_grad_()
    with pytest.raises(RuntimeError, match="not support second derivatives"):
        torch.autograd.grad(unit(x).square().sum() + unit(x).sum(), x, create_graph=True)


def test_the_matrix_can_be_used_transposed() -> None:
    x = rows().requires_grad_()
    w = rows(6, 6, seed=3)
    (g,) = torch.autograd.grad((cosine_matrix(x).T * w).sum(), x)
    (expected,) = torch.autograd.grad((cosine_matrix(x) * w.T).sum(), x)
    torch.testing.assert_close(g, expected)
