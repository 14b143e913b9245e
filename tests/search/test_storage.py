"""An index on disk: round trips, memory maps, every kind of damage, and interrupted saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.errors import NearfarError
from nearfar.search import Index, Part, storage
from nearfar.search.storage import INDEX_FILE


def make_index(kind: str = "hnsw") -> Index:
    rng = np.random.default_rng(0)
    names = [f"images/{i} \udcff\t.png" for i in range(400)]
    index = Index.from_vectors(
        rng.normal(size=(400, 8)), labels=np.arange(400) % 3, classes=("a", "ö", 'c"'), names=names, kind=kind
    )
    index.remove(np.arange(20))
    index.parts, index.model = (Part("some/where", 0, 400, "f" * 64),), "0" * 64
    return index


def same(one: Index, other: Index) -> bool:
    queries = np.random.default_rng(1).normal(size=(20, 8))
    answers = [np.array_equal(a, b) for a, b in zip(one.search(queries), other.search(queries), strict=True)]
    columns = [np.array_equal(getattr(one, n), getattr(other, n)) for n in ("vectors", "ids", "labels")]
    plain = [getattr(one, n) == getattr(other, n) for n in ("kind", "dim", "classes", "parts", "model")]
    return all([*answers, *columns, *plain, list(one.names) == list(other.names)])


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivf-pq"])
@pytest.mark.parametrize("mmap", [True, False])
def test_round_trip(kind: str, mmap: bool, tmp_path: Path) -> None:
    index = make_index(kind)
    index.save(tmp_path / "index")
    again = Index.load(tmp_path / "index", mmap=mmap)
    assert same(index, again)
    base: Any = again.vectors
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap) == mmap
    assert b"pickle" not in (tmp_path / "index" / INDEX_FILE).read_bytes()


def test_without_labels_and_without_rows(tmp_path: Path) -> None:
    for index in (Index.from_vectors(np.eye(3)), Index.from_vectors(np.zeros((0, 3)))):
        index.save(tmp_path / "index")
        again = Index.load(tmp_path / "index")
        assert again.labels is None
        assert again.vectors.shape == index.vectors.shape


def test_save_over_mapped_files(tmp_path: Path) -> None:
    make_index().save(tmp_path / "index")
    mapped = Index.load(tmp_path / "index")
    other = Index.load(tmp_path / "index")
    before = {path.name for path in (tmp_path / "index").iterdir()}
    mapped.add(np.ones((1, 8)), labels=[0])
    mapped.save(tmp_path / "index")
    assert same(mapped, Index.load(tmp_path / "index"))
    assert len(other) == 380  # its files are gone from the folder but still mapped
    assert other.search(np.ones((1, 8)), 3)[1].max() < 400
    after = {path.name for path in (tmp_path / "index").iterdir()}
    assert before & after == {INDEX_FILE}
    assert len(before) == len(after)


@pytest.mark.parametrize("failing", range(1, 8))
def test_interrupted_save_leaves_the_old_index(failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = make_index()
    old.save(tmp_path / "index")
    new = Index.load(tmp_path / "index")
    new.add(np.ones((1, 8)), labels=[0])
    real, calls = storage.os.replace, 0

    def replace(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(storage.os, "replace", replace)
    with pytest.raises(NearfarError, match="No space left"):
        new.save(tmp_path / "index")
    monkeypatch.undo()
    assert same(old, Index.load(tmp_path / "index"))
    new.save(tmp_path / "index")
    assert same(new, Index.load(tmp_path / "index"))
    assert len(list((tmp_path / "index").iterdir())) == 7  # files of the interrupted save are removed


FILES = ("index.json", "vectors", "ids", "labels", "names", "index.", "slots")


def file_of(folder: Path, start: str) -> Path:
    names = [path.name for path in folder.iterdir() if path.name.startswith(start)]
    (name,) = (name for name in names if start == INDEX_FILE or name != INDEX_FILE)
    return folder / name


@pytest.mark.parametrize("start", FILES)
@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "gone", "longer"])
def test_damage_to_any_file_names_the_file(start: str, damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    make_index().save(folder)
    path = file_of(folder, start)
    data = path.read_bytes()
    for place in (0, len(data) // 3, len(data) // 2, len(data) - 2):
        if damage == "gone":
            path.unlink(missing_ok=True)
        else:
            flipped = bytearray(data)
            flipped[place] ^= 1
            changed = {"cut": data[:place], "empty": b"", "flipped": bytes(flipped), "longer": data + b"x"}
            path.write_bytes(changed[damage])
        with pytest.raises(NearfarError) as caught:
            Index.load(folder)
        assert str(path if (start, damage) != (INDEX_FILE, "gone") else folder) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_flipped_bits_in_the_header_are_detected(tmp_path: Path) -> None:
    Index.from_vectors(np.eye(2), labels=[0, 1], classes=("a", "b")).save(tmp_path / "index")
    path = tmp_path / "index" / INDEX_FILE
    data = path.read_bytes()
    for place in range(0, len(data) - 1, 2):
        for bit in (0, 5):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            try:
                Index.load(tmp_path / "index")
            except NearfarError:
                continue
            # One whitespace character for another changes nothing that is read.
            assert json.loads(bytes(changed)) == json.loads(data)


def rewrite_header(folder: Path, **changes: Any) -> None:
    about = json.loads((folder / INDEX_FILE).read_text())
    del about["sha256"]
    about |= changes
    (folder / INDEX_FILE).write_text(json.dumps(about | {"sha256": storage._digest(about)}))


def test_other_versions_and_foreign_files(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    make_index().save(folder)
    rewrite_header(folder, version=2)
    with pytest.raises(NearfarError, match="has version 2, but this nearfar reads version 1: update nearfar"):
        Index.load(folder)
    for text in ('{"format": "something else"}', "[1, 2]", "3", "null"):
        (folder / INDEX_FILE).write_text(text)
        with pytest.raises(NearfarError, match="is not a nearfar index"):
            Index.load(folder)
    with pytest.raises(NearfarError, match=r"is not an index: index\.json is missing"):
        Index.load(tmp_path / "nowhere")


def test_valid_checksums_of_wrong_files(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    make_index().save(folder)
    rewrite_header(folder, count=379)
    with pytest.raises(NearfarError, match="does not match"):
        Index.load(folder)
    make_index().save(folder)
    about = json.loads((folder / INDEX_FILE).read_text())
    for name in ("../secret.npy", "/etc/passwd", "vectors.npy"):
        files = about["files"] | {"vectors": about["files"]["vectors"] | {"name": name}}
        rewrite_header(folder, files=files)
        with pytest.raises(NearfarError, match="is not a nearfar index"):
            Index.load(folder)
    make_index("ivf-pq").save(tmp_path / "other")
    make_index("hnsw").save(folder)
    file_of(folder, "index.").write_bytes(file_of(tmp_path / "other", "index.").read_bytes())
    files = json.loads((folder / INDEX_FILE).read_text())["files"]
    files["index"]["sha256"] = storage.compute_sha256(file_of(folder, "index."))
    rewrite_header(folder, files=files)
    with pytest.raises(NearfarError, match="does not contain the expected hnsw index"):
        Index.load(folder)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    make_index("exact").save(folder)
    path = file_of(folder, "ids")
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    files = json.loads((folder / INDEX_FILE).read_text())["files"]
    files["ids"]["sha256"] = storage.compute_sha256(path)
    rewrite_header(folder, files=files)
    with pytest.raises(NearfarError, match="ids"):
        Index.load(folder)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(NearfarError, match="holds other files but no index"):
        make_index("exact").save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
