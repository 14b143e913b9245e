"""Tables and figures from results that are written down here."""

from __future__ import annotations

import csv
import io
from typing import Any
from xml.etree import ElementTree

import pytest

from nearfar.errors import NearfarError
from nearfar.metrics.intervals import interval
from nearfar.suites.columns import ON_TEST
from nearfar.suites.figure import draw_figure
from nearfar.suites.results import Results
from nearfar.suites.suite_file import suite_from_dict
from nearfar.suites.summary import summarize
from nearfar.suites.table import table

SCORES = {"base": [0.50, 0.52, 0.51], "better": [0.60, 0.61, 0.62], "same": [0.49, 0.53, 0.51]}


def results_of(
    scores: dict[str, list[float | None]] | dict[str, list[float]] = SCORES,
    *,
    values: tuple[Any, ...] = (None,),
    selected_by: str = "validation",
    errors: dict[str, str] | None = None,
    start: float = 0.4,
    **changes: Any,
) -> Results:
    """Cells with these Recall@1 by method and seed, a tenth more for each further value of a sweep."""
    tree = {
        "name": "t",
        "data": [{"name": "d"}],
        "methods": [{"name": each} for each in scores],
        "baseline": "base",
        "seeds": [0, 1, 2],
        "metrics": ["recall@1"],
        **changes,
    }
    if values != (None,):
        tree["sweep"] = {"data.noise.rate": list(values)}
    places, cells = [], {}
    for method, column in scores.items():
        for i, value in enumerate(values):
            for seed, score in enumerate(column):
                key = f"{method}/{value}/{seed}"
                places.append({"data": "d", "method": method, "sweep": value, "seed": seed, "id": key})
                if score is not None:
                    cells[key] = {
                        "id": key,
                        "test": {"recall@1": score + 0.1 * i},
                        "untrained": {"recall@1": start + 0.01 * seed},
                        "selected_by": selected_by,
                        "seconds": (2.0, 3.0, 600.0)[seed % 3],  # the machine paused
                        "nearfar": "0",
                        "torch": "2",
                        "machine": "m",
                    }
    return Results(suite_from_dict(tree), tuple(places), cells, errors or {}, {}, {})


def rows_of(results: Results) -> dict[str, dict[str, str]]:
    return {row["method"]: row for row in csv.DictReader(io.StringIO(table(results, "csv")))}


def test_csv_holds_means_and_paired_differences() -> None:
    rows = rows_of(results_of())
    assert list(rows) == ["untrained", "base", "better", "same"]
    want, pairs = interval(SCORES["better"]), interval([0.10, 0.09, 0.11])
    better = rows["better"]
    found = [float(better[key]) for key in ("mean", "low", "high", "difference", "difference_low", "difference_high")]
    assert found == pytest.approx([want.mean, want.low, want.high, pairs.mean, pairs.low, pairs.high], abs=1e-12)
    assert (better["baseline"], better["n"], better["difference_n"], better["clear"]) == ("base", "3", "3", "True")
    assert rows["same"]["clear"] == "False"
    assert rows["base"]["baseline"] == rows["base"]["difference"] == ""
    assert float(rows["untrained"]["mean"]) == pytest.approx(0.41)
    assert float(better["seconds"]) == 3.0
    assert rows["untrained"]["seconds"] == ""


def test_only_clear_differences_are_bold() -> None:
    lines = table(results_of(), "markdown").splitlines()
    (better,) = [line for line in lines if line.startswith("| better")]
    (same,) = [line for line in lines if line.startswith("| same")]
    (base,) = [line for line in lines if line.startswith("| base")]
    assert better == "| better | base | 61.00 ± 2.48 | **+10.00 [+7.52, +12.48]** | 3.0 | 3 |"
    assert same == "| same | base | 51.00 ± 4.97 | +0.00 [-2.48, +2.48] | 3.0 | 3 |"
    assert base == "| base | – | 51.00 ± 2.48 | – | 3.0 | 3 |"
    assert "<b>+10.00 [+7.52, +12.48]</b>" in table(results_of(), "html")
    assert table(results_of(), "html").count("<b>") == table(results_of(), "latex").count("\\textbf") == 2
    assert "\\textbf{+10.00 {[}+7.52, +12.48{]}}" in table(results_of(), "latex")


def test_missing_cells_are_shown_and_pairs_are_of_the_same_seeds() -> None:
    scores = {"base": [None, 0.52, 0.51], "better": [0.60, 0.61, None], "gone": [None, None, None]}
    results = results_of(scores, errors={"better/None/2": "out of memory"})
    rows = rows_of(results)
    assert (rows["better"]["n"], rows["better"]["difference_n"]) == ("2", "1")
    assert float(rows["better"]["difference"]) == pytest.approx(0.09)
    assert rows["better"]["clear"] == "False"
    assert rows["better"]["missing"] == "seed 2: out of memory"
    assert (rows["gone"]["n"], rows["gone"]["expected"], rows["gone"]["mean"]) == ("0", "3", "")
    assert rows["untrained"]["n"] == "3"
    for style in ("markdown", "html", "latex"):
        text = table(results, style)
        assert "2 of 3" in text
        assert "Missing: better, seed 2: out of memory" in text
        assert "Missing: gone, seed 0, 1, 2: not run" in text
    assert "| gone | base | missing | missing | – | 0 of 3 |" in table(results)
    assert "+9.00 (n = 1)" in table(results)


def test_data_that_was_left_out_is_told_and_has_no_table() -> None:
    data = [{"name": "d"}, {"name": "other", "settings": ["steps=9"]}]
    text = table(results_of(data=data))
    assert "\nDatasets that were not run: other.\n" in text
    assert "## other" not in text
    assert "steps=9" not in text
    assert "Datasets that were not run" not in table(results_of())


@pytest.mark.parametrize("style", ["markdown", "csv", "html", "latex"])
def test_a_choice_on_the_test_set_is_told_everywhere(style: str) -> None:
    assert ON_TEST not in table(results_of(), style)
    assert table(results_of(selected_by="test"), style).count(ON_TEST) == len(SCORES)


def test_different_starts_are_told() -> None:
    results = results_of()
    assert "different networks" not in table(results)
    results.cells["same/None/1"]["untrained"]["recall@1"] = 0.3
    assert summarize(results)[0].mixed
    assert "Methods start from different networks. The row untrained shows the network of base for the seeds" in table(
        results
    )


def test_a_sweep_has_a_table_for_each_value() -> None:
    results = results_of(values=(0, 0.1))
    assert [(block.data, block.sweep) for block in summarize(results)] == [("d", 0), ("d", 0.1)]
    assert "## d, data.noise.rate = 0.1" in table(results)
    assert summarize(results)[1].rows[1].scores["recall@1"].mean == pytest.approx(0.61)


def test_a_method_without_the_sweep_says_so() -> None:
    methods = [{"name": "base"}, {"name": "better", "swept": False}, {"name": "same"}]
    results = results_of(values=(0.1, 0.2), methods=methods)
    assert "| better (not swept) |" in table(results)
    notes = {row["method"]: row["note"] for row in csv.DictReader(io.StringIO(table(results, "csv")))}
    assert notes == {"untrained": "", "base": "", "better": "not swept", "same": ""}


def test_the_size_of_batches_is_told() -> None:
    results = results_of()
    for key, cell in results.cells.items():
        cell["batch"] = 64 if key.startswith("base") else 128  # type: ignore[index]
    assert "Batch size 128; 64 for base" in table(results)
    assert {row["batch"] for row in rows_of(results).values()} == {"", "64", "128"}
    for cell in results.cells.values():
        cell["batch"] = 64  # type: ignore[index]
    assert "- Batch size 64\n" in table(results)


def test_settings_are_told() -> None:
    assert "Settings of" not in table(results_of())
    data = [{"name": "d", "settings": ["steps=9"]}]
    text = table(results_of(settings=["ema=0.1"], data=data, override=["log_every=3"]))
    assert "Settings: all cells: ema=0.1; d: steps=9; all cells, from the command line: log_every=3." in text


def test_special_characters_do_no_harm() -> None:
    results = results_of({"base": [0.5, 0.5, 0.5], "a|b_<c>": [0.5, None, 0.5]})
    assert "a\\|b_<c>" in table(results, "markdown")
    assert "a|b_&lt;c&gt;" in table(results, "html")
    assert "a|b\\_<c>" in table(results, "latex")


def test_without_a_baseline_there_are_no_differences() -> None:
    text = table(results_of(baseline=None))
    assert "| method | recall@1 | seconds | n |" in text
    assert "against" not in text
    with pytest.raises(ValueError, match="style must be one of"):
        table(results_of(), "word")


PAPER: dict[str, Any] = {
    "data": "cub",
    "table": "Table 9",
    "metrics": ["recall@1"],
    "methods": {"better": [[61.5, 0.2]], "base": [50]},
    "quoted": {"HDC": [45.5]},
}
CUB = [{"name": "d", "paper": "cub", "differs": "smaller pictures."}]


def test_the_papers_numbers_stand_beside_ours() -> None:
    results = results_of(data=CUB, paper=[PAPER])
    lines = table(results).splitlines()
    head = "| method | against | recall@1 | recall@1, difference | recall@1, paper | seconds | n |"
    assert head in lines
    assert "| better | base | 61.00 ± 2.48 | **+10.00 [+7.52, +12.48]** | 61.5 ± 0.2 | 3.0 | 3 |" in lines
    assert "| same | base | 51.00 ± 4.97 | +0.00 [-2.48, +2.48] | – | 3.0 | 3 |" in lines
    assert "| HDC (quoted) | – | – | – | 45.5 | – | – |" in lines
    assert "- Paper: Table 9, as printed, in percent." in lines
    assert "- Differences from the paper: smaller pictures." in lines
    for style in ("html", "latex"):
        assert "HDC (quoted)" in table(results, style)
        assert "61.5" in table(results, style)
    assert "paper" not in table(results_of(paper=[PAPER], data=[*CUB, {"name": "other"}])).splitlines()[0]


def test_the_papers_numbers_are_only_beside_their_data_and_value() -> None:
    data = [{"name": "d"}, {"name": "e", "paper": "cub"}]
    assert "61.5" not in table(results_of(data=data, paper=[PAPER]))
    text = table(results_of(values=(0, 0.1), data=CUB, paper=[{**PAPER, "sweep": 0.1}]))
    without, beside = text.split("## d, data.noise.rate = 0.1")
    assert "61.5" not in without
    assert "quoted" not in without
    assert "61.5 ± 0.2" in beside


def test_two_tables_of_a_paper_are_told_apart() -> None:
    other = {**PAPER, "table": "Table 2", "methods": {"better": [62]}, "quoted": {}}
    text = table(results_of(data=CUB, paper=[PAPER, other]))
    assert "| 61.5 ± 0.2 (Table 9); 62.0 (Table 2) |" in text
    assert "Paper: Table 9, Table 2, as printed" in text
    row = rows_of(results_of(data=CUB, paper=[PAPER, other]))["better"]
    assert (row["paper"], row["paper_table"]) == ("0.615; 0.62", "Table 9; Table 2")


def test_csv_holds_the_papers_numbers_from_0_to_1() -> None:
    rows = rows_of(results_of(data=CUB, paper=[PAPER]))
    assert (rows["better"]["paper"], rows["better"]["paper_table"]) == ("0.615", "Table 9")
    assert rows["same"]["paper"] == ""
    quoted = rows["HDC"]
    assert (quoted["paper"], quoted["note"], quoted["mean"], quoted["n"]) == ("0.455", "quoted", "", "")


def test_only_compared_metrics_have_differences() -> None:
    results = results_of(compared=["recall@1"], metrics=["recall@1", "map@r"])
    for cell in results.cells.values():
        for part in ("test", "untrained"):
            cell[part]["map@r"] = 0.25
    assert "| method | against | recall@1 | recall@1, difference | map@r | seconds | n |" in table(results)


def test_detection_has_columns_where_it_was_measured() -> None:
    results = results_of()
    assert "wrong labels" not in table(results)
    for seed, (auroc, precision) in enumerate(((0.9, 0.7), (0.92, 0.8), (0.94, 0.9))):
        results.cells[f"better/None/{seed}"]["detection"] = {"auroc": auroc, "precision": precision}
    lines = table(results).splitlines()
    (head,) = [line for line in lines if line.startswith("| method")]
    assert head.endswith("| wrong labels: AUROC | wrong labels: precision | seconds | n |")
    (better,) = [line for line in lines if line.startswith("| better")]
    (same,) = [line for line in lines if line.startswith("| same")]
    assert better.endswith("| 92.00 ± 4.97 | 80.00 ± 24.84 | 3.0 | 3 |")
    assert same.endswith("| – | – | 3.0 | 3 |")
    row, want = rows_of(results)["better"], interval([0.9, 0.92, 0.94])
    found = [float(row[key]) for key in ("auroc", "auroc_low", "auroc_high", "precision")]
    assert found == pytest.approx([want.mean, want.low, want.high, 0.8])
    assert rows_of(results)["same"]["auroc"] == ""


def test_figure_has_the_intervals_as_bars() -> None:
    results = results_of(values=(0, 0.1, 0.3))
    drawing = draw_figure(results, x="data.noise.rate", metric="recall@1")
    groups = [each for each in ElementTree.fromstring(drawing).iter() if each.get("id", "").startswith("bars-")]
    assert len(groups) == 4  # methods, the untrained one too
    assert all(sum(each.tag.endswith("}path") for each in group.iter()) == 3 for group in groups)  # values
    assert "95% interval" in drawing
    assert drawing == draw_figure(results, x="data.noise.rate", metric="recall@1")
    one = results_of({"base": [0.5], "better": [0.6]}, values=(0, 1), seeds=[0])
    drawing = draw_figure(one, x="data.noise.rate", metric="recall@1")
    assert 'id="bars-' not in drawing
    assert "interval" not in drawing


def test_figure_leaves_out_data_that_was_left_out() -> None:
    drawing = draw_figure(
        results_of(values=(0, 1), data=[{"name": "d"}, {"name": "gone"}]), x="data.noise.rate", metric="recall@1"
    )
    assert ">d</text>" in drawing
    assert "gone" not in drawing


def test_figure_draws_the_means_and_names_what_is_missing() -> None:
    drawing = draw_figure(results_of(values=(0, 0.1, 0.3)), x="data.noise.rate", metric="recall@1")
    ElementTree.fromstring(drawing)
    for name in ("untrained", "base", "better", "same"):
        assert f">{name}</text>" in drawing
    assert "not drawn" not in drawing
    partial = {**SCORES, "late": [0.5, 0.5, None]}
    drawing = draw_figure(
        results_of(partial, values=(0, 0.1), selected_by="test"), x="data.noise.rate", metric="recall@1"
    )
    assert "not drawn, results are missing: late" in drawing
    assert ">late</text>" not in drawing
    assert ON_TEST in drawing
    nothing = {"base": [None, None, None]}
    assert "missing: untrained, base" in draw_figure(
        results_of(nothing, values=(0, 1)), x="data.noise.rate", metric="recall@1"
    )


def test_figure_of_a_metric_that_only_some_data_show() -> None:
    data = [{"name": "d", "metrics": ["recall@1"]}, {"name": "gone", "metrics": ["recall@1", "ndcg@8"]}]
    results = results_of(values=(0, 1), data=data)
    assert ">d</text>" in draw_figure(results, x="data.noise.rate", metric="recall@1")
    with pytest.raises(NearfarError, match="no dataset with results has the metric 'ndcg@8'"):
        draw_figure(results, x="data.noise.rate", metric="ndcg@8")


def test_figure_of_some_methods() -> None:
    results = results_of(values=(0.1, 0.2))
    some = draw_figure(results, x="data.noise.rate", metric="recall@1", methods=("base", "same"))
    assert ">base<" in some
    assert ">better<" not in some
    with pytest.raises(NearfarError, match="no method 'bas'; did you mean 'base'"):
        draw_figure(results, x="data.noise.rate", metric="recall@1", methods=("bas",))


def test_figure_of_gains_shows_paired_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    results = results_of(values=(0, 0.1))
    drawn: dict[str, Any] = {}

    def keep(axes: Any, values: Any, lines: Any, *args: Any, **options: Any) -> None:
        drawn.update(lines=lines, bars=options["bars"], y_label=options["y_label"])

    monkeypatch.setattr("nearfar.suites.figure.draw_lines", keep)
    draw_figure(results, x="data.noise.rate", metric="recall@1", gain=True)
    pairs = zip(SCORES["better"], SCORES["base"], strict=True)
    want = interval([100 * (better - base) for better, base in pairs])
    assert list(drawn["lines"]) == ["better", "same"]  # neither the baseline nor the untrained network
    assert drawn["lines"]["better"] == pytest.approx([want.mean] * 2)
    assert drawn["bars"]["better"][0] == pytest.approx((want.low, want.high))
    assert drawn["y_label"].startswith("recall@1, gain over base\npoints, mean of 3 seeds")
    draw_figure(results, x="data.noise.rate", metric="recall@1", gain=True, methods=("untrained",))
    assert list(drawn["lines"]) == ["untrained"]


def test_figure_of_gains_needs_the_seeds_of_both_methods() -> None:
    partial = {**SCORES, "base": [0.5, 0.5, None]}
    drawing = draw_figure(results_of(partial, values=(0, 1)), x="data.noise.rate", metric="recall@1", gain=True)
    assert "not drawn, results are missing: better, same" in drawing
    results = results_of(values=(0, 1))
    with pytest.raises(NearfarError, match="a baseline has no gain, got base: name one of untrained, better, same"):
        draw_figure(results, x="data.noise.rate", metric="recall@1", gain=True, methods=("base",))
    alone = results_of(values=(0, 1), baseline=None)
    with pytest.raises(NearfarError, match="needs a suite with a baseline"):
        draw_figure(alone, x="data.noise.rate", metric="recall@1", gain=True)


def test_figure_mistakes_are_errors() -> None:
    with pytest.raises(NearfarError, match=r"does not sweep 'steps': it sweeps data\.noise\.rate"):
        draw_figure(results_of(values=(0, 1)), x="steps", metric="recall@1")
    with pytest.raises(NearfarError, match="it has no sweep"):
        draw_figure(results_of(), x="steps", metric="recall@1")
    with pytest.raises(NearfarError, match="did you mean 'recall@1'"):
        draw_figure(results_of(values=(0, 1)), x="data.noise.rate", metric="recal@1")
    with pytest.raises(NearfarError, match="at least two numeric values"):
        draw_figure(results_of(values=("a", "b")), x="data.noise.rate", metric="recall@1")
