"""Samplers: m samples per class, fixed triplets, hierarchies of classes, and samples that a miner selects often."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Sampler

from nearfar.compat.arguments import InvalidInputError, absent
from nearfar.compat.utils.loss_and_miner_utils import convert_to_weights
from nearfar.samplers import PK

__all__ = ["FixedSetOfTriplets", "HierarchicalSampler", "MPerClassSampler", "TuplesToWeightsSampler"]


class MPerClassSampler(Sampler[int]):
    """Yield the samples of the batches of `nearfar.samplers.PK` one by one, as indices.

    Each batch has batch_size / m classes with m samples each.

    Unlike in pytorch-metric-learning, every class is drawn once before any class is drawn again. The seed is drawn from
    NumPy's global random state, as in pytorch-metric-learning.

    Args:
        labels: The label of every sample.
        m: Number of samples per class.
        batch_size: Number of samples per batch. By default, a batch has m samples of every class.
        length_before_new_iter: Number of indices per iteration, rounded down to a multiple of the batch size. A value
            below `batch_size` raises an error. If `batch_size` is None, a value below m times the number of classes is
            not rounded.
    """

    def __init__(
        self, labels: Any, m: int, batch_size: int | None = None, length_before_new_iter: int = 100000
    ) -> None:
        self.labels, self.m_per_class = labels, int(m)
        self.batch_size = None if batch_size is None else int(batch_size)
        self.classes = len(PK(labels, classes=1, per_class=1).members)
        length = int(length_before_new_iter)
        whole = self.m_per_class * self.classes
        if self.batch_size is None:
            self.list_size = length - length % whole if whole < length else length
            return
        if length < self.batch_size:
            raise InvalidInputError(f"length_before_new_iter must be at least batch_size={batch_size}, got {length}")
        if whole < self.batch_size:
            raise InvalidInputError(
                f"batch_size must be at most m x classes = {m} x {self.classes} = {whole}, got {batch_size}"
            )
        if self.batch_size % self.m_per_class:
            raise InvalidInputError(f"batch_size must be a multiple of m={m}, got {batch_size}")
        self.list_size = length - length % self.batch_size

    def __len__(self) -> int:
        return self.list_size

    def __iter__(self) -> Iterator[int]:
        classes = self.classes if self.batch_size is None else self.batch_size // self.m_per_class
        seed = int(np.random.randint(2**31))
        batches = PK(self.labels, classes=classes, per_class=self.m_per_class, epoch="classes", seed=seed)
        epochs = chain.from_iterable(repeat(batches))  # every pass over `batches` is a new epoch
        return islice(chain.from_iterable(epochs), self.list_size)


class FixedSetOfTriplets(Sampler[int]):
    """Draw a fixed set of triplets once, and yield them in random order: anchor, positive, negative, anchor, ...

    Args:
        labels: The label of every sample.
        num_triplets: The number of triplets. The two classes of a triplet are drawn uniformly.
    """

    def __init__(self, labels: Any, num_triplets: int) -> None:
        members = list(PK(labels, classes=1, per_class=1).members)
        if int(num_triplets) < 1 or len(members) < 2:
            raise InvalidInputError(
                f"num_triplets must be at least 1 and labels must have at least 2 classes, "
                f"got num_triplets={num_triplets} and {len(members)} classes"
            )
        self.num_triplets = int(num_triplets)
        triplets = []
        for _ in range(self.num_triplets):
            own, other = np.random.choice(len(members), 2, replace=False)
            pair = np.random.choice(members[own], 2, replace=len(members[own]) < 2)
            triplets.append([*pair, np.random.choice(members[other])])
        self.fixed_set_of_triplets = np.array(triplets, dtype=int)

    def __len__(self) -> int:
        return 3 * self.num_triplets

    def __iter__(self) -> Iterator[int]:
        np.random.shuffle(self.fixed_set_of_triplets)
        return iter(self.fixed_set_of_triplets.flatten().tolist())


class HierarchicalSampler(Sampler[list[int]]):
    """Yield batches of samples from a few super-classes. Each combination of super-classes gets several batches.

    Args:
        labels: The labels [N, levels], with one column per level of the hierarchy.
        batch_size: The maximum number of samples per batch. The super-classes have equal shares of it.
        samples_per_class: The number of samples per class, or "all".
        batches_per_super_tuple: The number of batches per combination of super-classes.
        super_classes_per_batch: The number of super-classes per batch.
        inner_label: The column of `labels` that contains the classes.
        outer_label: The column of `labels` that contains the super-classes.
    """

    def __init__(
        self,
        labels: Any,
        batch_size: int,
        samples_per_class: int | str,
        batches_per_super_tuple: int = 4,
        super_classes_per_batch: int = 2,
        inner_label: int = 0,
        outer_label: int = 1,
    ) -> None:
        array = np.asarray(labels.cpu() if isinstance(labels, torch.Tensor) else labels)
        if batch_size % super_classes_per_batch:
            raise InvalidInputError(
                f"batch_size must be a multiple of super_classes_per_batch ({super_classes_per_batch}), "
                f"got {batch_size}"
            )
        self.batch_size, self.samples_per_class = batch_size, samples_per_class
        self.batches_per_super_tuple, self.super_classes_per_batch = batches_per_super_tuple, super_classes_per_batch
        self.sub_batch_len = batch_size // super_classes_per_batch
        if not isinstance(samples_per_class, str) and (samples_per_class < 1 or self.sub_batch_len % samples_per_class):
            raise InvalidInputError(
                f"samples_per_class must be 'all' or a divisor of {self.sub_batch_len}, the samples per super-class, "
                f"got {samples_per_class}"
            )
        self.members: dict[Any, dict[Any, list[int]]] = {}
        for index, row in enumerate(array):
            self.members.setdefault(row[outer_label], {}).setdefault(row[inner_label], []).append(index)
        self.super_pairs = list(combinations(self.members, super_classes_per_batch))

    def __len__(self) -> int:
        return len(self.super_pairs) * self.batches_per_super_tuple

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.permutation(len(self))
        return (self.draw(self.super_pairs[number // self.batches_per_super_tuple]) for number in order)

    def draw(self, super_classes: tuple[Any, ...]) -> list[int]:
        """Draw one batch from these super-classes."""
        batch: list[int] = []
        for each in super_classes:
            classes = list(self.members[each].values())
            room = self.sub_batch_len
            for number in np.random.permutation(len(classes)):
                samples = classes[number]
                size = len(samples) if isinstance(self.samples_per_class, str) else self.samples_per_class
                if size <= room:
                    room -= size
                    batch.extend(np.random.choice(samples, size, replace=len(samples) < size).tolist())
        np.random.shuffle(batch)
        return batch


class TuplesToWeightsSampler(Sampler[int]):
    """Draw samples with probabilities proportional to how often a miner selects them.

    Each iteration embeds the dataset, or a random part of it, and applies the miner to all embeddings.

    Args:
        model: The network.
        miner: The miner.
        dataset: A dataset of pairs (input, label).
        subset_size: The number of samples to embed and to draw. By default, the size of the dataset.
        batch_size: The batch size of the network.
        device: The device of the network, to which inputs are moved.
    """

    weights: torch.Tensor | None = None

    def __init__(
        self,
        model: torch.nn.Module,
        miner: torch.nn.Module,
        dataset: Any,
        subset_size: int | None = None,
        batch_size: int = 32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model, self.miner, self.dataset, self.subset_size = model, miner, dataset, subset_size
        self.batch_size, self.device = batch_size, device

    def __len__(self) -> int:
        return self.subset_size or len(self.dataset)

    @torch.no_grad()
    def __iter__(self) -> Iterator[int]:
        indices = torch.as_tensor(np.random.permutation(len(self.dataset))[: len(self)])
        self.model.eval()
        subset = torch.utils.data.Subset(self.dataset, indices.tolist())
        batches = list(torch.utils.data.DataLoader(subset, batch_size=self.batch_size))
        embeddings = torch.cat([self.model(inputs.to(self.device)).cpu() for inputs, _ in batches])
        labels = torch.cat([targets for _, targets in batches])
        self.weights = torch.zeros(len(self.dataset))
        self.weights[indices] = convert_to_weights(self.miner(embeddings, labels), labels, torch.float32)
        return iter(torch.multinomial(self.weights, len(self), replacement=True).tolist())


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("samplers", name, __all__)
