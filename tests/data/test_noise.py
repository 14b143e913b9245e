import numpy as np
import pytest

from data.builders import write
from nearfar.data import Manifest, NoiseRecord, add_label_noise
from nearfar.data.noise import apply_prism_lists, round_half_up, save_prism_lists
from nearfar.errors import NearfarError

SIZES = [25, 15, 5, 4, 40, 31]


def data(**more):
    labels = np.repeat(np.arange(len(SIZES)), SIZES)
    split = np.where(labels < 5, "train", "test")
    paths = [f"c{c}/{i}.jpg" for i, c in enumerate(labels)]
    return Manifest(labels=labels, classes=[f"c{i}" for i in range(6)], split=split, paths=paths, source="d", **more)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.3, 0.5])
def test_symmetric_counts_are_exact_in_every_class(rate):
    m = data()
    noisy, record = add_label_noise(m, rate, seed=4)
    for c, size in enumerate(SIZES[:5]):
        own = m.labels == c
        changed = noisy.labels[own] != c
        assert changed.sum() == round_half_up(rate, size)
        assert set(noisy.labels[own][changed]) <= set(range(5)) - {c}
    assert np.array_equal(noisy.labels[m.rows("test")], m.labels[m.rows("test")])
    assert np.array_equal(record.true_labels, m.labels)
    assert np.array_equal(record.wrong, noisy.labels != m.labels)
    assert f"{record.wrong.sum()} of 89 train labels wrong" in noisy.notes[-1]


@pytest.mark.parametrize(
    ("rate", "count", "expected"), [(0.1, 25, 3), (0.1, 15, 2), (0.3, 5, 2), (0.29, 50, 15), (0.1, 4, 0)]
)
def test_halves_round_up(rate, count, expected):
    assert round_half_up(rate, count) == expected


def test_seeds_differ_and_repeat():
    a, b, c = (add_label_noise(data(), 0.3, seed=s)[0] for s in (1, 1, 2))
    assert a == b != c


def test_new_labels_are_uniform_over_the_others():
    m = Manifest(labels=np.repeat(np.arange(5), 4000), classes="abcde", split=["train"] * 20000, paths=["x"] * 20000)
    noisy, record = add_label_noise(m, 0.5)
    moved = np.zeros((5, 5))
    np.add.at(moved, (m.labels[record.wrong], noisy.labels[record.wrong]), 1)
    assert np.diag(moved).sum() == 0
    assert abs(moved[~np.eye(5, dtype=bool)] - 500).max() < 100


def test_small_clusters_dissolve_whole_classes():
    rng = np.random.default_rng(0)
    m = data()
    # pairs of equal vectors: k-means with half as many clusters as samples keeps them together
    m = data(features=np.repeat(rng.normal(size=(60, 8)) * 100, 2, axis=0)[:120].astype(np.float32))
    noisy, record = add_label_noise(m, 0.4, seed=1, kind="small-cluster")
    gone = [c for c in range(5) if not (noisy.labels == c).any()]
    assert len(gone) == 2
    assert np.array_equal(record.wrong, np.isin(m.labels, gone))
    assert not record.wrong[m.rows("test")].any()
    # samples of a dissolved class with the same vector get the same label
    for row in np.flatnonzero(record.wrong[:-1] & record.wrong[1:]):
        if (m.features[row] == m.features[row + 1]).all() and m.labels[row] == m.labels[row + 1]:
            assert noisy.labels[row] == noisy.labels[row + 1]
    assert add_label_noise(m, 0.4, seed=1, kind="small-cluster")[0] == noisy
    one_left, _ = add_label_noise(m, 0.99, kind="small-cluster")
    assert len(set(one_left.labels[m.rows("train")])) == 1
    with pytest.raises(NearfarError, match="pass features"):
        add_label_noise(data(), 0.4, kind="small-cluster")
    assert add_label_noise(data(), 0.4, seed=1, kind="small-cluster", features=m.features)[1].share == record.share


def test_bad_arguments():
    with pytest.raises(ValueError, match="rate"):
        add_label_noise(data(), 1.0)
    with pytest.raises(ValueError, match="did you mean 'symmetric'"):
        add_label_noise(data(), 0.1, kind="symetric")
    one = Manifest(labels=[0, 0], classes=("a",), split=["train"] * 2, paths=("x", "y"))
    with pytest.raises(NearfarError, match="at least 2 train classes"):
        add_label_noise(one, 0.5)
    with pytest.raises(ValueError, match="120 rows"):
        add_label_noise(data(), 0.2, kind="small-cluster", features=np.zeros((3, 2)))


def test_record_round_trip(tmp_path):
    noisy, record = add_label_noise(data(), 0.3, seed=9)
    record.save(tmp_path / "noise.json")
    again = NoiseRecord.load(tmp_path / "noise.json", noisy)
    assert (again.kind, again.rate, again.seed) == ("symmetric", 0.3, 9)
    assert np.array_equal(again.true_labels, record.true_labels)
    assert np.array_equal(again.wrong, record.wrong)
    with pytest.raises(NearfarError, match="samples"):
        NoiseRecord.load(tmp_path / "noise.json", noisy.subset("train"))
    with pytest.raises(NearfarError, match="not a readable noise record"):
        NoiseRecord.load(write(tmp_path / "x.json", "{}"), noisy)


def test_prism_lists_round_trip(tmp_path):
    m = data()
    noisy, record = add_label_noise(m, 0.2, seed=3)
    noised, cleaned = save_prism_lists(noisy, record, tmp_path, "D")
    assert (noised.name, cleaned.name) == ("D_0.2noised_train.csv", "D_0.2noised_cleaned_train.csv")
    assert len(noised.read_text().splitlines()) == 89
    assert len(cleaned.read_text().splitlines()) == 89 - record.wrong.sum()
    # a released list has other parent folders and other class numbers
    lines = [line.rpartition(",") for line in noised.read_text().splitlines()]
    write(noised, "".join(f"/data/D/images/{path},{int(c) + 7}\n" for path, _, c in lines))
    again, found = apply_prism_lists(m, noised)
    assert np.array_equal(again.labels, noisy.labels)
    assert np.array_equal(found.wrong, record.wrong)
    write(noised, noised.read_text() + "/data/D/images/c0/999.jpg,1\n")
    with pytest.raises(NearfarError, match="999"):
        apply_prism_lists(m, noised)
    write(noised, "c0/0.jpg,1\n")
    with pytest.raises(NearfarError, match="lists 1 images, but the train split has 89"):
        apply_prism_lists(m, noised)
