import time
from importlib.resources import files

import numpy as np
import pytest

from nearfar.data import load_sketches
from nearfar.data.digest import digest_array
from nearfar.data.layouts.sketches import pack, unpack
from nearfar.errors import NearfarError

DIGEST = "f552c2307b3a8859de539042ce12eec96920fc5e9f666570eb6e36a52812eb74"


def test_counts_split_and_content():
    m = load_sketches()
    assert len(m) == 34_500
    assert len(m.classes) == 345
    assert m.classes == tuple(sorted(m.classes))
    assert np.bincount(m.labels).tolist() == [100] * 345
    assert m.summary().splits == {"train": (17_200, 172), "test": (17_300, 173)}
    assert m.summary().shared_classes == 0
    assert m.pixels.shape == (34_500, 28, 28)
    assert set(np.unique(m.pixels)) == {0, 85, 170, 255}
    assert digest_array(m.pixels) == DIGEST
    assert not m.pixels.flags.writeable


def test_small_and_quick():
    data = files("nearfar.data").joinpath("sketches.bin").read_bytes()
    assert len(data) <= 3_000_000
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        unpack(data, "sketches.bin")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1


def test_pack_round_trip_sorts_the_classes(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    pack(pixels, np.array([0, 0, 1, 1, 2, 2]), ["owl", "ant", "bee"], tmp_path / "s.bin")
    m = unpack((tmp_path / "s.bin").read_bytes(), "s.bin")
    assert m.classes == ("ant", "bee", "owl")
    assert np.abs(m.pixels.astype(int) - pixels[[2, 3, 4, 5, 0, 1]]).max() <= 43
    with pytest.raises(ValueError, match="equally many in each class"):
        pack(pixels[:5], np.array([0, 0, 1, 1, 2]), ["owl", "ant", "bee"], tmp_path / "t.bin")


def test_damage_is_found(tmp_path):
    pack(np.zeros((2, 8, 8), np.uint8), np.array([0, 1]), ["a", "b"], tmp_path / "s.bin")
    data = (tmp_path / "s.bin").read_bytes()
    wrong = data.replace(b'"sha256": "', b'"sha256": "0')
    for bad in (b"", data[:-4], data[5:], data[:40], wrong):
        with pytest.raises(NearfarError, match="install nearfar again"):
            unpack(bad, "s.bin")
