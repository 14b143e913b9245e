from collections import Counter

import numpy as np
import pytest
import torch

from nearfar.samplers import PK, BatchSampler, Profs, Shuffled


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 7 + 2**40, sizes))


UNEVEN = [1, 2, 3, 4, 5, 6, 7, 30, 4, 4]
SAMPLERS = {
    "shuffled": lambda **kw: Shuffled(range(66), size=8, **kw),
    "pk": lambda **kw: PK(labels_of(UNEVEN), classes=3, per_class=4, **kw),
    "pk classes": lambda **kw: PK(labels_of(UNEVEN), classes=4, per_class=5, epoch="classes", **kw),
    "profs": lambda **kw: Profs(labels_of(UNEVEN), classes=3, per_class=4, steps=4, **kw),
    "hncm": lambda **kw: Profs(labels_of(UNEVEN), classes=3, per_class=4, mining="hncm", **kw),
}


@pytest.mark.parametrize(("p", "k"), [(3, 4), (1, 1), (4, 2), (10, 3), (25, 2), (2, 50)])
def test_every_sample_comes_and_every_batch_has_p_classes_of_k(p: int, k: int) -> None:
    labels = labels_of(UNEVEN)
    sizes = Counter(labels.tolist())
    for epoch in range(3):
        sampler = PK(labels, classes=p, per_class=k, seed=1)
        sampler.epoch = epoch
        seen: Counter[int] = Counter()
        for batch in sampler:
            in_batch = Counter(labels[batch].tolist())
            assert len(in_batch) == min(p, len(UNEVEN))
            assert set(in_batch.values()) == {k}
            for label in in_batch:
                rows = [i for i in batch if labels[i] == label]
                assert len(set(rows)) == min(k, sizes[label]), "repeats before the class is used up"
            assert [labels[i] for i in batch] == [
                label for label in dict.fromkeys(labels[batch].tolist()) for _ in range(k)
            ]
            seen.update(batch)
        assert set(seen) == set(range(len(labels)))


def test_even_classes_are_covered_exactly_once() -> None:
    labels = np.repeat(np.arange(12), 8)
    seen = Counter(i for batch in PK(labels, classes=12, per_class=4) for i in batch)
    assert set(seen.values()) == {1}


def test_an_epoch_of_classes_visits_each_once() -> None:
    labels = labels_of([5] * 12)
    batches = list(PK(labels, classes=4, per_class=5, epoch="classes"))
    assert len(batches) == 3
    assert len({label for batch in batches for label in labels[batch].tolist()}) == 12


def test_shuffled_covers_and_drops_the_rest() -> None:
    assert sorted(i for b in Shuffled(range(20), size=8, drop_last=False) for i in b) == list(range(20))
    assert [len(b) for b in Shuffled(range(20), size=8)] == [8, 8]
    assert [len(b) for b in Shuffled(range(5), size=8)] == [5]


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_seed_decides_and_epochs_differ(make: object) -> None:
    def epochs(seed: int) -> list[list[list[int]]]:
        sampler: BatchSampler = make(seed=seed)  # type: ignore[operator]
        return [list(sampler) for _ in range(2)]

    assert epochs(3) == epochs(3)
    assert epochs(3)[0] != epochs(3)[1]
    assert epochs(3)[0] != epochs(4)[0]


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("stop", [0, 1, 3, 9, 17])
def test_resume_in_the_middle(make: object, stop: int) -> None:
    def stream(sampler: BatchSampler, count: int) -> list[list[int]]:
        out: list[list[int]] = []
        while len(out) < count:
            for batch in sampler:
                out.append(batch)
                if len(out) == count:
                    break
        return out

    whole = stream(make(seed=5), stop + 10)  # type: ignore[operator]
    first = make(seed=5)  # type: ignore[operator]
    stream(first, stop)
    second = make(seed=99)  # type: ignore[operator]
    second.load_state_dict(first.state_dict())
    assert stream(second, 10) == whole[stop:]


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_ranks_share_the_same_global_batch(make: object) -> None:
    whole = list(make())  # type: ignore[operator]
    parts = [list(make(rank=r, world=3)) for r in range(3)]  # type: ignore[operator]
    for k, batch in enumerate(whole):
        assert sorted(i for part in parts for i in part[k]) == sorted(batch)


@pytest.mark.parametrize("name", ["pk", "profs"])
def test_in_a_data_loader(name: str) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(66))
    loader = torch.utils.data.DataLoader(data, batch_sampler=SAMPLERS[name]())
    assert len(loader) >= 6
    assert all(len(batch[0]) == 12 for batch in loader)


@pytest.mark.parametrize("name", ["shuffled", "pk"])
def test_ordinary_samplers_have_no_representatives_and_ignore_feedback(name: str) -> None:
    sampler, batches = SAMPLERS[name](), []
    for batch in sampler:
        batches.append(batch)
        sampler.observe(torch.randn(len(batch), 3), torch.tensor(1.0))
        assert (sampler.representatives, sampler.cycle) == (None, 0)
        assert (sampler.is_adaptive, sampler.samples_to_embed()) == (False, None)
    assert batches == list(SAMPLERS[name]())


def test_many_classes_are_quick_to_plan() -> None:
    labels = np.repeat(np.arange(11318), 5)
    sampler = PK(labels, classes=64, per_class=2)
    assert len(sampler) == pytest.approx(11318 * 3 / 64, rel=0.05)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="labels must be integers, strings"):
        PK([0.5, 1.5], classes=2, per_class=2)
    with pytest.raises(ValueError, match="classes must be at least 1, got 0"):
        PK([0, 1], classes=0, per_class=2)
    with pytest.raises(ValueError, match="epoch must be one of"):
        PK([0, 1], classes=1, per_class=2, epoch="sample")
    with pytest.raises(ValueError, match="size=0"):
        Shuffled(range(3), size=0)
    with pytest.raises(ValueError, match="rank must be at least 0 and below world=2, got 2"):
        Shuffled(range(3), size=1, rank=2, world=2)


def test_pk_takes_a_size_in_place_of_classes() -> None:
    labels = np.arange(400) % 40
    assert PK(labels).size == 128
    assert (PK(labels, size=10, per_class=3).classes, PK(labels, size=10, classes=5).classes) == (3, 5)
    assert PK(labels, size=1, per_class=4).classes == 2


def test_labels_may_be_strings() -> None:
    numbers = labels_of(UNEVEN)
    words = [f"bird {label:020d}" for label in numbers.tolist()]
    for labels in (words, np.array(words), np.array(words, dtype=object)):
        assert list(PK(labels, classes=3)) == list(PK(numbers, classes=3))
        assert list(Profs(labels, classes=3)) == list(Profs(numbers, classes=3))
    assert list(Shuffled(words, size=8)) == list(Shuffled(numbers, size=8))
    assert list(PK(torch.from_numpy(numbers), classes=3)) == list(PK(numbers, classes=3))
    with pytest.raises(ValueError, match="labels must be integers, strings"):
        PK([1, 1.5, 2])


def test_repr_shows_the_options() -> None:
    assert repr(SAMPLERS["pk"]()) == "PK(samples=66, classes=3, per_class=4, epoch='samples', seed=0)"
    assert repr(SAMPLERS["shuffled"](seed=7)) == "Shuffled(samples=66, size=8, drop_last=True, seed=7)"
    assert repr(SAMPLERS["profs"]()) == "Profs(samples=66, classes=3, per_class=4, steps=4, seed=0)"
    assert "mining='hncm', seed=0, rank=1, world=2" in repr(SAMPLERS["hncm"](rank=1, world=2))
