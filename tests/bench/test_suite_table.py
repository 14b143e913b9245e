"""Tables and figures from results that are written down here."""

from __future__ import annotations

import csv
import io
from typing import Any
from xml.etree import ElementTree

import pytest

from nearfar.bench.suite import suite_from_dict
from nearfar.bench.suite_figure import figure
from nearfar.bench.suite_interval import interval
from nearfar.bench.suite_results import Results
from nearfar.bench.suite_summary import summarise
from nearfar.bench.suite_table import ON_TEST, table
from nearfar.errors import NearfarError

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
                        "seconds": 2.0 + seed,
                        "nearfar": "0",
                        "torch": "2",
                        "machine": "m",
                    }
    return Results(suite_from_dict(tree), tuple(places), cells, errors or {})


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


def test_data_that_was_left_out_is_missing() -> None:
    text = table(results_of(data=[{"name": "d"}, {"name": "left-out"}]))
    assert "## left-out" in text
    assert "| better | base | missing | missing | – | 0 of 3 |" in text


@pytest.mark.parametrize("style", ["markdown", "csv", "html", "latex"])
def test_a_choice_on_the_test_set_is_told_everywhere(style: str) -> None:
    assert ON_TEST not in table(results_of(), style)
    assert table(results_of(selected_by="test"), style).count(ON_TEST) == len(SCORES)


def test_different_starts_are_told() -> None:
    results = results_of()
    assert "different networks" not in table(results)
    results.cells["same/None/1"]["untrained"]["recall@1"] = 0.3
    assert summarise(results)[0].mixed
    assert "Methods start from different networks; untrained is that of base" in table(results)


def test_a_sweep_has_a_table_for_each_value() -> None:
    results = results_of(values=(0, 0.1))
    assert [(block.data, block.sweep) for block in summarise(results)] == [("d", 0), ("d", 0.1)]
    assert "## d, data.noise.rate = 0.1" in table(results)
    assert summarise(results)[1].rows[1].scores["recall@1"].mean == pytest.approx(0.61)


def test_settings_are_told() -> None:
    assert "Settings of" not in table(results_of())
    data = [{"name": "d", "settings": ["steps=9"]}]
    text = table(results_of(settings=["ema=0.1"], data=data, override=["log_every=3"]))
    assert "Settings of all cells: ema=0.1; of d: steps=9; of all cells, above the others: log_every=3." in text


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


def test_figure_draws_the_means_and_names_what_is_missing() -> None:
    drawing = figure(results_of(values=(0, 0.1, 0.3)), x="data.noise.rate", metric="recall@1")
    ElementTree.fromstring(drawing)
    for name in ("untrained", "base", "better", "same"):
        assert f">{name}</text>" in drawing
    assert "not drawn" not in drawing
    partial = {**SCORES, "late": [0.5, 0.5, None]}
    drawing = figure(results_of(partial, values=(0, 0.1), selected_by="test"), x="data.noise.rate", metric="recall@1")
    assert "not drawn, cells are missing: late" in drawing
    assert ">late</text>" not in drawing
    assert ON_TEST in drawing
    nothing = {"base": [None, None, None]}
    assert "missing: untrained, base" in figure(
        results_of(nothing, values=(0, 1)), x="data.noise.rate", metric="recall@1"
    )


def test_figure_mistakes_are_told() -> None:
    with pytest.raises(NearfarError, match=r"no sweep of 'steps', its sweep is data\.noise\.rate"):
        figure(results_of(values=(0, 1)), x="steps", metric="recall@1")
    with pytest.raises(NearfarError, match="it has no sweep"):
        figure(results_of(), x="steps", metric="recall@1")
    with pytest.raises(NearfarError, match="did you mean 'recall@1'"):
        figure(results_of(values=(0, 1)), x="data.noise.rate", metric="recal@1")
    with pytest.raises(NearfarError, match="no two numbers"):
        figure(results_of(values=("a", "b")), x="data.noise.rate", metric="recall@1")
