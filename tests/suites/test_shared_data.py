"""Shared data and tracks: a suite names them, and says only what is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nearfar.cli import main
from nearfar.errors import NearfarError
from nearfar.suites.results import read_results
from nearfar.suites.shared_data import shared_data
from nearfar.suites.suite import Suite
from nearfar.suites.suite_file import suite_from_dict


def suite_of(*data: Any, **more: Any) -> Suite:
    return suite_from_dict({"name": "s", "data": list(data), "methods": [{"name": "proxy-anchor"}], **more})


def test_a_name_stands_for_shared_data() -> None:
    (source,) = suite_of("cub-images").data
    assert (source.name, source.source, source.track, source.paper) == (
        *("cub-images", "$CUB_IMAGES", "fine-tuning", "cub"),
    )
    assert source.settings[-1] == "data.cache_size=128"
    assert {"steps=275", "batches.size=64", "images.crop=112"} < set(source.settings)
    assert "112 pixels" in source.differs


def test_use_adds_settings_and_replaces_the_rest() -> None:
    (source,) = suite_of({"use": "in-shop", "name": "small", "paper": "other", "settings": ["model.dim=64"]}).data
    assert (source.name, source.paper, source.source) == ("small", "other", "$IN_SHOP")
    assert source.settings == ("setting=paper", "data.validation=0", "benchmark=inshop", "model.dim=64")
    assert "small" not in shared_data()
    assert shared_data()["in-shop"]["settings"][-1] == "benchmark=inshop"


def test_data_of_its_own_is_not_the_shared_one_of_that_name() -> None:
    (source,) = suite_of({"name": "cub"}).data
    assert (source.source, source.settings, source.track) == (None, (), None)


def test_a_wrong_name_is_told() -> None:
    with pytest.raises(NearfarError, match=r"data\[0\]: there is no shared dataset 'sketch'; did you mean 'sketches'"):
        suite_of("sketch")
    with pytest.raises(NearfarError, match="did you mean 'cars-images'"):
        suite_of({"use": "cars-picture"})


def test_a_track_stands_for_all_of_its_data() -> None:
    suite = suite_of("sketches", "omniglot", "cub-vectors", "cub", {"name": "mine"})
    assert suite.dataset_names(["scratch"]) == ("sketches", "omniglot")
    assert suite.dataset_names(["paper", "mine", "cub", "omniglot"]) == ("cub", "mine", "omniglot")
    assert suite.dataset_names(["nowhere"]) == ("nowhere",)  # an error of what is asked for, there


def test_a_suite_with_shared_data_survives_being_written() -> None:
    paper = [{"data": "cub", "table": "T", "metrics": ["recall@16"], "methods": {"proxy-anchor": [50]}}]
    suite = suite_of("sketches", "cub", metrics=["recall@1"], paper=paper)
    assert suite_from_dict(suite.to_dict()) == suite


def test_metrics_of_the_paper_are_measured_and_shown_where_its_numbers_are() -> None:
    paper = [{"data": "cub", "table": "T", "metrics": ["recall@16", "recall@1"], "methods": {"proxy-anchor": [50, 20]}}]
    suite = suite_of("sketches", "cub", metrics=["recall@1"], paper=paper)
    assert [each.metrics for each in suite.data] == [("recall@1",), ("recall@1", "recall@16")]
    assert (suite.metrics, suite.compared) == (("recall@1", "recall@16"), ("recall@1",))
    with pytest.raises(NearfarError, match="compared contains 'map@r'"):
        suite_of("sketches", metrics=["recall@1"], compared=["map@r"])


def test_only_takes_a_track_on_the_command_line(vectors: str, tmp_path: Path) -> None:
    data = [{"name": name, "source": vectors, "track": track} for name, track in (("a", "near"), ("b", "far"))]
    tree = {"name": "s", "data": data, "methods": [{"name": "proxy-anchor"}], "settings": ["steps=1", "model.dim=8"]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(tree))
    out = tmp_path / "r.jsonl"
    done = CliRunner().invoke(main, ["bench", "run", str(tmp_path / "s.yaml"), "--only", "far", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert [place["data"] for place in read_results(out).places] == ["b"]
    failed = CliRunner().invoke(main, ["bench", "run", str(tmp_path / "s.yaml"), "--only", "fa", "--out", str(out)])
    assert failed.exit_code == 1
    assert "the suite has no dataset 'fa'" in failed.output
