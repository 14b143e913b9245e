"""Tar shards and Parquet files: images are found by key and read by position, and bad files give one line."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nearfar.data import open_data
from nearfar.data.images import ImageReader
from nearfar.errors import NearfarError


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (value, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write_shard(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for shard in range(3):
        members: dict[str, bytes] = {}
        for row in range(4):
            number = 4 * shard + row
            members[f"{number:04}.jpg"] = png(number)
            members[f"{number:04}.cls"] = str(number % 2).encode()
        write_shard(tmp_path / f"data-{shard:03}.tar", members)
    return tmp_path


def read_red(source: Path | str, row: int) -> int:
    pixel = ImageReader(open_data(source)).read_image(row).getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return int(pixel[0])


def test_a_pattern_a_folder_and_a_file(shards: Path) -> None:
    manifest = open_data(str(shards / "data-{000..002}.tar"))
    assert (len(manifest), manifest.kind, manifest.classes) == (12, "files", ("0", "1"))
    assert manifest.labels.tolist() == [0, 1] * 6
    assert manifest.name(5) == "data-001.tar/0005.jpg"
    assert manifest == open_data(shards)
    assert [read_red(shards, row) for row in (0, 5, 11)] == [0, 5, 11]
    assert len(open_data(shards / "data-001.tar")) == 4


def test_labels_and_splits_in_json(tmp_path: Path) -> None:
    members = {}
    for row in range(4):
        members[f"a/{row}.png"] = png(row)
        members[f"a/{row}.json"] = json.dumps({"kind": f"k{row // 2}", "split": "test" if row else "train"}).encode()
    write_shard(tmp_path / "x.tar", members)
    manifest = open_data(tmp_path / "x.tar", label="kind")
    assert (manifest.classes, manifest.split.tolist()) == (("k0", "k1"), ["train", "test", "test", "test"])


def test_bad_shards(tmp_path: Path, shards: Path) -> None:
    def failed(source: Path | str, **options: Any) -> str:
        with pytest.raises(NearfarError) as caught:
            open_data(source, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "there is no shard" in failed(str(shards / "data-{000..003}.tar"))
    write_shard(tmp_path / "a.tar", {"1.jpg": png(1), "1.cls": b"a", "2.jpg": png(2)})
    assert "the sample /2 has no label" in failed(tmp_path / "a.tar")
    assert len(open_data(tmp_path / "a.tar", allow_partial=True)) == 1
    write_shard(tmp_path / "b.tar", {"1.jpg": png(1), "1.json": b"[1]"})
    assert "1.json must hold a JSON object, got list" in failed(tmp_path / "b.tar")
    write_shard(tmp_path / "c.tar", {"1.jpg": png(1), "1.cls": b"\xff"})
    assert "1.cls cannot be read" in failed(tmp_path / "c.tar")
    write_shard(tmp_path / "d.tar", {"1.jpg": png(1), "1.cls": b"a", "../2.jpg": png(2)})
    assert "has '..' in its path" in failed(tmp_path / "d.tar")


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    arrow, tables = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "image": [png(row) for row in range(6)],
        "kind": ["a|b", "b", "c", "c|a", "d", "d"],
        "shot": [0, 0, 1, 1, 2, 2],
        "label": ["x", "x", "y", "y", "z", "z"],
    }
    tables.write_table(arrow.table(columns), tmp_path / "images.parquet", row_group_size=2)
    return tmp_path / "images.parquet"


def test_parquet_with_images(parquet: Path) -> None:
    manifest = open_data(parquet)
    assert (manifest.kind, manifest.classes, manifest.name(3)) == ("files", ("x", "y", "z"), "row 3")
    assert [read_red(parquet, row) for row in (0, 3, 5)] == [0, 3, 5]
    chosen = open_data(parquet, label="kind", separator="|", group="shot")
    assert chosen.annotations is not None
    assert chosen.targets.astype(int).tolist()[:2] == [[1, 1, 0, 0], [0, 1, 0, 0]]
    assert chosen.annotations.group is not None
    assert chosen.subset([1, 4]).annotations.group.tolist() == [0, 2]  # type: ignore[union-attr]
    assert chosen != open_data(parquet, label="kind", separator="|")


def test_parquet_with_texts(tmp_path: Path) -> None:
    arrow, tables = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    tables.write_table(arrow.table({"body": ["one", "two"], "label": [1, 2]}), tmp_path / "t.parquet")
    assert open_data(tmp_path / "t.parquet", text="body").texts == ("one", "two")


def test_bad_parquet_columns(parquet: Path) -> None:
    with pytest.raises(NearfarError, match="the column 'kind' of images has the type string, not bytes"):
        open_data(parquet, image="kind")
    with pytest.raises(NearfarError, match=r"has no column 'shoot' for data.group.*did you mean 'shot'"):
        open_data(parquet, group="shoot")


def test_annotations_change_the_scores(tmp_path: Path) -> None:
    from nearfar.training.evaluate import score

    lines = ["path,label,camera,video"] + [f"{row}.png,{'ab'[row // 4]},{row % 2},{row // 2}" for row in range(8)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    for row in range(8):
        (tmp_path / f"{row}.png").write_bytes(png(row))
    embeddings = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    from nearfar import evaluate

    for options, ignore in (
        ({}, None),
        ({"camera": "camera"}, [[j for j in range(8) if j // 4 == i // 4 and j % 2 == i % 2] for i in range(8)]),
        ({"group": "video"}, [[j for j in range(8) if j // 2 == i // 2] for i in range(8)]),
    ):
        manifest = open_data(tmp_path / "t.csv", **options)
        expected = evaluate(embeddings, manifest.labels, metrics=("recall@1", "map@r"), ignore=ignore)
        found = score(__import__("torch").from_numpy(embeddings), manifest, ("recall@1", "map@r"))
        assert dict(found) == dict(expected)
