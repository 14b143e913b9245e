"""A suggestion is made for a likely typing error, and not made for an unrelated word."""

from __future__ import annotations

import pytest

from nearfar.spelling import closest, suggest

LOSSES = ["triplet", "contrastive", "multi-similarity", "normalized-softmax", "proxy-anchor", "margin", "circle"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("tripelt", "triplet"),
        ("Triplet", "triplet"),
        ("multisimilarity", "multi-similarity"),
        ("softmax", "normalized-softmax"),
        ("anchor", "proxy-anchor"),
        ("contrastiv", "contrastive"),
    ],
)
def test_likely_errors_are_corrected(word: str, meant: str) -> None:
    assert closest(word, LOSSES) == meant
    assert suggest(word, LOSSES) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize("word", ["hinge", "arcface", "x", "", "cross-entropy", "focal", "a" * 5000])
def test_unrelated_words_get_no_suggestion(word: str) -> None:
    assert closest(word, LOSSES) is None
    assert suggest(word, LOSSES) == "."
