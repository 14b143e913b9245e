import os
import tarfile

import pytest

from data import builders
from nearfar.data import BatchLoader, create_dataset, open_data, scan_images
from nearfar.data.images import ImageReader
from nearfar.data.layouts.archive import load_archive
from nearfar.errors import NearfarError

MEMBERS = {f"./images/{c}/{i}.jpg": builders.jpeg(10 * n + i) for n, c in enumerate("ab") for i in range(3)}


def link(name, kind=tarfile.SYMTYPE, target="/etc/passwd"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(("name", "mode"), [("d.tar", "w"), ("d.tar.gz", "w:gz"), ("d.tgz", "w:gz"), ("d.tar", "w:gz")])
def test_archives_are_read_without_extraction(tmp_path, name, mode):
    path = builders.tar(tmp_path / name, MEMBERS, [link("images", tarfile.DIRTYPE)], mode=mode)
    m = open_data(path)
    assert m.classes == ("a", "b")
    assert m.split.tolist() == ["train"] * 3 + ["test"] * 3
    reader = ImageReader(m)
    assert [reader.read_bytes(i) for i in range(6)] == list(MEMBERS.values())
    assert os.listdir(tmp_path) == [name]


def test_long_names_and_unicode(tmp_path):
    names = ["a/" + "x" * 150 + ".jpg", "b/ü.jpg"]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = tmp_path / f"{form}.tar"
        with tarfile.open(path, "w", format=form) as archive:
            for name in names:
                file = builders.write(tmp_path / "one.jpg", builders.jpeg(0))
                archive.add(file, name)
        assert open_data(path).paths == tuple(names)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (link("images/a/link.jpg"), "link.jpg' is a link"),
        (link("images/a/hard.jpg", tarfile.LNKTYPE, "images/a/0.jpg"), "hard.jpg' is a link"),
        (link("/etc/x.jpg", tarfile.REGTYPE), "absolute"),
        (link("images/../../x.jpg", tarfile.REGTYPE), r"'\.\.'"),
        (link("images\\..\\..\\x.jpg", tarfile.REGTYPE), r"'\.\.'"),
        (link("C:/x.jpg", tarfile.REGTYPE), "absolute"),
        (link("images/a/pipe.jpg", tarfile.FIFOTYPE), "device or a pipe"),
        (link("images/a/dev.jpg", tarfile.CHRTYPE), "device or a pipe"),
    ],
)
def test_hostile_members(tmp_path, extra, message):
    path = builders.tar(tmp_path / "d.tar", MEMBERS, [extra])
    with pytest.raises(NearfarError, match=message):
        open_data(path)
    m = open_data(path, allow_partial=True)
    assert len(m) == 6
    assert "1 members refused" in m.notes[0]
    assert len(scan_images(m).broken) == 0


def test_damaged_archives(tmp_path):
    with pytest.raises(NearfarError, match="not a readable tar"):
        open_data(builders.write(tmp_path / "junk.tar", b"x" * 2000))
    with pytest.raises(NearfarError, match=r"not a readable tar|no images"):
        open_data(builders.write(tmp_path / "empty.tar", b""))
    whole = builders.tar(tmp_path / "d.tar", MEMBERS).read_bytes()
    # inside a header, between two members, inside a member
    for end in (512 * 9 + 100, 512 * 9, 512 * 10 + 100):
        cut = builders.write(tmp_path / "cut.tar", whole[:end])
        with pytest.raises(NearfarError, match=r"tar archive|truncated"):
            open_data(cut)
    packed = builders.tar(tmp_path / "d.tgz", MEMBERS, mode="w:gz").read_bytes()
    with pytest.raises(NearfarError, match="cannot be uncompressed"):
        open_data(builders.write(tmp_path / "cut.tgz", packed[: len(packed) // 2]))


def test_the_last_member_of_a_name_counts_and_a_changed_file_is_indexed_again(tmp_path):
    path = builders.tar(tmp_path / "d.tar", {"a/0.jpg": b"old"})
    assert load_archive(path).read("a/0.jpg") == b"old"
    with tarfile.open(path, "a") as archive:
        archive.add(builders.write(tmp_path / "n.jpg", b"newer"), "a/0.jpg")
    assert load_archive(path).read("a/0.jpg") == b"newer"
    with pytest.raises(NearfarError, match="no member"):
        load_archive(path).read("a/1.jpg")


def test_workers_read_the_archive(tmp_path):
    m = open_data(builders.tar(tmp_path / "d.tar", MEMBERS))
    samples = create_dataset(m, size=8)
    batches = [[0, 5], [3, 1], [2, 4]]
    alone = [b.x for b in BatchLoader(samples).load(batches, epoch=1)]
    shared = [b.x for b in BatchLoader(samples, workers=2).load(batches, epoch=1)]
    assert all(bool((a == b).all()) for a, b in zip(alone, shared, strict=True))
