"""Parsing of `--recipes`."""

from __future__ import annotations

import pytest

from nearfar.advise import DEFAULT, parse_candidates
from nearfar.errors import NearfarError


def test_default_has_eight_recipes_including_the_baselines() -> None:
    names = [each.name for each in parse_candidates(DEFAULT)]
    assert len(names) == 8
    assert {"proxy-anchor", "contrastive"} <= set(names)


def test_name_is_recipe_and_settings() -> None:
    first, second = parse_candidates("supcon,  proxy-anchor   loss.alpha=16")
    assert (first.name, second.name) == ("supcon", "proxy-anchor loss.alpha=16")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("proxy-anker, supcon", "unknown recipe 'proxy-anker'; did you mean 'proxy-anchor'"),
        ("supcon,", "unknown recipe ''"),
        ("supcon", "list at least two recipes, got 'supcon'"),
        ("supcon, supcon", "'supcon' is listed twice"),
        ("supcon steps=5, mpa", "remove 'steps=5' from supcon: advise sets it itself for each trial"),
        ("supcon data.validation=0, mpa", "advise sets it itself for each trial"),
        ("supcon loss, mpa", "a setting must be KEY=VALUE"),
    ],
)
def test_errors_name_the_mistake(text: str, message: str) -> None:
    with pytest.raises(NearfarError, match=message):
        parse_candidates(text)
