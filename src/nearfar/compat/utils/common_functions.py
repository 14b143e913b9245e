"""The functions of pytorch-metric-learning's `common_functions` that user code calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from nearfar.validation import Array

LOGGER_NAME = "nearfar"
LOGGER = logging.getLogger(LOGGER_NAME)
COLLECT_STATS = False  # the default of the argument collect_stats

T = TypeVar("T")


def set_logger_name(name: str) -> None:
    """Set the module's logger to the one with this name."""
    global LOGGER_NAME, LOGGER
    LOGGER_NAME, LOGGER = name, logging.getLogger(name)


def pos_inf(dtype: torch.dtype) -> float:
    """Return the largest finite number of a dtype."""
    return torch.finfo(dtype).max


def neg_inf(dtype: torch.dtype) -> float:
    """Return the lowest (most negative) finite number of a dtype."""
    return torch.finfo(dtype).min


def small_val(dtype: torch.dtype) -> float:
    """Return the smallest positive normal number of a dtype."""
    return torch.finfo(dtype).tiny


def to_dtype(x: Tensor, tensor: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Convert x to `dtype`, or to the dtype of `tensor`. Under autocast, x does not change."""
    if torch.is_autocast_enabled():
        return x
    return x.to(dtype if dtype is not None or tensor is None else tensor.dtype)


def to_device(
    x: Tensor,
    tensor: Tensor | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Move x to `device`, or to the device of `tensor`, and convert it to `dtype` unless that is None."""
    x = x.to(device if device is not None or tensor is None else tensor.device)
    return x if dtype is None else to_dtype(x, dtype=dtype)


def torch_arange_from_size(input: Tensor, size_dim: int = 0) -> Tensor:
    """Return the indices 0, 1, ... of a dimension of a tensor."""
    return torch.arange(input.shape[size_dim], device=input.device)


def torch_standard_scaler(x: Tensor) -> Tensor:
    """Shift and scale each column to mean 0 and standard deviation 1."""
    return (x - x.mean(0)) / x.std(0)


def try_next_on_generator(gen: Iterator[T], iterable: Iterable[T]) -> tuple[Iterator[T], T]:
    """Return the iterator and its next element. If the iterator is exhausted, start a new one."""
    for element in gen:
        return gen, element
    gen = iter(iterable)
    return gen, next(gen)


def process_label(
    labels: Any, hierarchy_level: int | str | Sequence[int], label_map: Callable[[Array, int], Any]
) -> Any:
    """Apply `label_map` to labels [N] or [N, levels], and select one or more columns.

    Args:
        labels: An array or tensor of labels.
        hierarchy_level: The column, a list of columns, or "all".
        label_map: A function that takes a column of labels and the index of the column, such as `LabelMapper.map`.
    """
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim == 2:
        mapped = np.stack([np.asarray(label_map(array[:, level], level)) for level in range(array.shape[1])], 1)
        mapped = mapped if isinstance(hierarchy_level, str) else mapped[:, np.asarray(hierarchy_level)]
    else:
        mapped = np.asarray(label_map(array, 0))
    return mapped if mapped.dtype.kind in "USO" else torch.from_numpy(mapped)


class LabelMapper:
    """Map labels to 0, 1, ... in sorted order, separately for each column of labels [N, levels].

    Args:
        set_min_label_to_zero: If False, `map` returns labels unchanged.
        dataset_labels: All labels of the dataset.
    """

    def __init__(self, set_min_label_to_zero: bool = False, dataset_labels: Any = None) -> None:
        self.set_min_label_to_zero = set_min_label_to_zero
        if dataset_labels is not None:
            array = np.asarray(dataset_labels)
            columns = array.T if array.ndim == 2 else array[None]
            self.label_map = {
                level: {label: number for number, label in enumerate(np.unique(column).tolist())}
                for level, column in enumerate(columns)
            }

    def map(self, labels: Any, hierarchy_level: int) -> Any:
        """Map the labels of one column."""
        if not self.set_min_label_to_zero:
            return labels
        numbers = self.label_map[hierarchy_level]
        return np.array([numbers[label] for label in np.asarray(labels).tolist()], dtype=int)


class EmbeddingDataset(Dataset[tuple[Any, Any]]):
    """A dataset of embeddings and labels."""

    def __init__(self, embeddings: Any, labels: Any) -> None:
        self.embeddings, self.labels = embeddings, labels

    def __len__(self) -> int:
        return len(self.embeddings)

    def __getitem__(self, idx: int) -> tuple[Any, Any]:
        return self.embeddings[idx], self.labels[idx]


class TorchInitWrapper:
    """An initialization function from `torch.nn.init` with fixed arguments."""

    def __init__(self, init_func: Callable[..., Any], **kwargs: Any) -> None:
        self.init_func, self.kwargs = init_func, kwargs

    def __call__(self, tensor: Tensor) -> None:
        self.init_func(tensor, **self.kwargs)


class Recorded(nn.Module):
    """Base class of losses, miners, distances, reducers and regularizers.

    Args:
        collect_stats: Whether to store statistics of the last call in attributes. On a GPU, this makes the
            CPU wait for the GPU. The default is `COLLECT_STATS` of this module.
    """

    def __init__(self, *, collect_stats: bool | None = None) -> None:
        super().__init__()
        self.collect_stats = COLLECT_STATS if collect_stats is None else collect_stats
