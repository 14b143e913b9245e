"""Lists of near duplicates and outliers: order, pages, ids and decisions."""

from __future__ import annotations

import numpy as np

from nearfar.audit import DuplicateGroup, Neighborhoods
from nearfar.serve.decision_file import Decision
from nearfar.serve.json_models import Sample
from nearfar.serve.neighborhood_list import MAX_GROUP, NeighborhoodList

COUNT = 100


def make_list() -> NeighborhoodList:
    found = Neighborhoods(
        groups=(
            DuplicateGroup(np.array([1, 50]), 0.25, True, False),
            DuplicateGroup(np.arange(60, 60 + MAX_GROUP + 3), 0.5, False, True),
        ),
        outliers=np.array([7, 3, 9]),
        distance=np.zeros(COUNT),
    )
    # The ids of the samples differ from their rows, as if only one split were served.
    return NeighborhoodList(found, 1000 + np.arange(COUNT), lambda id: Sample(id=id, name="", label=0, split="test"))


def test_groups() -> None:
    page = make_list().duplicates({1050: Decision("remove")}, offset=0, limit=5)
    assert (page.total, page.across_splits) == (2, 1)
    first, second = page.groups
    assert [(sample.id, sample.decision) for sample in first.samples] == [(1001, ""), (1050, "remove")]
    assert (first.count, first.distance, first.across_splits, first.several_labels) == (2, 0.25, True, False)
    assert [sample.id for sample in second.samples] == list(range(1060, 1060 + MAX_GROUP))
    assert second.count == MAX_GROUP + 3
    assert make_list().duplicates({}, offset=1, limit=5).groups[0].count == MAX_GROUP + 3
    assert make_list().duplicates({}, offset=2, limit=5).groups == []


def test_outliers() -> None:
    page = make_list().outliers({1003: Decision("keep")}, offset=1, limit=1)
    assert page.total == 3
    assert [(sample.id, sample.decision) for sample in page.samples] == [(1003, "keep")]
