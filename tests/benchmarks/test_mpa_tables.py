"""MPA's Tables 1 and 3 come out as printed, from the losses and metrics themselves."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import mpa_tables

PRINTED_METRICS = {
    (1,): (100, 10, 25.0, 10.0, 39.0),
    (1, 10): (100, 20, 25.0, 12.0, 50.3),
    (1, 3): (100, 20, 41.7, 16.7, 58.6),
    (1, 3, 7, 10): (100, 40, 41.7, 25.0, 82.9),
    (1, 2, 3, 4): (100, 40, 100.0, 40.0, 100.0),
}


@pytest.mark.parametrize("name", mpa_tables.PROXY)
def test_characteristics_are_those_of_table_1(name: str) -> None:
    assert mpa_tables.characteristics(name) == mpa_tables.PRINTED[name]


def test_influences_are_second_derivatives() -> None:
    found = mpa_tables.influences("mpa-ap").reshape(20, 20)
    torch.testing.assert_close(found, found.T, rtol=1e-4, atol=1e-5)
    assert float(found.abs().max()) > 1


def test_metrics_are_those_of_table_3() -> None:
    assert set(PRINTED_METRICS) == set(mpa_tables.RANKINGS)
    for hits, want in PRINTED_METRICS.items():
        assert [round(each, 1) for each in mpa_tables.ranking_scores(hits).values()] == list(want)


def test_the_page_has_every_loss_and_the_figure_is_xml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    files = {name: tmp_path / f"out.{name}" for name in ("svg", "md")}
    sizes = ["--samples", "16", "--classes", "8", "--proxies", "2", "--dim", "4", "--repeats", "1"]
    mpa_tables.main([*sizes, "--figure", str(files["svg"]), "--markdown", str(files["md"])])
    torch.set_num_threads(threads)
    page = files["md"].read_text()
    assert page == capsys.readouterr().out
    assert page.count("as printed") == len(mpa_tables.PROXY)
    assert "differs" not in page
    for name, order in mpa_tables.ORDERS.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {name} | O(")]
        assert f"O({order})" in line
        assert [each[0] for each in line.split("|")[3].split()] == [key for key in "MCP" if key in order]
    texts = [each.text for each in ElementTree.parse(files["svg"]).iter() if each.tag.endswith("text")]
    assert set(mpa_tables.PROXY) < set(texts)
    assert texts.count("+") == len(mpa_tables.PROXY) * 2 * len(mpa_tables.LABELS)
