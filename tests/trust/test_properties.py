"""What holds of any input at all, not only of those somebody thought of."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearfar.config.keys import all_settings
from nearfar.config.merge import from_dict, resolve
from nearfar.data import open_data
from nearfar.errors import NearfarError
from nearfar.training.checkpoint import load_state, save_state
from nearfar.training.log import read_log

some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
text = st.text(max_size=12)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text
trees = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)
LIMITED = {key: each for key, each in all_settings().items() if each.least is not None or each.above is not None}
sections = ("data", "loss", "batches", "model", "optimizer", "schedule", "select", "steps", "epochs", "metrics", "seed")


@some
@given(st.dictionaries(st.sampled_from(sections) | text, trees, max_size=4))
def test_any_tree_is_a_configuration_or_refused(tree: dict[str, Any]) -> None:
    with contextlib.suppress(NearfarError):  # any other error fails
        config = from_dict(tree)
        assert from_dict(config.to_dict()) == config


@some
@given(st.sampled_from(sorted(LIMITED)), st.integers() | st.floats())
def test_a_number_below_the_least_is_refused(place: str, value: float) -> None:
    setting = LIMITED[place]
    good = value > setting.above if setting.above is not None else value >= setting.least
    # set steps and epochs, one excludes the other
    base = ["loss.name=triplet", f"{place}={value!r}"]
    if not good:
        with pytest.raises(NearfarError, match=place.replace(".", r"\.")):
            resolve("features", settings=base)
    else:
        with contextlib.suppress(NearfarError):  # an upper limit, or no whole number
            resolve("features", settings=base)


@some
@given(st.binary(max_size=200) | st.text(alphabet="path,label\n\"'\0#x é", max_size=60).map(str.encode))
def test_any_bytes_are_a_table_or_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(data)
    with pytest.raises(NearfarError, match=r"table\.csv"):  # none of the files that it could name is there
        open_data(path)


@some
@given(
    st.lists(st.fixed_dictionaries({"kind": text, "step": st.integers(0, 9), "more": plain}), max_size=4),
    st.integers(0, 300),
)
def test_a_log_cut_anywhere_gives_its_whole_lines(tmp_path: Path, entries: list[dict[str, Any]], cut: int) -> None:
    lines = [json.dumps(entry) + "\n" for entry in entries]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(lines)[:cut])
    found = read_log(path)
    assert found == entries[: len(found)]
    # a last line may be whole but for its end
    assert len(found) - "".join(lines)[:cut].count("\n") in (0, 1)


leaves = plain | st.floats() | st.lists(st.floats(width=32), max_size=4).map(torch.tensor)
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(text | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (
        one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))
    )


@some
@given(states)
def test_any_state_comes_back(tmp_path: Path, state: Any) -> None:
    save_state(tmp_path / "state", state)
    assert same(load_state(tmp_path / "state"), state)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
