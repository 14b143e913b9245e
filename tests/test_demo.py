from pathlib import Path

import pytest

from nearfar.demo import run


def test_a_short_demo_learns_and_writes_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = run(steps=60, out=tmp_path / "out", train_rows=6000)
    assert set(scores) == {"raw pixels", "untrained net", "supcon", "proxy-anchor"}
    assert scores["proxy-anchor"]["map@r"] > 1.3 * scores["untrained net"]["map@r"]
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("<figure") == 12 * 9
    assert "http" not in page.replace("http-equiv", "")
    assert "CC BY 4.0" in page
    printed = capsys.readouterr().out
    assert "Recall@1" in printed
    assert "Searching with" in printed
