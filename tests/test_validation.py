"""Labels as tensors for a loss."""

import numpy as np
import pytest
import torch

from nearfar.validation import as_class_labels, as_label_tensor


def test_integers_keep_their_values() -> None:
    labels = torch.tensor([7, 3, 2**60])
    assert as_label_tensor(labels) is labels
    assert as_label_tensor([7, 3, 2**60]).tolist() == [7, 3, 2**60]
    assert as_label_tensor(np.array([7, 3], dtype=np.uint8)).dtype == torch.int64
    assert as_label_tensor([[1, 0], [1, 1]]).dtype == torch.bool


def test_strings_become_class_ids() -> None:
    assert as_label_tensor(["dog", "cat", "dog"]).tolist() == [1, 0, 1]
    assert as_label_tensor(np.array(["dog", "cat"], dtype=object), class_names=["dog", "owl", "cat"]).tolist() == [0, 2]
    with pytest.raises(ValueError, match="labels contains the unknown class 'dgo'; did you mean 'dog'"):
        as_label_tensor(["dog", "dgo"], class_names=["dog", "cat"])


def test_bad_labels() -> None:
    with pytest.raises(ValueError, match="does not fit into int64"):
        as_label_tensor([2**64, 1])
    with pytest.raises(ValueError, match="ref_labels must be integers, strings"):
        as_label_tensor([0.5, 1.0], name="ref_labels")
    with pytest.raises(ValueError, match="one label per sample"):
        as_class_labels([[1, 0], [0, 1]])
