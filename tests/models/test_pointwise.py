from __future__ import annotations

import pytest
import torch
from torch import nn

from nearfar.models.backbones import pointwise


@pytest.fixture(autouse=True)
def one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def images(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape).to(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("count", "height", "width"), [(1, 7, 5), (2, 14, 14), (4, 7, 7), (8, 1, 3), (15, 6, 2)])
def test_value_and_gradients_equal_those_of_the_layer(count: int, height: int, width: int, bias: bool) -> None:
    x, layer = images(count, 6, height, width), nn.Conv2d(6, 9, 1, bias=bias)
    parameters = [x, *layer.parameters()]
    results = []
    for y in (pointwise.conv(layer, x, layer.weight, layer.bias), layer(x)):
        results.append([y, *torch.autograd.grad(y.square().sum(), parameters)])
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert results[0][0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("count", "height", "expected"), [(1, 7, 7), (4, 14, 7), (8, 14, 2), (2, 5, 5), (15, 7, 7)])
def test_small_batches_are_split_into_rows(
    count: int, height: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, sizes = nn.Conv2d(4, 4, 1), []
    compute = layer._conv_forward
    monkeypatch.setattr(layer, "_conv_forward", lambda x, *rest: sizes.append(x.shape) or compute(x, *rest))
    pointwise.conv(layer, images(count, 4, height, 3), layer.weight, layer.bias)
    assert sizes == [(count * expected, 4, height // expected, 3)]


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv2d(4, 4, 1), torch.randn(16, 4, 4, 4)),
        (nn.Conv2d(4, 4, 1, stride=2), torch.randn(2, 4, 4, 4)),
        (nn.Conv2d(4, 4, 1, padding=1), torch.randn(2, 4, 4, 4)),
        (nn.Conv2d(4, 4, 1, groups=2), torch.randn(2, 4, 4, 4)),
        (nn.Conv2d(4, 4, 3), torch.randn(2, 4, 4, 4)),
        (nn.Conv2d(4, 4, 1).double(), torch.randn(2, 4, 4, 4).double()),
    ],
)
def test_other_convolutions_are_those_of_torch(layer: nn.Conv2d, x: torch.Tensor) -> None:
    x = x.to(memory_format=torch.channels_last)
    assert torch.equal(pointwise.conv(layer, x, layer.weight, layer.bias), layer(x))


def test_the_usual_layout_and_several_threads_change_nothing() -> None:
    layer, x = nn.Conv2d(4, 4, 1), torch.randn(2, 4, 4, 4)
    assert torch.equal(pointwise.conv(layer, x, layer.weight, layer.bias), layer(x))
    torch.set_num_threads(2)
    x = images(2, 4, 4, 4)
    assert torch.equal(pointwise.conv(layer, x, layer.weight, layer.bias), layer(x))
