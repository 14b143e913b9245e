import re

import numpy as np
import pytest
import torch

from nearfar.data import Manifest
from nearfar.report.embedding_map import HEIGHT, WIDTH, EmbeddingMap, choose_rows, compute_map, draw_map
from nearfar.report.thumbnails import Thumbnails


def vectors(classes: int = 3, each: int = 10) -> tuple[Manifest, torch.Tensor]:
    labels = np.repeat(np.arange(classes), each)
    x = torch.eye(classes)[torch.from_numpy(labels)] + 0.1 * torch.randn(len(labels), classes)
    names = tuple(f"<{c}>" for c in range(classes))
    return Manifest(labels=labels, classes=names, split=["test"] * len(labels), features=x.numpy()), x


def test_rows_come_from_few_classes_and_are_limited():
    labels = np.repeat(np.arange(40), 25)
    rows = choose_rows(labels, points=100, classes=5, seed=0)
    assert len(rows) == len(set(rows.tolist())) == 100
    assert np.unique(labels[rows], return_counts=True)[1].tolist() == [20] * 5
    assert rows.tolist() == choose_rows(labels, points=100, classes=5, seed=0).tolist()
    assert set(labels[rows]) != set(labels[choose_rows(labels, points=100, classes=5, seed=1)])
    assert len(choose_rows(labels, points=1000, classes=5)) == 1000
    whole = choose_rows(np.repeat(np.arange(300), 4), points=1000, classes=20)
    assert len(whole) == 80  # small classes are complete
    singles = np.concatenate([np.arange(50), [50, 50]])
    assert choose_rows(singles, points=10, classes=5).tolist() == [50, 51]


def test_positions_are_inside_and_classes_are_together():
    data, x = vectors()
    layout = compute_map(data, x, np.arange(30))
    assert layout.points.min() >= 0
    assert (layout.points <= [WIDTH, HEIGHT]).all()
    assert np.ptp(layout.points, axis=0).tolist() == pytest.approx([WIDTH - 68, HEIGHT - 68])
    middles = np.stack([layout.points[data.labels == c].mean(0) for c in range(3)])
    nearest = np.linalg.norm(layout.points[:, None] - middles, axis=2).argmin(1)
    assert nearest.tolist() == data.labels.tolist()


@pytest.mark.parametrize("per_class", [None, 2])
def test_proxies_are_stars_near_their_class(per_class):
    data, x = vectors()
    proxies = torch.eye(3) if per_class is None else torch.eye(3)[:, None].repeat(1, 2, 1)
    layout = compute_map(data, x, np.arange(10, 30), proxies=5 * proxies)
    count = per_class or 1
    assert layout.proxy_labels.tolist() == [1] * count + [2] * count  # class 0 is not in the map
    for label, place in zip(layout.proxy_labels, layout.proxy_points, strict=True):
        near = np.linalg.norm(layout.points - place, axis=1).argmin()
        assert data.labels[layout.rows[near]] == label
    text = draw_map(data, layout, Thumbnails(data))
    assert text.count('class="star') == 2 * count


def test_marks_have_a_color_a_shape_and_a_title():
    data, x = vectors(9, 4)
    text = draw_map(data, compute_map(data, x, np.arange(36)), Thumbnails(data))
    marks = re.findall(r'<use href="#m(\d)" class="c(\d)"[^>]*><title>([^<]*)</title>', text)
    assert len(marks) == 36
    assert len({mark[:2] for mark in marks}) == 9
    assert {name for _, _, name in marks} == {f"&lt;{c}&gt;" for c in range(9)}
    assert len(re.findall('<text class="name', text)) == 9
    assert "<0>" not in text


def test_images_are_drawn_as_images():
    pixels = np.zeros((12, 8, 8), np.uint8)
    pixels[:, 3, :] = 255
    data = Manifest(labels=[0, 1] * 6, classes=("a", "b"), split=["test"] * 12, pixels=pixels)
    text = draw_map(data, compute_map(data, torch.randn(12, 4), np.arange(12)), Thumbnails(data))
    assert text.count("<image href=") == 12
    color = Manifest(labels=[0, 1] * 6, classes=("a", "b"), split=["test"] * 12, pixels=pixels[..., None].repeat(3, 3))
    text = draw_map(color, compute_map(color, torch.randn(12, 4), np.arange(12)), Thumbnails(color))
    assert text.count("<rect class=") == 12


def test_names_do_not_overlap():
    data, _ = vectors(12, 3)
    places = np.tile([[500.0, 740.0]], (36, 1)) + np.arange(36)[:, None]
    layout = EmbeddingMap(np.arange(36), places, np.zeros(0, np.int64), np.zeros((0, 2)))
    text = draw_map(data, layout, Thumbnails(data))
    boxes = [(float(a), float(b)) for a, b in re.findall(r'<text class="name c\d" x="(\d+)" y="(-?\d+)"', text)]
    assert len(boxes) == 12
    assert max(y for _, y in boxes) <= HEIGHT
    for i, (x1, y1) in enumerate(boxes):
        for x2, y2 in boxes[:i]:
            assert abs(x1 - x2) >= 2 * 5.9 * 3 or abs(y1 - y2) >= 21


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_samples(count):
    data = Manifest(labels=[0] * count, classes=("a",), split=["test"] * count, features=np.ones((count, 2)))
    text = draw_map(data, compute_map(data, torch.randn(count, 2), np.arange(count)), Thumbnails(data))
    assert text.count("<use") == count
    assert "nan" not in text
