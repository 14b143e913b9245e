from __future__ import annotations

import pytest

from nearfar.config.schema import Select
from nearfar.errors import NearfarError
from nearfar.training.selection import Selection


def test_the_best_epoch_and_patience() -> None:
    selection = Selection(Select(metric="recall@1", every=2, patience=2), validation=True, test=True)
    assert selection.by == "validation"
    assert [selection.should_score(epoch, is_last=False) for epoch in range(4)] == [False, True, False, True]
    assert selection.should_score(0, is_last=True)
    is_best = [selection.update({"recall@1": value}, epoch) for epoch, value in enumerate((0.2, 0.5, 0.5))]
    assert is_best == [True, True, False]  # an equal score is not better
    assert not selection.is_patience_over()
    assert not selection.update({"recall@1": 0.4}, 3)
    assert selection.is_patience_over()
    assert selection.result(3) == {"selected_by": "validation", "epoch": 1, "validation": {"recall@1": 0.5}}


def test_without_validation_the_last_epoch_is_kept() -> None:
    selection = Selection(Select(patience=1), validation=False, test=True)
    assert not selection.should_score(0, is_last=True)
    assert not selection.is_patience_over()
    assert selection.result(7) == {"selected_by": "last", "epoch": 7}


def test_missing_splits_and_metrics_are_errors() -> None:
    with pytest.raises(NearfarError, match=r"set data.validation=0.2"):
        Selection(Select(by="validation"), validation=False, test=True)
    with pytest.raises(NearfarError, match="needs a test split"):
        Selection(Select(by="test"), validation=True, test=False)
    with pytest.raises(NearfarError, match=r"select.metric=map@r is not one of the metrics: recall@1"):
        Selection(Select(), validation=True, test=True).update({"recall@1": 1.0}, 0)
