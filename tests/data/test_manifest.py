from pathlib import Path

import numpy as np
import pytest
import torch

from data import builders
from nearfar.data import Manifest, as_manifest, open_data, save_manifest
from nearfar.errors import NearfarError


def table(**changes):
    columns = {
        "labels": [0, 0, 1, 2, 2],
        "classes": ("a", "b", "c"),
        "split": ["train", "train", "train", "test", "test"],
        "paths": ("a/1", "a/2", "b/1", "c/1", "c/2"),
    }
    return Manifest(**(columns | changes))


def test_columns_are_frozen_and_input_arrays_stay_writable():
    labels = np.array([0, 1], dtype=np.int64)
    m = Manifest(labels=labels, classes=("a", "b"), split=["train"] * 2, features=np.eye(2))
    with pytest.raises(ValueError, match="read-only"):
        m.labels[0] = 1
    labels[0] = 1
    assert m.labels[0] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [0.0] * 5}, "integers"),
        ({"labels": [0, 0, 0, 0, 3]}, r"0\.\.2"),
        ({"labels": [0, 0, 0, 0, -1]}, r"0\.\.2"),
        ({"classes": ("a", "a", "c")}, "distinct"),
        ({"split": ["train"] * 4 + ["valid"]}, "'valid'"),
        ({"split": ["train"] * 4}, "shape"),
        ({"role": ["queries"] * 5}, "'queries'"),
        ({"paths": ("x",)}, "paths has 1 rows"),
        ({"paths": None}, "needs content: pass paths, features, pixels, texts or items"),
        ({"features": np.zeros((4, 2))}, "features has 4 rows"),
        ({"features": np.zeros(5)}, "features must be"),
        ({"pixels": np.zeros((5, 4, 4))}, "uint8"),
    ],
)
def test_a_wrong_table_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        table(**changes)


def test_no_samples_is_an_error_for_the_user():
    with pytest.raises(NearfarError, match="no samples"):
        table(labels=[], split=[], paths=())


def test_fingerprint_covers_the_content_but_not_the_location():
    a = table()
    assert a == table(root=Path("elsewhere"), source="other")
    for changes in (
        {"labels": [0, 1, 1, 2, 2]},
        {"classes": ("a", "b", "d")},
        {"split": ["train"] * 5},
        {"role": [""] * 5},
        {"paths": ("a/1", "a/2", "b/1", "c/1", "c/3")},
        {"features": np.zeros((5, 2))},
    ):
        assert a.fingerprint != table(**changes).fingerprint
    x = np.arange(10.0).reshape(5, 2)
    y = x.copy()
    y[4, 1] += 1
    assert table(features=x) == table(features=x.copy()) != table(features=y)


def test_subset_by_split_mask_and_rows():
    m = table(features=np.arange(10.0).reshape(5, 2), role=["train"] * 3 + ["query", "gallery"])
    assert m.subset("test").paths == ("c/1", "c/2")
    assert m.subset(m.labels == 0).features.tolist() == [[0, 1], [2, 3]]
    picked = m.subset([4, 0])
    assert picked.labels.tolist() == [2, 0]
    assert picked.role.tolist() == ["gallery", "train"]
    assert picked.classes == ("a", "b", "c")
    assert picked.compact().classes == ("a", "c")
    assert picked.compact().labels.tolist() == [1, 0]
    with pytest.raises(NearfarError, match="no val samples; its splits are: test, train"):
        m.subset("val")
    with pytest.raises(ValueError, match="mask"):
        m.subset(np.array([True]))
    with pytest.raises(NearfarError, match="no samples"):
        m.subset(np.zeros(5, dtype=bool))


def test_subsets_with_a_digest_differ():
    m = table(pixels=np.zeros((5, 2, 2), np.uint8), digest="abc", paths=None, labels=[0] * 5)
    assert m.subset([0, 1]).fingerprint != m.subset([2, 1]).fingerprint
    assert m.subset(range(5)) == m


def test_class_order_split():
    assert table().split_by_class_order().split.tolist() == ["train", "train", "test", "test", "test"]
    assert table().split_by_class_order(2).split.tolist() == ["train"] * 3 + ["test"] * 2
    # the order is by name, not by class number
    assert (
        table(classes=("z", "b", "c")).split_by_class_order().split.tolist() == ["test"] * 2 + ["train"] + ["test"] * 2
    )
    one = Manifest(labels=[0], classes=("a",), split=["test"], paths=("x",))
    assert one.split_by_class_order().split.tolist() == ["train"]
    with pytest.raises(ValueError, match="train_classes"):
        table().split_by_class_order(4)


def test_summary():
    text = str(table(split=["train", "test", "train", "test", "test"], notes=("hello",)).summary())
    assert "5 files, 3 classes" in text
    assert "smallest class b (1), largest a (2)" in text
    assert "1 class has only one sample" in text
    assert "1 class is in both train and test" in text
    assert "note: hello" in text


def test_csv_round_trip_is_exact(tmp_path):
    root = tmp_path / "images"
    names = ["007", "7", 'quo"te, comma', "ü\nline"]
    paths = [f'{i} #,"x.jpg' for i in range(4)]
    for path in paths:
        builders.write(root / path, b"x")
    m = Manifest(
        labels=[3, 1, 0, 2],
        classes=tuple(names),
        split=["train", "val", "test", "test"],
        role=["train", "", "query", "gallery"],
        paths=paths,
        root=root,
        source="mine",
        notes=("a note",),
    )
    save_manifest(m, tmp_path / "lists" / "m.csv")
    again = open_data(tmp_path / "lists" / "m.csv")
    assert again == m
    assert (again.source, again.notes, again.classes) == (m.source, m.notes, m.classes)
    assert again.root == root
    assert [p.name for p in (tmp_path / "lists").iterdir()] == ["m.csv"]


def test_an_edited_manifest_says_so(tmp_path):
    root = builders.folder(tmp_path / "d", {"cat": 2, "dog": 2})
    save_manifest(open_data(root), tmp_path / "m.csv")
    text = (tmp_path / "m.csv").read_text()
    (tmp_path / "m.csv").write_text(text.replace("cat/1.jpg,cat", "cat/1.jpg,owl"))
    again = open_data(tmp_path / "m.csv")
    assert again.classes == ("cat", "dog", "owl")
    assert "edited" in again.notes[-1]


def test_npz_round_trip_and_wrong_kind(tmp_path):
    m = table(features=np.random.default_rng(0).normal(size=(5, 3)).astype(np.float16), role=["query"] * 5)
    save_manifest(m, tmp_path / "m.npz")
    assert open_data(tmp_path / "m.npz") == m
    with pytest.raises(NearfarError, match=r"save it as .npz"):
        save_manifest(m, tmp_path / "m.csv")
    with pytest.raises(NearfarError, match=r"save it as .csv"):
        save_manifest(table(), tmp_path / "m.npz")
    tensors = as_manifest([(torch.zeros(2, 3, 3), 0), (torch.ones(2, 3, 3), 1)])
    for name in ("m.npz", "m.csv"):  # neither advises the other
        with pytest.raises(NearfarError, match=r"samples of .* are (not files|read from a dataset)"):
            save_manifest(tensors, tmp_path / name)
    with pytest.raises(NearfarError, match=r"\.csv \(for files and texts\)"):
        save_manifest(m, tmp_path / "m.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.npz"]


def test_a_permutation_has_another_fingerprint():
    pixels = np.arange(4 * 9, dtype=np.uint8).reshape(4, 3, 3)
    m = Manifest(labels=[0, 0, 0, 0], classes=("a",), split=["train"] * 4, pixels=pixels, digest="known")
    assert m.subset([0, 1, 2, 3]).fingerprint == m.fingerprint
    assert m.subset([3, 2, 1, 0]).fingerprint != m.fingerprint
    assert m.subset([3, 2, 1, 0]).fingerprint != m.subset([1, 0, 2, 3]).fingerprint


def test_counts_are_inflected():
    m = Manifest(labels=[0], classes=("a",), split=["train"], paths=("x",))
    assert "manifest: 1 file, 1 class\n" in str(m.summary())
    assert "1 sample, 1 class\n" in str(m.summary())
    assert "every class has 1 sample\n" in str(m.summary())
    assert "1 class has only one sample" in str(m.summary())


def test_the_reason_for_refused_labels_fits_their_type(tmp_path):
    for labels, has_reason in (([[0], [1]], False), ([0.0, 1.0], True)):
        np.savez(tmp_path / "x.npz", features=np.ones((2, 2)), labels=labels)
        with pytest.raises(NearfarError, match="labels must be integers or strings") as refused:
            open_data(tmp_path / "x.npz")
        assert ("floats are refused" in str(refused.value)) == has_reason
