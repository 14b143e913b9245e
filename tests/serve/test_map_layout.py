from __future__ import annotations

import pytest
import torch

from nearfar.serve.map_layout import find_neighbors, lay_out_map, relax


@pytest.mark.parametrize("landmarks", [60, 1000])
def test_classes_stay_together_with_and_without_landmarks(landmarks: int) -> None:
    labels = torch.arange(300) % 6
    rows = 4 * torch.randn(6, 16)[labels] + 0.5 * torch.randn(300, 16) + 10
    places = lay_out_map(rows, landmarks=landmarks)
    assert places.shape == (300, 2)
    assert float(places.abs().max()) == pytest.approx(1)
    assert float(places[:, 0].std()) >= float(places[:, 1].std())
    far = torch.cdist(places, places).fill_diagonal_(9)
    assert (labels[far.argmin(1)] == labels).float().mean() > 0.95
    assert torch.equal(places, lay_out_map(rows, landmarks=landmarks))


def test_relax_attracts_neighbors_and_repels_others() -> None:
    generator = torch.Generator().manual_seed(0)
    near = (torch.arange(200)[:, None] + torch.tensor([1, 2, 199, 198])) % 200
    start = 5 * torch.randn(200, 2, generator=generator)
    end = relax(start, near, generator)

    def ratio(y: torch.Tensor) -> float:
        linked = (y[near] - y[:, None]).norm(dim=2).mean()
        return float(linked / torch.pdist(y).mean())

    assert ratio(end) < 0.6 * ratio(start)


def test_find_neighbors() -> None:
    x = torch.nn.functional.normalize(torch.randn(60, 5), dim=1)
    expected = (x @ x.T).fill_diagonal_(-9).topk(4, dim=1).indices
    assert torch.equal(find_neighbors(x, degree=4), expected)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_to_three_vectors(count: int) -> None:
    assert bool(torch.isfinite(lay_out_map(torch.randn(count, 4))).all())


def test_equal_vectors() -> None:
    assert bool(torch.isfinite(lay_out_map(torch.ones(30, 4), landmarks=10)).all())
