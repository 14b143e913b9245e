"""Tables of pairs: how they are read, sampled and trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import load_file

from nearfar import samplers
from nearfar.cli import main
from nearfar.data import open_data
from nearfar.errors import NearfarError
from nearfar.runs import Run
from nearfar.training import train
from nearfar.training.components import pairs_of
from nearfar.training.failed_batch import recompute_loss

SMALL = "model.backbone=small model.pretrained=false model.dim=8 images.crop=16 data.workers=0 steps=6 threads=1"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """24 images of 8 things: the pairs connect the images of a thing, and some pairs are negative."""
    rng = np.random.default_rng(0)
    rows = ["a,b,relation"]
    for thing in range(8):
        color = rng.integers(0, 200, 3)
        for i in range(3):
            image = (color + rng.integers(0, 40, (20, 20, 3))).astype(np.uint8)
            Image.fromarray(image).save(tmp_path / f"{thing}-{i}.png")
        rows += [f"{thing}-0.png,{thing}-1.png,1", f"{thing}-1.png,{thing}-2.png,+1"]
        rows += [f"{thing}-0.png,{(thing + 1) % 8}-0.png,-1"]
    rows += ["0-0.png,4-0.png,"]
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_table_with_a_byte_order_mark_is_read(table: Path) -> None:
    """Spreadsheets write this mark at the start of a CSV file in UTF-8."""
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    assert pairs_of(open_data(table)) is not None


def test_groups_and_relations(table: Path) -> None:
    data = open_data(table)
    pairs = pairs_of(data)
    assert pairs is not None
    assert len(data) == 24
    assert len(pairs) == 24  # the pair without a relation is left out
    assert len(data.classes) == 8
    assert set(data.split.tolist()) == {"train", "test"}
    assert data.paths is not None
    rows = torch.tensor([data.paths.index(f"{name}.png") for name in ("0-0", "0-1", "0-2", "1-0", "2-0")])
    nan = float("nan")
    expected = [[nan, 1, nan, 0, 0], [1, nan, 1, 0, 0], [nan, 1, nan, 0, 0], [0, 0, 0, nan, 0], [0, 0, 0, 0, nan]]
    assert np.array_equal(pairs.relation(rows).numpy(), expected, equal_nan=True)
    part = data.subset(rows.numpy())
    moved = pairs_of(part)
    assert moved is not None
    assert np.array_equal(moved.relation(torch.arange(5)).numpy(), expected, equal_nan=True)
    assert data.subset("train").fingerprint != data.subset("test").fingerprint


def test_a_listed_negative_within_a_group_stays_negative(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text_a,text_b,relation\nx,y,1\ny,z,0.75\nx,z,0\nu,v,0.25\n")
    data = open_data(path)
    pairs = pairs_of(data)
    assert data.kind == "text"
    assert pairs is not None
    assert pairs.is_graded
    assert data.labels.tolist() == [0, 0, 0, 1, 2]
    relation = pairs.relation(torch.arange(5))
    assert relation[0, 2] == 0
    assert relation[1, 2] == 0.75
    assert relation[3, 4] == 0.25


def test_every_pair_is_in_a_batch(table: Path) -> None:
    data = open_data(table)
    pairs = pairs_of(data)
    assert pairs is not None
    rows = np.stack([pairs.first, pairs.second], axis=1)
    sampler = samplers.create("pairs", labels=data.labels, pairs=rows, size=8)
    batches = [set(batch) for batch in sampler]
    assert all(len(batch) <= 8 for batch in batches)
    missing = [pair for pair in rows.tolist() if not any(set(pair) <= batch for batch in batches)]
    assert len(missing) <= 3  # those of a small last batch
    assert [set(batch) for batch in sampler] != batches  # the next epoch
    with pytest.raises(ValueError, match="needs a table of pairs"):
        samplers.create("pairs", labels=data.labels)


def test_the_loss_of_a_failed_batch_can_be_recomputed(table: Path, tmp_path: Path) -> None:
    words = [word for each in (*SMALL.split(), "batches.size=8", "optimizer.lr=1e30") for word in ("--set", each)]
    result = CliRunner().invoke(main, ["train", str(table), *words, "--out", str(tmp_path / "run")])
    assert result.exit_code == 1
    with pytest.raises(ValueError, match="embeddings") as error:
        recompute_loss(tmp_path / "run")
    assert str(error.value) in " ".join(result.output.split())


def test_the_command_trains_and_resumes(table: Path, tmp_path: Path) -> None:
    words = [word for setting in (*SMALL.split(), "batches.size=8") for word in ("--set", setting)]
    result = CliRunner().invoke(main, ["train", str(table), *words, "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    run = Run(tmp_path / "run")
    assert run.config.recipe == "supcon"
    assert run.config.batches.name == "pairs"
    assert run.results()["test"]["recall@1"] > 0
    train(run.config, tmp_path / "cut", say=lambda _: None, stop_after=3)
    train(run.config, tmp_path / "cut", say=lambda _: None, resume=True)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("setting", ["loss.name=arcface", "loss=[{name: supcon}, {name: triplet}]"])
def test_losses_that_need_classes_are_refused(table: Path, tmp_path: Path, setting: str) -> None:
    words = [word for each in (*SMALL.split(), setting) for word in ("--set", each)]
    result = CliRunner().invoke(main, ["train", str(table), *words, "--out", str(tmp_path / "run")])
    assert result.exit_code == 1
    assert "needs classes, but pairs.csv has pairs: use a single pair loss" in result.output


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("x,y,2", "row 2: relation must be 1, 0, -1 or a grade between 0 and 1, got '2'"),
        ("x,x,1", "row 2: both samples of the pair are 'x'"),
        ("x,,1", "row 2: a sample of the pair is empty"),
        ("x,y,1\ny,x,0", "the pair of 'y' and 'x' has the relations 1 and 0: keep one"),
        ("x,y", "row 2: 2 cells but 3 columns"),
    ],
)
def test_errors_name_the_row(tmp_path: Path, rows: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"text_a,text_b,relation\n{rows}\n")
    with pytest.raises(NearfarError, match=message):
        open_data(path)


def test_a_sample_has_one_split(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text_a,text_b,split\nx,y,train\nu,v,test\n")
    assert open_data(path).split.tolist() == ["train", "train", "test", "test"]
    path.write_text("text_a,text_b,split\nx,y,train\nx,v,test\n")
    with pytest.raises(NearfarError, match="'x' is in pairs of the splits train and test"):
        open_data(path)
