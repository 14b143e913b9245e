"""The papers' numbers in the suites are those of the papers, and a table shows them beside ours."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from nearfar.errors import NearfarError
from nearfar.suites.paper import PaperTable, find_numbers
from nearfar.suites.suite_file import open_suite, suite_from_dict, suite_names

TABLE: dict[str, Any] = {
    "data": "cub",
    "table": "Table 1",
    "metrics": ["recall@1", "map@r"],
    "methods": {"ms": [60, 20]},
}


def numbers(suite: str, data: str, method: str, metric: str, sweep: Any = None, *, quoted: bool = False) -> list[str]:
    return [str(each) for each in find_numbers(open_suite(suite).paper, data, sweep, method, metric, quoted=quoted)]


@pytest.mark.parametrize(
    ("place", "want"),
    [
        (("dro", "cub", "topk-b", "recall@1"), ["68.1", "67.9"]),
        (("dro", "cars", "kl-m", "recall@32"), ["99.3"]),
        (("dro", "cars", "topk-pn-b", "recall@4"), ["95.8"]),
        (("dro", "inshop", "topk-pn-m", "recall@1"), ["91.3"]),
        (("dro", "inshop", "hap2s", "recall@1"), []),
        (("dro-recover", "cars", "kl-g 0.001", "recall@1"), ["75.0"]),
        (("dro-recover", "cars", "ls", "recall@16"), []),
        (("dro-recover", "inshop", "kl-g 0.01", "recall@20"), []),
        (("dro-imbalance", "inshop-512", "topk-pn-m", "recall@1", 128), ["90.73"]),
        (("dro-imbalance", "inshop-512", "topk-pn-m", "recall@1", 16), []),
        (("mpa", "cub", "mpa", "ndcg@4"), ["64.7"]),
        (("mpa", "cars", "mpa-ap", "recall@1"), ["87.1"]),
        (("mpa", "sop", "soft-triple", "map@r"), ["51.7"]),
        (("mpa-proxies", "cub", "mpa", "recall@1", 12), ["69.3"]),
        (("mpa-proxies", "cars", "mpa", "ndcg@8", 1), ["77.3"]),
        (("proxy-isa", "cub", "proxy-anchor", "recall@1"), ["66.6", "66.3 ± 0.3"]),
        (("proxy-isa", "cars", "ms mined", "map@r"), ["27.0 ± 0.4"]),
        (("proxy-isa", "inshop", "proxy-isa", "recall@1"), ["92.3"]),
        (("proxy-isa-penalties", "cars", "1/E, 1/E", "map@r"), ["16.3"]),
        (("proxy-isa-extra", "sop", "proxy-isa", "recall@1"), ["79.3"]),
    ],
)
def test_numbers_are_the_papers(place: tuple[Any, ...], want: list[str]) -> None:
    assert numbers(*place) == want


@pytest.mark.parametrize(
    ("place", "want"),
    [
        (("dro", "cub", "Clustering", "recall@8"), ["81.9"]),
        (("dro", "cub", "Clustering", "recall@16"), []),
        (("dro", "cars", "ABE", "recall@1"), ["85.2"]),
        (("dro", "inshop", "FashionNet", "recall@50"), ["80.0"]),
        (("mpa", "cub", "SoftTriple", "recall@1"), ["65.4"]),
        (("mpa", "sop", "HTL", "recall@100"), ["94.8"]),
        (("proxy-isa", "cars", "ProxyGML", "recall@1"), ["85.5"]),
    ],
)
def test_quoted_numbers_are_the_papers(place: tuple[str, str, str, str], want: list[str]) -> None:
    assert numbers(*place, quoted=True) == want
    assert numbers(*place) == []


@pytest.mark.parametrize("name", suite_names())
def test_printed_recall_is_per_cent_and_grows_with_k(name: str) -> None:
    for table in open_suite(name).paper:
        recalls = sorted((int(m.partition("@")[2]), i) for i, m in enumerate(table.metrics) if m.startswith("recall"))
        for row in (*table.methods.values(), *table.quoted.values()):
            for number in row:
                for each in number if isinstance(number, list) else [number]:
                    assert each is None or 0 <= each <= 100
            found = [row[i][0] if isinstance(row[i], list) else row[i] for _, i in recalls]
            assert all(a <= b for a, b in pairwise(each for each in found if each is not None)), (table.table, row)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "cubb"}, r"paper\[0\]: no dataset of the suite has paper: cubb; did you mean 'cub'"),
        ({"methods": {"mss": [60, 20]}}, "'mss' is not a method of the suite; did you mean 'ms'"),
        ({"methods": {"ms": [60]}}, r"ms must have one number per metric \(2\), got \[60\]"),
        ({"quoted": {"A": 60}}, r"A must have one number per metric \(2\), got 60"),
        ({"methods": {"ms": [60, 120]}}, "must be a percentage, .* got 120"),
        ({"methods": {"ms": [60, [20, None]]}}, "must be a percentage"),
        ({"methods": {"ms": ["60", 20]}}, "must be a percentage, .* got '60'"),
        ({"metric": []}, "did you mean 'metrics'"),
    ],
)
def test_mistakes_are_told(change: dict[str, Any], message: str) -> None:
    with pytest.raises(NearfarError, match=message):
        suite_from_dict({"name": "s", "data": ["cub"], "methods": [{"name": "ms"}], "paper": [{**TABLE, **change}]})


def test_a_table_needs_its_keys() -> None:
    with pytest.raises(NearfarError, match=r"paper\[0\] needs the keys data, table, metrics, got"):
        suite_from_dict({"name": "s", "data": ["cub"], "methods": [{"name": "ms"}], "paper": [{"table": "T"}]})


def test_a_table_without_a_value_of_the_sweep_counts_at_all() -> None:
    tables = [PaperTable("cub", "A", ("mrr",), {"ms": [1]}), PaperTable("cub", "B", ("mrr",), {"ms": [2]}, sweep=0.1)]
    assert [str(each) for each in find_numbers(tables, "cub", 0.1, "ms", "mrr")] == ["1.0", "2.0"]
    assert [str(each) for each in find_numbers(tables, "cub", 0.2, "ms", "mrr")] == ["1.0"]
    assert find_numbers(tables, None, 0.1, "ms", "mrr") == []
