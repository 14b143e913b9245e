"""Settings that choose samples, such as data.per_class, data.merge_classes and data.swap_halves."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.data import Manifest
from nearfar.data.annotations import Annotations
from nearfar.errors import NearfarError
from nearfar.metrics import evaluate
from nearfar.training.evaluate import score
from nearfar.training.reduce import keep_classes, limit_per_class, merge_classes
from nearfar.training.splits import open_manifest, split_manifest
from training_cases import configured


def test_per_class_limits_training_samples_only() -> None:
    labels = np.repeat([0, 1, 2, 3], [9, 2, 5, 7])
    whole = Manifest(
        labels=labels,
        classes=("a", "b", "c", "d"),
        split=np.where(labels < 3, "train", "test"),
        paths=tuple(f"{i}.png" for i in range(len(labels))),
    )
    kept = limit_per_class(whole, 4)
    assert np.bincount(kept.labels).tolist() == [4, 2, 4, 7]
    assert kept.paths == limit_per_class(whole, 4).paths
    assert kept.paths != whole.subset([0, 1, 2, 3, *range(9, 15), *range(16, 23)]).paths  # at random, not the first
    assert set(limit_per_class(whole, 3).paths) < set(kept.paths)  # a larger count adds samples to those of a smaller
    assert kept.fingerprint != whole.fingerprint


def test_per_class_applies_to_training_and_validation_classes() -> None:
    config = configured("pixels", "sketches", "proxy-anchor", "data.per_class=3", "data.validation=0.2", "steps=1")
    splits = split_manifest(open_manifest(config.data), config)
    assert splits.test is not None
    assert splits.validation is not None
    assert set(np.bincount(splits.train.labels)) == {3}
    assert len(splits.validation) == 3 * 34
    assert len(splits.test) == 17_300


def test_per_class_of_one_is_an_error() -> None:
    with pytest.raises(NearfarError, match=r"data\.per_class must be at least 2, got 1"):
        configured("pixels", "sketches", "proxy-anchor", "data.per_class=1")


def test_train_classes_keeps_a_random_part_of_the_training_classes() -> None:
    config = configured("pixels", "sketches", "proxy-anchor", "steps=1")
    whole = open_manifest(config.data)
    few, more = (open_manifest(replace(config.data, train_classes=count)) for count in (20, 40))
    trained = [set(manifest.labels[manifest.rows("train")].tolist()) for manifest in (few, more, whole)]
    assert [len(classes) for classes in trained] == [20, 40, 172]
    assert trained[0] < trained[1] < trained[2]
    assert trained[0] != set(range(20))  # at random, not the first
    assert len(few.rows("test")) == len(whole.rows("test"))
    with pytest.raises(NearfarError, match=r"data\.train_classes=173: there are only 172 training classes"):
        keep_classes(whole, 173)


def test_merged_classes_contain_the_samples_of_their_parts() -> None:
    labels = np.repeat([0, 1, 2, 3, 4, 5], 3)
    whole = Manifest(
        labels=labels,
        classes=tuple("abcdef"),
        split=np.where(labels < 5, "train", "test"),
        paths=tuple(f"{i}.png" for i in range(len(labels))),
    )
    merged = merge_classes(whole, 2)
    train = merged.subset("train").compact()
    assert sorted(np.bincount(train.labels).tolist()) == [3, 6, 6]  # five classes: two pairs and a single one
    for name, row in zip(whole.classes, range(0, 18, 3), strict=True):
        of_class = {merged.classes[label] for label in merged.labels[row : row + 3].tolist()}
        assert len(of_class) == 1
        assert name in of_class.pop().split(" + ")
    assert merged.classes[merged.labels[-1]] == "f"
    assert merged.classes == merge_classes(whole, 2).classes
    assert len(merge_classes(whole, 9).subset("train").compact().classes) == 1


def test_validation_classes_are_not_merged() -> None:
    config = configured("pixels", "sketches", "proxy-anchor", "data.validation=0.25", "data.merge_classes=3", "steps=1")
    splits = split_manifest(open_manifest(config.data), config)
    assert splits.validation is not None
    assert len(splits.train.classes) == 43  # 129 classes in groups of three
    assert len(set(splits.validation.labels.tolist())) == 43
    assert all(name.count(" + ") == 2 for name in splits.train.classes)


def test_samples_with_several_labels_cannot_be_merged() -> None:
    several = Manifest(
        labels=[0, 1],
        classes=("a", "b"),
        split=["train", "train"],
        paths=("x", "y"),
        annotations=Annotations(label_sets=np.eye(2, dtype=np.bool_)),
    )
    with pytest.raises(NearfarError, match=r"data\.merge_classes cannot be used with several labels"):
        merge_classes(several, 2)


def test_a_long_tail_falls_geometrically_and_leaves_the_test_split_alone() -> None:
    config = configured("pixels", "sketches", "proxy-anchor", "data.long_tail=[5, 60]", "steps=1")
    whole, cut = (open_manifest(data) for data in (replace(config.data, long_tail=()), config.data))
    counts = np.sort(np.bincount(cut.labels[cut.rows("train")])[: len(set(whole.labels[whole.rows("train")].tolist()))])
    expected = np.geomspace(5, 60, 172)
    assert np.abs(counts - expected).max() <= 0.5
    assert len(cut.rows("test")) == len(whole.rows("test"))
    assert cut.paths == open_manifest(config.data).paths
    assert cut.fingerprint != whole.fingerprint


@pytest.mark.parametrize("ends", ["[5]", "[60, 5]", "[1, 5]", "[5, 10, 20]"])
def test_a_long_tail_needs_its_two_ends(ends: str) -> None:
    config = configured("pixels", "sketches", "proxy-anchor", f"data.long_tail={ends}", "steps=1")
    with pytest.raises(NearfarError, match=r"data\.long_tail must be two class sizes.*got \["):
        open_manifest(config.data)


def test_swapped_halves_exchange_training_and_test_classes() -> None:
    config = configured("pixels", "sketches", "proxy-anchor", "data.swap_halves=true", "steps=1")
    swapped, usual = open_manifest(config.data), open_manifest(replace(config.data, swap_halves=False))
    assert np.array_equal(swapped.rows("train"), usual.rows("test"))
    assert np.array_equal(swapped.rows("test"), usual.rows("train"))


def test_ignored_roles_search_within_the_whole_test_split(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 6)
    split = np.where(labels < 4, "train", "test")
    role = np.where(labels < 4, "train", np.where(np.arange(48) % 2 == 0, "query", "gallery"))
    np.savez(tmp_path / "a.npz", features=rng.normal(size=(48, 8)), labels=labels, split=split, role=role)
    source = str(tmp_path / "a.npz")
    usual = configured("features", source, "contrastive", "steps=1", "model.dim=4")
    ignored = configured("features", source, "contrastive", "steps=1", "model.dim=4", "data.ignore_roles=true")
    one, other = (open_manifest(config.data).subset("test") for config in (usual, ignored))
    assert one.role is not None
    assert other.role is None
    embeddings = torch.from_numpy(np.asarray(one.features)).double()
    assert score(embeddings, other, ("recall@1",)) == evaluate(embeddings, other.labels, metrics=("recall@1",))
    assert score(embeddings, other, ("recall@1",)) != score(embeddings, one, ("recall@1",))
