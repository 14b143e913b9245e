import math
import re

import torch

from nearfar.losses import create
from nearfar.report.curves import (
    HEIGHT,
    STEP_VALUES,
    WIDTH,
    Line,
    collect_points,
    draw_curves,
    draw_panel,
    smooth,
    thin_out,
)
from nearfar.training.diagnostics import batch_statistics

STEPS = [{"kind": "step", "step": s, "loss": 1 / s, "lr": 0.1, "rank": 3.0} for s in range(1, 101)]
EPOCH = {"kind": "epoch", "step": 50, "epoch": 0, "validation": {"recall@1": 0.4}, "pacing": {"share": 1}}


def test_every_run_has_its_own_loss_and_shares_the_rest():
    figures, more = draw_curves({"one": [*STEPS, EPOCH], "two": STEPS, "none": []})
    titles = re.findall("<figcaption>(.*?)</figcaption>", figures)
    assert titles == ["Loss of one", "Loss of two", "Validation Recall@1, percent", "Learning rate"]
    assert re.findall("<figcaption>(.*?)</figcaption>", more) == ["Effective rank of 64 embeddings"]
    assert "one from 40 to 40" in figures  # percent
    assert figures.count('class="legend"') == 1  # of the learning rate


def test_every_value_that_training_logs_for_a_batch_has_a_panel():
    x, labels = torch.randn(8, 4), torch.arange(8) // 2
    logged = batch_statistics(create("contrastive"), x, labels, weights=None, representatives=None)
    assert set(logged) == set(STEP_VALUES)


def test_nothing_logged_nothing_drawn():
    assert draw_curves({}) == ("", "")
    assert draw_curves({"one": [{"kind": "epoch", "step": 3, "epoch": 0}]}) == ("", "")


def test_points_are_sorted_and_finite():
    entries = [{"step": 3, "loss": 1.0}, {"step": 1, "loss": 2}, {"step": 2, "loss": None}, {"loss": 4.0}]
    entries += [{"step": 4, "loss": math.inf}, {"step": 5, "loss": "x"}, {"step": 6, "loss": True}]
    assert collect_points(entries, "loss") == [(1.0, 2.0), (3.0, 1.0)]
    assert collect_points([{"epoch": 2, "validation": {"mrr": 0.5}}], "validation", "mrr", factor=100) == [(2.0, 50.0)]


def test_thinning_keeps_the_mean_and_smoothing_keeps_a_straight_line():
    points = [(float(i), float(i % 7)) for i in range(1000)]
    few = thin_out(points, 100)
    assert len(few) == 100
    assert math.isclose(sum(y for _, y in few) / 100, sum(y for _, y in points) / 1000)
    line = [(float(i), 2.0 * i) for i in range(50)]
    assert smooth(line, 9) == line
    assert smooth([(0.0, 0.0), (1.0, 3.0), (2.0, 0.0)], 3) == [(0.0, 0.0), (1.0, 1.0), (2.0, 0.0)]


def texts_of(panel: str) -> list[str]:
    return re.findall("<text[^>]*>(.*?)</text>", panel)


def test_ticks_are_few_and_inside():
    for low, high in ((0.0, 1.0), (0.13, 0.52), (-3.0, 17.0), (1e-6, 3e-6), (999.0, 1001.0), (3.0, 3.4)):
        panel = draw_panel("Loss", [Line("a", [(0.0, low), (1.0, high)])])
        lines = re.findall(r'<path d="M 54 ([0-9.]+) +L 326 ([0-9.]+) +" fill="none" class="grid"', panel)
        assert 2 <= len(lines) <= 6
        assert all(12 <= float(a) == float(b) <= 174 for a, b in lines)
        assert len(set(texts_of(panel))) >= len(lines)


def test_one_point_and_constant_lines_stay_inside():
    for points in ([(5.0, 3.0)], [(1.0, 0.0), (2.0, 0.0)], [(1.0, -2.0), (2.0, -2.0)]):
        text = draw_panel("Loss", [Line("a", points)])
        places = re.findall(r'<use x="([^"]*)" y="([^"]*)"', text)
        assert len(places) == len(points)
        assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in places)
        assert "nan" not in text


def test_long_lines_are_smoothed_and_short_ones_have_markers():
    long = draw_panel("Loss", [Line("a", [(float(i), float(i % 3)) for i in range(100)])], is_noisy=True)
    assert long.count('opacity="0.35"') == 1
    assert "<use" not in long
    short = draw_panel("Loss", [Line("a", [(float(i), float(i % 3)) for i in range(9)], 3)], is_noisy=True)
    assert "opacity" not in short
    assert short.count("<use") == 9
    assert 'class="c3"' in short


def test_a_panel_needs_no_style_attribute_and_no_script():
    figures, more = draw_curves({"one": [*STEPS, EPOCH], "two": STEPS})
    assert "style" not in figures + more  # the served page's Content-Security-Policy forbids it
    assert "clip-path" not in figures + more
    assert "<script" not in figures + more


def test_names_are_escaped():
    figures, _ = draw_curves({"<b>&": STEPS, "c": STEPS})
    assert "<b>" not in figures
    assert "&lt;b&gt;&amp;" in figures
