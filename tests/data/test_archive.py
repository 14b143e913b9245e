import os
import stat
import tarfile
import zipfile

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
    assert "1 member refused" in m.notes[0]
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


def write_zip(path, members, extra=(), **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        for info in extra:
            archive.writestr(info, b"target")
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_archives_are_read_like_tars(tmp_path, compression):
    others = {"./readme.txt": "no image", "__MACOSX/a/._0.jpg": "hidden"}
    path = write_zip(tmp_path / "d.ZIP", MEMBERS | others, compression=compression)
    m = open_data(path)
    assert m.classes == ("a", "b")
    assert m.split.tolist() == ["train"] * 3 + ["test"] * 3
    assert m.notes == ("skipped 2 files that are not images",)
    reader = ImageReader(m)
    assert [reader.read_bytes(i) for i in range(6)] == list(MEMBERS.values())
    assert os.listdir(tmp_path) == ["d.ZIP"]
    batches = [[0, 5], [3, 1]]
    samples = create_dataset(m, size=8)
    alone = [b.x for b in BatchLoader(samples).load(batches, epoch=1)]
    shared = [b.x for b in BatchLoader(samples, workers=2).load(batches, epoch=1)]
    assert all(bool((a == b).all()) for a, b in zip(alone, shared, strict=True))


def zip_entry(name, mode=stat.S_IFREG | 0o644):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (zip_entry("images/a/link.jpg", stat.S_IFLNK | 0o777), "link.jpg' is a link"),
        (zip_entry("images/a/pipe.jpg", stat.S_IFIFO), "device or a pipe"),
        (zip_entry("/etc/x.jpg"), "absolute"),
        (zip_entry("C:/x.jpg"), "absolute"),
        (zip_entry("images/../../x.jpg"), r"'\.\.'"),
        (zip_entry("images\\..\\..\\x.jpg"), r"'\.\.'"),
    ],
)
def test_hostile_members_of_a_zip(tmp_path, extra, message):
    path = write_zip(tmp_path / "d.zip", MEMBERS, [extra])
    with pytest.raises(NearfarError, match=message):
        open_data(path)
    m = open_data(path, allow_partial=True)
    assert len(m) == 6
    assert "1 member refused" in m.notes[0]


def test_zips_that_are_encrypted_packed_otherwise_too_large_or_damaged(tmp_path, monkeypatch):
    whole = bytearray(write_zip(tmp_path / "d.zip", MEMBERS).read_bytes())
    central = whole.index(b"PK\x01\x02")
    whole[central + 8] |= 1  # the flag of an encrypted member
    with pytest.raises(NearfarError, match="is encrypted"):
        open_data(builders.write(tmp_path / "secret.zip", bytes(whole)))
    with pytest.raises(NearfarError, match="only stored and deflated members can be read"):
        open_data(write_zip(tmp_path / "lzma.zip", MEMBERS, compression=zipfile.ZIP_LZMA))
    with pytest.raises(NearfarError, match="not a readable zip"):
        open_data(builders.write(tmp_path / "junk.zip", b"x" * 2000))
    stored = bytearray(write_zip(tmp_path / "e.zip", MEMBERS).read_bytes())
    stored[200] ^= 1
    broken = scan_images(open_data(builders.write(tmp_path / "e.zip", bytes(stored)))).broken
    assert "its checksum differs" in broken[0]
    monkeypatch.setattr("nearfar.data.layouts.member_names.MAX_MEMBER_BYTES", 100)
    with pytest.raises(NearfarError, match="more than the limit of 100"):
        open_data(write_zip(tmp_path / "large.zip", MEMBERS))
    monkeypatch.setattr("nearfar.data.layouts.member_names.MAX_MEMBERS", 5)
    with pytest.raises(NearfarError, match="6 members, more than the limit of 5"):
        open_data(write_zip(tmp_path / "many.zip", MEMBERS))


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    """A member that claims to be small is decompressed no further than its size."""
    data = bytearray(
        write_zip(tmp_path / "d.zip", {"a/0.jpg": bytes(10**7)}, compression=zipfile.ZIP_DEFLATED).read_bytes()
    )
    central = data.index(b"PK\x01\x02")
    data[central + 24 : central + 28] = (50).to_bytes(4, "little")  # the uncompressed size
    archive = load_archive(builders.write(tmp_path / "bomb.zip", bytes(data)))
    with pytest.raises(NearfarError, match="is damaged"):
        archive.read("a/0.jpg")
