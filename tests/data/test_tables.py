import sys

import numpy as np
import pytest

from data import builders
from data.builders import write
from nearfar.data import open_data
from nearfar.errors import NearfarError


@pytest.fixture
def images(tmp_path):
    return builders.folder(tmp_path / "p", {"a": 2, "b": 2})


def test_csv_without_split_is_split_by_class_order(tmp_path, images):
    text = "\ufefflabel,extra,path\n007,x,a/0.jpg\n7,x,a/1.jpg\n007,y,b/0.jpg\n"
    m = open_data(write(tmp_path / "m.csv", text), root=images)
    assert m.classes == ("007", "7")
    assert m.labels.tolist() == [0, 1, 0]
    assert m.split.tolist() == ["train", "test", "train"]


def test_tsv_and_absolute_paths(tmp_path, images):
    rows = "".join(f"{images}/{p}\t{c}\ttrain\n" for p, c in (("a/0.jpg", 1), ("b/0.jpg", 2)))
    m = open_data(write(tmp_path / "m.tsv", "path\tlabel\tsplit\n" + rows))
    assert len(m) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("path,lable\na/0.jpg,1\n", "no column 'label' .* did you mean 'lable'"),
        ("path,label\n", "no rows"),
        ("path,label\na/0.jpg\n", "row 2: 1 cells but 2 columns"),
        ("path,label\na/0.jpg,\n", "row 2: the label is empty"),
        (
            "path,label,split\na/0.jpg,1,training\n",
            "row 2: split must be .*, got 'training'; did you mean 'train'",
        ),
        ("path,label,role\na/0.jpg,1,querry\n", "did you mean 'query'"),
        ("path,label\na/0.jpg,1\na/9.jpg,1\n", "1 of 2 listed files do not exist below .*a/9.jpg"),
        ("# nearfar manifest 1: {bad\npath,label\n", "line 1: the header written by nearfar is damaged"),
        ('path,label\n"a/0.jpg,1\n', "row 2: 1 cells|not readable"),
    ],
)
def test_csv_errors_name_the_row(tmp_path, images, text, message):
    with pytest.raises(NearfarError, match=message) as caught:
        open_data(write(tmp_path / "m.csv", text), root=images)
    assert "\n" not in str(caught.value)


def test_csv_partial(tmp_path, images):
    file = write(tmp_path / "m.csv", "path,label\na/0.jpg,1\na/9.jpg,1\n")
    m = open_data(file, root=images, allow_partial=True)
    assert len(m) == 1
    assert "1 of 2 listed files" in m.notes[0]
    with pytest.raises(NearfarError, match="2 of 2 listed"):
        open_data(file, root=tmp_path, allow_partial=True)


def test_csv_with_an_archive_as_root(tmp_path):
    archive = builders.tar(tmp_path / "p.tar", {"a/0.jpg": builders.jpeg(0), "b/0.jpg": builders.jpeg(1)})
    file = write(tmp_path / "m.csv", "path,label\na/0.jpg,1\nb/0.jpg,2\n")
    assert open_data(file, root=archive).root == archive
    with pytest.raises(NearfarError, match="do not exist"):
        open_data(write(tmp_path / "n.csv", "path,label\nc/0.jpg,1\n"), root=archive)


def test_parquet(tmp_path, images, monkeypatch):
    file = write(tmp_path / "m.parquet", b"PAR1")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(NearfarError, match="pip install pyarrow"):
            open_data(file, root=images)
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    with pytest.raises(NearfarError, match="not readable as Parquet"):
        open_data(file, root=images)
    parquet.write_table(pyarrow.table({"path": ["a/0.jpg", "b/0.jpg"], "label": [2**60, 2**60 + 1]}), file)
    assert open_data(file, root=images).classes == (str(2**60), str(2**60 + 1))
    parquet.write_table(pyarrow.table({"path": ["a/0.jpg"], "label": [1.0]}), file)
    with pytest.raises(NearfarError, match="column label, row 0: expected a string or an integer, got float"):
        open_data(file, root=images)


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_npz_features_with_names_and_split(tmp_path):
    x = np.eye(3, dtype=np.float16)
    m = open_data(npz(tmp_path / "f.npz", features=x, labels=np.array([1, 0, 1], np.int16), classes=["a", "b"]))
    assert m.classes == ("a", "b")
    assert m.features.dtype == np.float16
    assert m.split.tolist() == ["test", "train", "test"]
    m = open_data(npz(tmp_path / "f.npz", x=x, y=["b", "a", "b"], split=["train", "val", "test"]))
    assert m.labels.tolist() == [1, 0, 1]
    assert m.split.tolist() == ["train", "val", "test"]


def test_npz_large_ids_stay_exact(tmp_path):
    m = open_data(npz(tmp_path / "f.npz", x=np.eye(2), y=np.array([2**53, 2**53 + 1])))
    assert m.classes == (str(2**53), str(2**53 + 1))


def test_npz_images_with_is_eval_per_class(tmp_path):
    x = np.zeros((4, 6, 5), np.uint8)
    m = open_data(npz(tmp_path / "f.npz", x=x, y=[0, 1, 1, 2], names=["c", "b", "a"], is_eval=[True, False, True]))
    assert m.kind == "pixels"
    assert m.split.tolist() == ["test", "train", "train", "test"]
    m = open_data(npz(tmp_path / "f.npz", x=x[..., None], y=[0, 1, 1, 2], names=["c", "b", "a"]))
    assert m.pixels.shape == (4, 6, 5)
    assert m.split.tolist() == ["test", "test", "test", "train"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": [0]}, "no array 'features'"),
        ({"features": np.eye(2)}, "no array 'labels'"),
        ({"features": np.eye(2), "labels": [0, 1, 1]}, "features has 2 rows but labels has 3"),
        ({"features": np.eye(2), "labels": [0.0, 1.0]}, "floats are refused"),
        ({"features": np.eye(2), "labels": [0, 2], "classes": ["a", "b"]}, "but there are 2 class names"),
        ({"features": np.eye(2), "labels": [0, 1], "classes": ["a", "a"]}, "repeat"),
        ({"features": np.array([[1.0], [np.nan]]), "labels": [0, 1]}, "NaN .* row 1"),
        ({"features": np.ones((2, 2, 2)), "labels": [0, 1]}, "must be a numeric array"),
        ({"features": np.eye(2), "labels": [0, 1], "split": ["train", "x"]}, "split has 'x'"),
        ({"features": np.eye(2), "labels": [0, 1], "split": ["train"] * 3}, "one value for each of the 2 rows"),
        ({"features": np.eye(2), "labels": np.array([{}, {}], dtype=object)}, "without pickled objects"),
    ],
)
def test_npz_errors(tmp_path, arrays, message):
    with pytest.raises(NearfarError, match=message):
        open_data(npz(tmp_path / "f.npz", **arrays))


def test_npz_names_file(tmp_path):
    file = npz(tmp_path / "f.npz", features=np.eye(2), labels=[0, 1])
    write(tmp_path / "f.names.txt", "a/1.jpg\nb/1.jpg\n")
    m = open_data(file)
    assert (m.kind, m.paths) == ("features", ("a/1.jpg", "b/1.jpg"))
    write(tmp_path / "f.names.txt", "a/1.jpg\n")
    with pytest.raises(NearfarError, match=r"f\.names\.txt has 1 names but f\.npz has 2 rows"):
        open_data(file)


def test_npz_damaged(tmp_path):
    file = npz(tmp_path / "f.npz", features=np.eye(50), labels=np.arange(50))
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(NearfarError, match=r"f\.npz is not a readable"):
        open_data(file)


def test_npy_is_mapped_and_finds_its_labels(tmp_path):
    np.save(tmp_path / "v.npy", np.eye(4, dtype=np.float32))
    with pytest.raises(NearfarError, match=r"no labels file next to it: write the labels to v\.labels\.txt"):
        open_data(tmp_path / "v.npy")
    write(tmp_path / "v.labels.txt", "x\ny\nx\ny\n")
    m = open_data(tmp_path / "v.npy")
    assert isinstance(m.features, np.memmap)
    assert m.classes == ("x", "y")
    np.save(tmp_path / "other.npy", np.arange(3))
    with pytest.raises(NearfarError, match=r"3 labels but v.npy has 4 rows"):
        open_data(tmp_path / "v.npy", labels=tmp_path / "other.npy")
    write(tmp_path / "w.npy", b"junk")
    with pytest.raises(NearfarError, match=r"not a readable .npy"):
        open_data(tmp_path / "w.npy")
