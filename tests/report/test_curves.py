import math
import re

from nearfar.report.curves import Line, curve_figures, figure, series, smoothed, thinned, ticks

STEPS = [{"kind": "step", "step": s, "loss": 1 / s, "lr": 0.1, "effective_rank": 3.0} for s in range(1, 101)]
EPOCH = {"kind": "epoch", "step": 50, "epoch": 0, "validation": {"recall@1": 0.4}, "pacing": {"share": 1}}


def test_every_run_has_its_own_loss_and_shares_the_rest():
    figures, more = curve_figures({"one": [*STEPS, EPOCH], "two": STEPS, "none": []}, str.title)
    titles = re.findall("<figcaption>(.*?)</figcaption>", figures)
    assert titles == ["Loss of one", "Loss of two", "Validation Recall@1, per cent", "Learning rate"]
    assert re.findall("<figcaption>(.*?)</figcaption>", more) == ["Effective rank of the batch"]
    assert "one from 40 to 40" in figures  # per cent
    assert figures.count('class="legend"') == 1  # of the learning rate


def test_nothing_logged_nothing_drawn():
    assert curve_figures({}, str) == ("", "")
    assert curve_figures({"one": [{"kind": "epoch", "step": 3, "epoch": 0}]}, str) == ("", "")


def test_series_sorts_and_leaves_out_what_is_not_a_number():
    entries = [{"step": 3, "loss": 1.0}, {"step": 1, "loss": 2}, {"step": 2, "loss": None}, {"loss": 4.0}]
    entries += [{"step": 4, "loss": math.inf}, {"step": 5, "loss": "x"}, {"step": 6, "loss": True}]
    assert series(entries, "loss") == [(1.0, 2.0), (3.0, 1.0)]
    assert series([{"epoch": 2, "validation": {"mrr": 0.5}}], "validation", "mrr", factor=100) == [(2.0, 50.0)]


def test_thinned_keeps_the_mean_and_smoothed_keeps_a_straight_line():
    points = [(float(i), float(i % 7)) for i in range(1000)]
    few = thinned(points, 100)
    assert len(few) == 100
    assert math.isclose(sum(y for _, y in few) / 100, sum(y for _, y in points) / 1000)
    line = [(float(i), 2.0 * i) for i in range(50)]
    assert smoothed(line, 9) == line
    assert smoothed([(0.0, 0.0), (1.0, 3.0), (2.0, 0.0)], 3) == [(0.0, 0.0), (1.0, 1.0), (2.0, 0.0)]


def test_ticks():
    for low, high in ((0.0, 1.0), (0.13, 0.52), (-3.0, 17.0), (1e-6, 3e-6), (999.0, 1001.0), (3.0, 3.4)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 5
        assert low - 1e-9 <= found[0] < found[-1] <= high + 1e-9
    assert ticks(2.0, 2.0) == [2.0]


def test_one_point_and_constant_lines_stay_inside():
    for points in ([(5.0, 3.0)], [(1.0, 0.0), (2.0, 0.0)], [(1.0, -2.0), (2.0, -2.0)]):
        text = figure("Loss", [Line("a", points)])
        numbers = [float(n) for n in re.findall(r'points="([^"]+)"', text)[0].replace(",", " ").split()]
        assert all(0 <= n <= 340 for n in numbers)
        assert "nan" not in text


def test_names_are_escaped():
    figures, _ = curve_figures({"<b>&": STEPS, "c": STEPS}, str)
    assert "<b>" not in figures
    assert "&lt;b&gt;&amp;" in figures
