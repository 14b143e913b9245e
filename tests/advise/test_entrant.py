"""Who races, as it is written."""

from __future__ import annotations

import pytest

from nearfar.advise import DEFAULT, parse_entrants
from nearfar.errors import NearfarError


def test_the_default_is_eight_recipes_with_both_defaults_among_them() -> None:
    names = [each.name for each in parse_entrants(DEFAULT)]
    assert len(names) == 8
    assert {"proxy-anchor", "contrastive"} <= set(names)


def test_a_name_is_how_it_was_written() -> None:
    first, second = parse_entrants("supcon,  proxy-anchor   loss.alpha=16")
    assert (first.name, second.name) == ("supcon", "proxy-anchor loss.alpha=16")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("proxy-anker, supcon", "no recipe 'proxy-anker'; did you mean 'proxy-anchor'"),
        ("supcon,", "no recipe ''"),
        ("supcon", "a race needs at least two, got 'supcon'"),
        ("supcon, supcon", "'supcon' is there twice"),
        ("supcon steps=5, mpa", "supcon sets 'steps=5', but the races decide on that"),
        ("supcon data.validation=0, mpa", "the races decide on that"),
        ("supcon loss, mpa", "a setting is KEY=VALUE"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(NearfarError, match=message):
        parse_entrants(text)
