"""Tests of the sentence about near-duplicates."""

from __future__ import annotations

import numpy as np

from nearfar.data.near_duplicates import describe_near_duplicates

A, B, C = 0x0123456789ABCDEF, 0xFEDCBA9876543210, 0x0F0F3333555500FF


def test_copies_are_counted_by_split():
    hashes = np.array([A, A, B, B, C, C, A ^ 0xFFFF0000], dtype=np.uint64)
    split = np.array(["train", "test", "val", "test", "test", "test", "test"])
    assert describe_near_duplicates(hashes, split) == (
        "4 of 5 test images (80%) are near-duplicates of another image (1 of a training image, 1 of a validation image,"
        " 2 of another test image), so scores are higher than for new images"
    )


def test_a_copy_in_the_validation_split_is_not_a_training_image():
    found = describe_near_duplicates(np.array([A, A, B], dtype=np.uint64), np.array(["val", "test", "train"]))
    assert "1 of 1 test image (100%) is a near-duplicate of another image (0 of a training image, 1 of a" in found


def test_few_copies_are_not_reported():
    hashes = np.array([A, B, C], dtype=np.uint64)
    assert describe_near_duplicates(hashes, np.array(["train", "test", "test"])) == ""
