import os
import sys

import numpy as np
import pytest

from data import builders
from data.builders import write
from nearfar.data import open_data
from nearfar.data.layouts import official
from nearfar.errors import NearfarError

COUNTS = {"train": 200, "test": 200, "train_classes": 100, "test_classes": 100}


def counts(monkeypatch, module, name, **numbers):
    """Replace the published counts by those of a miniature."""
    import importlib

    small = official.Counts(name=name, **numbers)
    monkeypatch.setattr(importlib.import_module(f"nearfar.data.layouts.{module}"), module.upper(), small)


def test_published_counts_are_those_of_the_papers():
    assert (official.CUB.images, official.CARS.images, official.SOP.images, official.IN_SHOP.images) == (
        11_788,
        16_185,
        120_053,
        52_712,
    )
    assert official.IN_SHOP.query + official.IN_SHOP.gallery == official.IN_SHOP.test


def test_folder(tmp_path):
    builders.folder(tmp_path, {"dog": 2, "cat": 3, "bee": 1}, prefix="images")
    write(tmp_path / "images/cat/more/deep.PNG", b"x")
    write(tmp_path / "images/cat/._0.jpg", b"x")
    write(tmp_path / "images/cat/readme.txt", b"x")
    write(tmp_path / ".hidden/x/y.jpg", b"x")
    m = open_data(tmp_path)
    assert m.classes == ("bee", "cat", "dog")
    assert np.bincount(m.labels).tolist() == [1, 4, 2]
    assert "images/cat/more/deep.PNG" in m.paths
    assert m.subset("train").compact().classes == ("bee",)
    assert m.notes == ("skipped 1 file that is not an image",)
    assert open_data(tmp_path / "images") != m
    assert open_data(tmp_path / "images").labels.tolist() == m.labels.tolist()


def test_numbered_classes_are_ordered_by_value(tmp_path):
    assert open_data(builders.folder(tmp_path, {"10": 1, "9": 1, "100": 1})).classes == ("9", "10", "100")


def test_folder_with_train_and_test(tmp_path):
    builders.folder(tmp_path, {"cat": 2, "dog": 1}, prefix="train")
    builders.folder(tmp_path, {"owl": 2, "dog": 1}, prefix="test")
    builders.folder(tmp_path, {"ant": 1}, prefix="valid")
    m = open_data(tmp_path)
    assert {s: len(m.rows(s)) for s in ("train", "val", "test")} == {"train": 3, "val": 1, "test": 3}
    assert m.summary().shared_classes == 1
    assert set(open_data(tmp_path, split="class-order").subset("train").compact().classes) == {"ant", "cat"}
    with pytest.raises(ValueError, match="class-order"):
        open_data(tmp_path, split="class")


def test_folder_errors(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NearfarError, match="no images"):
        open_data(tmp_path / "empty")
    flat = tmp_path / "flat"
    write(flat / "a.jpg", b"x")
    with pytest.raises(NearfarError, match=r"a.jpg .* move it to a class folder"):
        open_data(flat)
    builders.folder(tmp_path / "mixed", {"cat": 1}, prefix="train")
    write(tmp_path / "mixed/test/x.jpg", b"x")
    with pytest.raises(NearfarError, match=r"test/x\.jpg"):
        open_data(tmp_path / "mixed")
    with pytest.raises(NearfarError, match="did you mean 'sketches'"):
        open_data("sketch")
    with pytest.raises(NearfarError, match="no data layout recognizes"):
        open_data(write(tmp_path / "x.pdf", b"x"))


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")
def test_links_are_followed_loops_and_pipes_are_not(tmp_path):
    builders.folder(tmp_path / "elsewhere", {"owl": 2})
    root = builders.folder(tmp_path / "d", {"cat": 1})
    (root / "owl").symlink_to(tmp_path / "elsewhere/owl")
    (root / "cat" / "up").symlink_to(root)
    os.mkfifo(root / "cat" / "pipe.jpg")
    (root / "cat" / "gone.jpg").symlink_to(root / "nowhere")
    m = open_data(root)
    assert m.classes == ("cat", "owl")
    assert len(m) == 3 + 2 - 2
    assert "skipped 1 link to a folder that was already read" in m.notes
    assert any(note.startswith("skipped 2 ") and "pipes" in note for note in m.notes)


def test_cub(tmp_path, monkeypatch):
    root = builders.cub(tmp_path / "CUB_200_2011")
    with pytest.raises(NearfarError, match=r"CUB-200-2011: images.txt has 200 train images instead of 5,864"):
        open_data(root)
    partial = open_data(root, allow_partial=True)
    assert len(partial) == 400
    assert "instead of 5,864" in partial.notes[0]
    counts(monkeypatch, "cub", "CUB-200-2011", **COUNTS)
    m = open_data(root)
    assert m.notes == ()
    assert m.source == "CUB-200-2011"
    assert m.subset("train").compact().classes[-1] == "100.Bird_99"
    assert m.subset("test").compact().classes[0] == "101.Bird_100"
    assert m.paths[0] == "images/001.Bird_0/0.jpg"
    # inside one folder, as the archive unpacks
    assert open_data(tmp_path) == m


def test_cub_damaged(tmp_path, monkeypatch):
    counts(monkeypatch, "cub", "CUB-200-2011", **COUNTS)
    root = builders.cub(tmp_path)
    (root / "images/003.Bird_2/1.jpg").unlink()
    with pytest.raises(
        NearfarError, match=r"003\.Bird_2/1\.jpg is missing \(missing in total: 1 of 400 images in images\.txt"
    ):
        open_data(root)
    assert len(open_data(root, allow_partial=True)) == 399
    labels = (root / "image_class_labels.txt").read_text().splitlines()
    write(root / "image_class_labels.txt", "\n".join(labels[1:]))
    with pytest.raises(NearfarError, match=r"image_class_labels.txt has no class for image 1 "):
        open_data(root)
    write(root / "image_class_labels.txt", "1 1 1\n")
    with pytest.raises(NearfarError, match="line 1: 2 columns expected, got 3"):
        open_data(root)
    write(root / "image_class_labels.txt", "\n".join(labels))
    (root / "classes.txt").unlink()
    with pytest.raises(NearfarError, match=r"classes.txt is missing"):
        open_data(root)


def cars_names():
    return ["AM General Hummer SUV 2000", *(f"Car {c:03d}" for c in range(194)), "smart fortwo Convertible 2012"]


def mat(path, variables):
    io = pytest.importorskip("scipy.io")
    path.parent.mkdir(parents=True, exist_ok=True)
    io.savemat(path, variables)


def records(fields, rows):
    out = np.zeros((1, len(rows)), dtype=[(name, object) for name in fields])
    for i, row in enumerate(rows):
        out[0, i] = row
    return out


def test_cars_mat(tmp_path, monkeypatch):
    rows = [(f"car_ims/{i:06d}.jpg", 1, i // 2 + 1, i % 2) for i in range(392)]
    notes = records(["relative_im_path", "bbox_x1", "class", "test"], rows)
    mat(tmp_path / "cars_annos.mat", {"annotations": notes, "class_names": np.array(cars_names(), dtype=object)[None]})
    for row in rows:
        write(tmp_path / row[0], b"x")
    with pytest.raises(NearfarError, match=r"Cars-196: cars_annos.mat has 196 train images instead of 8,054"):
        open_data(tmp_path)
    counts(monkeypatch, "cars", "Cars-196", train=196, test=196, train_classes=98, test_classes=98)
    m = open_data(tmp_path)
    assert m.classes == tuple(cars_names())
    assert m.labels.tolist() == [i // 2 for i in range(392)]
    assert set(m.labels[m.rows("train")]) == set(range(98))
    (tmp_path / "car_ims/000000.jpg").unlink()
    with pytest.raises(NearfarError, match=r"car_ims/000000.jpg is missing"):
        open_data(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(NearfarError, match="pip install scipy"):
        open_data(tmp_path)
    monkeypatch.undo()
    write(tmp_path / "cars_annos.mat", b"junk")
    with pytest.raises(NearfarError, match=r"not a readable \.mat"):
        open_data(tmp_path)


@pytest.mark.parametrize("wrong", [0, 500])
def test_a_wrong_class_of_cars_is_named(tmp_path, wrong):
    rows = [("car_ims/1.jpg", wrong), ("car_ims/2.jpg", 7)]
    notes = records(["relative_im_path", "class"], rows)
    mat(tmp_path / "cars_annos.mat", {"annotations": notes, "class_names": np.array(cars_names(), dtype=object)[None]})
    with pytest.raises(NearfarError, match=f"has class {wrong}, but the class names are numbered 1 to 196"):
        open_data(tmp_path)


def test_linked_folders_are_read_once(tmp_path):
    """Folders that link to each other have a number of paths that grows exponentially with their number."""
    root = builders.folder(tmp_path / "d", dict.fromkeys("abcdefghijklmnop", 1))
    for name in "abcdefghijklmnop":
        for other in "abcdefghijklmnop":
            (root / name / f"to-{other}").symlink_to(root / other)
    m = open_data(root)
    assert len(m) == 16
    assert m.notes == ("skipped 256 links to folders that were already read",)


def test_cars_devkit(tmp_path, monkeypatch):
    counts(monkeypatch, "cars", "Cars-196", train=196, test=196, train_classes=98, test_classes=98)
    rows = [(1, c + 1, f"{c:05d}.jpg") for c in range(196)]
    mat(tmp_path / "devkit/cars_meta.mat", {"class_names": np.array(cars_names(), dtype=object)[None]})
    mat(tmp_path / "devkit/cars_train_annos.mat", {"annotations": records(["bbox_x1", "class", "fname"], rows)})
    for part in ("cars_train", "cars_test"):
        for row in rows:
            write(tmp_path / part / row[2], b"x")
    with pytest.raises(NearfarError, match=r"cars_test_annos_withlabels.mat is missing"):
        open_data(tmp_path)
    test = {"annotations": records(["bbox_x1", "class", "fname"], rows)}
    mat(tmp_path / "devkit/cars_test_annos_withlabels.mat", test)
    m = open_data(tmp_path)
    assert len(m) == 392
    assert m.paths[196] == "cars_test/00000.jpg"
    assert (m.labels[:98] < 98).all()
    assert len(m.rows("train")) == 196


def test_cars_folders_are_merged_and_split_by_class(tmp_path, monkeypatch):
    for part in ("train", "test"):
        for name in cars_names():
            write(tmp_path / part / name / f"{part}.jpg", b"x")
    with pytest.raises(NearfarError, match="196 train images instead of 8,054"):
        open_data(tmp_path)
    counts(monkeypatch, "cars", "Cars-196", train=196, test=196, train_classes=98, test_classes=98)
    m = open_data(tmp_path)
    assert m.summary().shared_classes == 0
    assert m.classes == tuple(cars_names())


def test_a_partial_copy_in_plain_folders_is_noted(tmp_path):
    for name in cars_names():
        write(tmp_path / name / "1.jpg", b"x")
    m = open_data(tmp_path)
    assert m.notes == ("looks like Cars-196, with 196 of its 16,185 images",)
    assert len(m.rows("train")) == 98


def sop(root, train=3, test=2):
    head = "image_id class_id super_class_id path\n"
    number = 0
    for name, classes in (
        ("Ebay_train.txt", range(1, train + 1)),
        ("Ebay_test.txt", range(train + 1, train + test + 1)),
    ):
        lines = []
        for c in classes:
            for _ in range(2):
                number += 1
                lines.append(f"{number} {c} 1 bicycle_final/{c}_{number}.JPG\n")
                write(root / f"bicycle_final/{c}_{number}.JPG", b"x")
        write(root / name, head + "".join(lines))
    return root


def test_sop(tmp_path, monkeypatch):
    root = sop(tmp_path / "Stanford_Online_Products", train=12)
    with pytest.raises(NearfarError, match="24 train images instead of 59,551"):
        open_data(root)
    counts(monkeypatch, "sop", "SOP", train=24, test=4, train_classes=12, test_classes=2)
    m = open_data(root)
    assert m.classes == tuple(map(str, range(1, 15)))
    assert m.split.tolist() == ["train"] * 24 + ["test"] * 4
    (root / "Ebay_test.txt").unlink()
    with pytest.raises(NearfarError, match=r"Ebay_test.txt is missing"):
        open_data(root)


def test_in_shop(tmp_path, monkeypatch):
    rows = [("train", 1), ("train", 1), ("query", 2), ("gallery", 2), ("gallery", 2)]
    listing = [f"img/WOMEN/Tees/id_{c:08d}/0{i}_front.jpg id_{c:08d} {status}" for i, (status, c) in enumerate(rows)]
    text = "5\nimage_name item_id evaluation_status\n" + "\n".join(listing) + "\n"
    write(tmp_path / "Eval/list_eval_partition.txt", text)
    for line in listing:
        write(tmp_path / "Img" / line.split()[0], b"x")
    with pytest.raises(NearfarError, match="1 queries instead of 14,218"):
        open_data(tmp_path)
    counts(monkeypatch, "in_shop", "In-Shop", train=2, test=3, train_classes=1, test_classes=1, query=1, gallery=2)
    m = open_data(tmp_path)
    assert m.role.tolist() == ["train", "train", "query", "gallery", "gallery"]
    assert m.split.tolist() == ["train"] * 2 + ["test"] * 3
    assert m.classes == ("id_00000001", "id_00000002")
    assert "query 1, gallery 2" in str(m.summary())
    write(tmp_path / "Eval/list_eval_partition.txt", text.replace("query", "quer"))
    with pytest.raises(NearfarError, match="status 'quer'"):
        open_data(tmp_path)
