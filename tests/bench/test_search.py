from pathlib import Path

from nearfar.bench import search


def test_the_page_has_both_kinds_and_names_its_command(tmp_path: Path) -> None:
    page = tmp_path / "search.md"
    sizes = ["--exact", "3000", "--hnsw", "600", "--dim", "8", "--queries", "1", "5", "--repeats", "1"]
    search.main([*sizes, "--markdown", str(page)])
    text = page.read_text()
    for row in ("| exact | 3,000 | 1 |", "| exact | 3,000 | 5 |", "| HNSW | 600 | 1 |", "| HNSW | 600 | 5 |"):
        assert row in text
    assert " ".join(sizes) in text


def test_a_turn_of_a_short_call_is_many_calls() -> None:
    calls = {"short": 0}

    def short() -> None:
        calls["short"] += 1

    assert search.best_cpu_ms({"short": short}, repeats=2)["short"] < 1
    assert calls["short"] > 100
