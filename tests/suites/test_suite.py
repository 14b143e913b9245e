"""Suites are read and checked; those that come along resolve to runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nearfar.config.recipes import names
from nearfar.errors import NearfarError
from nearfar.suites.cells import suite_cells
from nearfar.suites.suite_file import open_suite, suite_from_dict, suite_names

SMALL: dict[str, Any] = {
    "name": "small",
    "data": [{"name": "here", "source": "sketches"}],
    "methods": [{"name": "ms", "recipe": "multi-similarity"}, {"name": "proxy-anchor"}],
    "baseline": "ms",
    "seeds": [0, 1],
}


def test_a_suite_survives_being_written() -> None:
    suite = suite_from_dict({**SMALL, "sweep": {"data.noise.rate": [0, 0.1]}})
    assert suite_from_dict(yaml.safe_load(yaml.safe_dump(suite.to_dict()))) == suite
    assert (suite.sweep_key, suite.sweep_values) == ("data.noise.rate", (0, 0.1))


def test_a_method_is_compared_to_its_own_baseline_first() -> None:
    methods = [*SMALL["methods"], {"name": "mpa", "baseline": "proxy-anchor"}]
    suite = suite_from_dict({**SMALL, "methods": methods})
    found = {each: suite.baseline_of(each) for each in ("ms", "proxy-anchor", "mpa", "untrained")}
    assert found == {"ms": None, "proxy-anchor": "ms", "mpa": "proxy-anchor", "untrained": "ms"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metods": []}, "did you mean 'methods'"),
        ({"methods": None}, "methods is missing"),
        ({"methods": {"ms": {}}}, "must be a list"),
        ({"methods": [{"recipe": "ms"}]}, r"methods\[0\] needs the keys name, got"),
        ({"methods": [{"name": "ms", "resipe": "ms"}]}, "did you mean 'recipe'"),
        ({"methods": [{"name": "ms"}, {"name": "ms"}]}, "'ms' twice"),
        ({"methods": [{"name": "ms"}, {"name": "untrained"}]}, "method name 'untrained' is reserved"),
        ({"baseline": "mss"}, "not a method of the suite; did you mean 'ms'"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [0, 0]}, "seeds contains 0 twice"),
        ({"seeds": [0.5]}, r"seeds\[0\] must be a whole number, got 0.5"),
        ({"sweep": {"a": [1], "b": [2]}}, "one key with a list"),
        ({"sweep": {"steps": 3}}, "one key with a list"),
        ({"sweep": {}}, "one key with a list"),
        ({"sweep": {"steps": [1, 2]}, "settings": ["steps=3"]}, "remove steps from the settings and from tune"),
        ({"settings": ["seed=3"]}, "each run gets its value from seeds"),
        ({"settings": ["recipe=ms"]}, "remove recipe from the settings: nearfar sets it"),
        ({"settings": ["steps"]}, "KEY=VALUE"),
        ({"methods": [{"name": "ms", "settings": ["steps={sweep}"]}]}, "the suite has no sweep"),
    ],
)
def test_mistakes_are_told(change: dict[str, Any], message: str) -> None:
    with pytest.raises(NearfarError, match=message):
        suite_from_dict({**SMALL, **change})


def test_an_unknown_suite_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match="did you mean 'profs'"):
        open_suite("prof")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SMALL))
    assert open_suite(str(tmp_path / "mine.yaml")).name == "small"


@pytest.mark.parametrize("name", suite_names())
def test_suites_that_come_along_resolve(name: str, vectors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = open_suite(name)
    assert suite.name == name
    assert suite.mirrors
    assert suite.differs
    assert {each.recipe or each.name for each in suite.methods} <= set(names())
    assert suite_from_dict(suite.to_dict()) == suite
    for asked in suite.data:
        if asked.source and asked.source.startswith("$"):
            monkeypatch.delenv(asked.source[1:], raising=False)
            with pytest.raises(NearfarError, match=re.escape(f"{asked.source}, pass --data {asked.name}=PATH")):
                suite_cells(suite, only=(asked.name,))
    ends = {suite.sweep_key: [suite.sweep_values[0], suite.sweep_values[-1]]} if suite.sweep else None
    if suite.sweep_key == "data.train_classes":  # the data of this test has fewer classes
        ends = {suite.sweep_key: [2, 3]}
    short = replace(suite, seeds=suite.seeds[:1], sweep=ends)
    # data that starts from a weight file has to be opened with that file
    settings = {each.name: each.settings for each in suite.data if "model.pretrained=" not in " ".join(each.settings)}
    cells = suite_cells(short, sources=dict.fromkeys(settings, vectors), only=tuple(settings))
    assert len(cells) == len(settings) * len(suite.methods) * len(short.sweep_values)
    for cell in cells:
        paper = "setting=paper" in settings[cell.data]
        assert cell.config.setting == ("paper" if paper else "ours")
        assert (cell.config.model.backbone == "features") != paper
        own = any(each.startswith("epochs") for each in settings[cell.data])
        assert (cell.config.steps is None) == (paper or own or suite.sweep_key == "epochs")
        shown = next(each.metrics for each in suite.data if each.name == cell.data)
        assert set(cell.config.metrics) >= set(shown or ())


def test_profs_compares_each_method_to_its_own_loss() -> None:
    suite = open_suite("profs")
    assert len(suite.methods) == 3 + 18  # contrastive, semi-hard triplets and Proxy-NCA, and six losses in three forms
    pairs = {each.name: suite.baseline_of(each.name) for each in suite.methods}
    assert [name for name, base in pairs.items() if base is None] == [
        *("contrastive", "contrastive-hard", "triplet-hard", "margin-hard", "lifted", "n-pair", "angular"),
        "proxy-nca",
    ]
    assert pairs["triplet-semi-hard"] == "triplet-hard"
    assert pairs["m-profs"] == pairs["m-profs-hncm"] == "margin-hard"


def test_prism_is_told_the_noise_rate(vectors: str) -> None:
    cells = suite_cells(open_suite("bspml"), sources={"cub-vectors": vectors}, only=("cub-vectors",))
    prism = [cell.config for cell in cells if cell.config.recipe == "prism"]
    assert {each.data.noise.rate for each in prism} == {0, 0.1, 0.2, 0.3}
    assert all(each.pacing["noise_rate"] == each.data.noise.rate for each in prism)
