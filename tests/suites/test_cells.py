"""The id of a cell says what decides its scores, and nothing else."""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nearfar.data import Manifest, save_manifest
from nearfar.errors import NearfarError
from nearfar.suites.cells import Cell, suite_cells
from nearfar.suites.suite_file import suite_from_dict


def cells_of(source: str, **changes: Any) -> list[Cell]:
    tree = {
        "name": "s",
        "data": [{"name": "here", "source": source}],
        "methods": [{"name": "proxy-anchor"}],
        "settings": ["steps=5"],
        **changes,
    }
    return suite_cells(suite_from_dict(tree))


def id_of(source: str, *settings: str, **changes: Any) -> str:
    (cell,) = cells_of(source, settings=["steps=5", *settings], **changes)
    return cell.id


def test_run_only_settings_and_the_place_of_the_data_leave_the_id(vectors: str, tmp_path: Path) -> None:
    base = id_of(vectors)
    for setting in ("threads=2", "log_every=3", "save_every=5", "device=cpu", "data.workers=1", "track=[tensorboard]"):
        assert id_of(vectors, setting) == base, setting
    shutil.copy(vectors, tmp_path / "moved.npz")
    assert id_of(str(tmp_path / "moved.npz")) == base
    assert id_of(vectors, name="other", methods=[{"name": "pa", "recipe": "proxy-anchor"}]) == base


def test_an_archive_of_pictures_is_known_by_its_content(tmp_path: Path) -> None:
    def packed(name: str, shade: int) -> str:
        with tarfile.open(tmp_path / name, "w") as tar:
            for i in range(8):
                content = BytesIO()
                Image.new("RGB", (8, 8), (shade, i, 0)).save(content, "PNG")
                member = tarfile.TarInfo(f"class-{i // 2}/{i}.png")
                member.size = len(content.getvalue())
                tar.addfile(member, BytesIO(content.getvalue()))
        return str(tmp_path / name)

    base = id_of(packed("here.tar", 10))
    shutil.copy(tmp_path / "here.tar", tmp_path / "there.tar")
    assert id_of(str(tmp_path / "there.tar")) == base
    assert id_of(packed("other.tar", 20)) != base
    assert id_of(packed("here.tar", 30)) != base, "the archive was written anew"


def test_everything_else_changes_the_id(vectors: str, tmp_path: Path) -> None:
    settings = ("steps=6", "optimizer.lr=1e-4", "loss.alpha=16", "data.validation=0.2", "data.noise.rate=0.1")
    ids = [id_of(vectors), *(id_of(vectors, setting) for setting in settings), id_of(vectors, seeds=[1])]
    rng = np.random.default_rng(5)
    labels, features = np.repeat(np.arange(4), 5), rng.normal(size=(20, 16))
    other = Manifest(labels=labels, classes=tuple("abcd"), split=["train"] * 20, features=features)
    save_manifest(other.split_by_class_order(), tmp_path / "other.npz")
    ids.append(id_of(str(tmp_path / "other.npz")))
    ids.append(id_of(vectors, metrics=["recall@1", "mrr"]))
    assert len(set(ids)) == len(ids)


def test_later_settings_win(vectors: str) -> None:
    (cell,) = cells_of(
        vectors,
        settings=["steps=5", "ema=0.1", "optimizer.lr=0.1", "log_every=1"],
        data=[{"name": "here", "source": vectors, "settings": ["ema=0.2", "optimizer.lr=0.2", "log_every=2"]}],
        methods=[{"name": "proxy-anchor", "settings": ["optimizer.lr=0.3", "log_every=3"]}],
        override=["log_every=4"],
        seeds=[7],
    )
    config = cell.config
    assert (config.steps, config.ema, config.optimizer.lr, config.log_every, config.seed) == (5, 0.2, 0.3, 4, 7)
    assert config.untrained


def test_a_method_without_the_sweep_is_one_cell(vectors: str) -> None:
    cells = cells_of(
        vectors,
        methods=[{"name": "n-profs"}, {"name": "n-pair", "swept": False}],
        sweep={"batches.steps": [1, 2, 5]},
    )
    assert [cell.config.batches.steps for cell in cells if cell.method == "n-profs"] == [1, 2, 5]
    assert len({cell.id for cell in cells if cell.method == "n-pair"}) == 1
    assert len({cell.id for cell in cells}) == 4


def test_sources_from_the_environment_and_the_command_line(
    vectors: str, drawings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = suite_from_dict(
        {"name": "s", "data": [{"name": "here", "source": "$NEARFAR_TEST"}], "methods": [{"name": "proxy-anchor"}]}
    )
    monkeypatch.delenv("NEARFAR_TEST", raising=False)
    with pytest.raises(NearfarError, match=r"here: .*set \$NEARFAR_TEST, pass --data here=PATH"):
        suite_cells(suite)
    monkeypatch.setenv("NEARFAR_TEST", vectors)
    assert suite_cells(suite)[0].config.data.source == vectors
    assert suite_cells(suite, sources={"here": drawings})[0].config.data.source == drawings
    nowhere = replace(suite, data=(replace(suite.data[0], source=None),))
    with pytest.raises(NearfarError, match="here: the path of this dataset is unknown: pass --data"):
        suite_cells(nowhere)
    for wrong in ({"sources": {"hear": vectors}}, {"only": ("hear",)}):
        with pytest.raises(NearfarError, match="did you mean 'here'"):
            suite_cells(suite, **wrong)  # type: ignore[arg-type]


def test_a_wrong_setting_names_data_and_method(vectors: str) -> None:
    with pytest.raises(NearfarError, match="here, proxy-anchor: optimizer has no 'momentun'"):
        cells_of(vectors, settings=["optimizer.momentun=1"])
