from __future__ import annotations

import pytest

from nearfar.config.schema import Select
from nearfar.errors import NearfarError
from nearfar.training.selection import Selection


def test_the_best_epoch_and_patience() -> None:
    selection = Selection(Select(metric="recall@1", every=2, patience=2), validation=True, test=True)
    assert selection.by == "validation"
    assert [selection.wants(epoch, last=False) for epoch in range(4)] == [False, True, False, True]
    assert selection.wants(0, last=True)
    heard = [selection.hear({"recall@1": value}, epoch) for epoch, value in enumerate((0.2, 0.5, 0.5))]
    assert heard == [True, True, False]  # as good is not better
    assert not selection.patience_is_over()
    assert not selection.hear({"recall@1": 0.4}, 3)
    assert selection.patience_is_over()
    assert selection.told(3) == {"selected_by": "validation", "epoch": 1, "validation": {"recall@1": 0.5}}


def test_without_validation_the_last_is_kept_and_nothing_is_scored() -> None:
    selection = Selection(Select(patience=1), validation=False, test=True)
    assert not selection.wants(0, last=True)
    assert not selection.patience_is_over()
    assert selection.told(7) == {"selected_by": "last", "epoch": 7}


def test_what_is_missing_is_told() -> None:
    with pytest.raises(NearfarError, match=r"set data.validation=0.2"):
        Selection(Select(by="validation"), validation=False, test=True)
    with pytest.raises(NearfarError, match="needs a test split"):
        Selection(Select(by="test"), validation=True, test=False)
    with pytest.raises(NearfarError, match=r"select.metric=map@r is not among metrics: recall@1"):
        Selection(Select(), validation=True, test=True).hear({"recall@1": 1.0}, 0)
