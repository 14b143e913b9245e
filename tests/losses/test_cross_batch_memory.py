import pytest
import torch

from nearfar.losses import create
from nearfar.losses.cross_batch_memory import CrossBatchMemory


def batches(n: int, size: int = 6, dim: int = 4) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(size, dim, generator=g),
            torch.randint(3, (size,), generator=g) + 2**53,
            torch.rand(size, generator=g),
        )
        for _ in range(n)
    ]


@pytest.mark.parametrize("name", ["contrastive", "triplet", "multi-similarity", "supcon", "smooth-ap", "angular"])
def test_value_is_batch_plus_memory_of_the_latest_rows(name: str) -> None:
    base = create(name)
    loss = CrossBatchMemory(base, size=15, dim=4, memory_weight=0.5)
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for x, y, w in batches(7):
        expected = base(x, y, weights=w)
        if seen:
            rows, labels, weights = (torch.cat([s[k] for s in seen])[-15:] for k in range(3))
            expected = expected + 0.5 * base(x, y, ref_emb=rows, ref_labels=labels, weights=w, ref_weights=weights)
        torch.testing.assert_close(loss(x, y, weights=w), expected, rtol=1e-5, atol=1e-6)
        seen.append((x, y, w))


def test_resume_goes_on_exactly() -> None:
    data = batches(8)
    whole = CrossBatchMemory(create("contrastive"), size=20, dim=4)
    values = [float(whole(x, y, weights=w)) for x, y, w in data]
    first = CrossBatchMemory(create("contrastive"), size=20, dim=4)
    for x, y, w in data[:5]:
        first(x, y, weights=w)
    second = CrossBatchMemory(create("contrastive"), size=20, dim=4)
    second.load_state_dict(first.state_dict())
    assert [float(second(x, y, weights=w)) for x, y, w in data[5:]] == values[5:]


def test_evaluation_does_not_remember_and_start_waits() -> None:
    x, y, _ = batches(1)[0]
    loss = CrossBatchMemory(create("contrastive"), size=20, dim=4, start=2)
    loss.eval()
    loss(x, y)
    assert loss.state.tolist() == [0, 0, 0]
    loss.train()
    alone = float(create("contrastive")(x, y))
    values = [float(loss(x, y)) for _ in range(3)]
    assert values[0] == values[1] == pytest.approx(alone)
    assert values[2] != pytest.approx(alone)


def test_gradient_reaches_the_batch_and_not_the_memory() -> None:
    loss = CrossBatchMemory(create("contrastive"), size=20, dim=4)
    (x0, y0, _), (x1, y1, _) = batches(2)
    x0.requires_grad_()
    x1.requires_grad_()
    loss(x0, y0).backward()
    before = x0.grad.clone() if x0.grad is not None else None
    loss(x1, y1).backward()
    assert before is not None
    assert torch.equal(x0.grad, before)
    assert x1.grad is not None
    assert x1.grad.abs().sum() > 0


def test_multi_hot_labels() -> None:
    loss = CrossBatchMemory(create("contrastive"), size=20, dim=4, classes=3)
    x = torch.randn(4, 4)
    y = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1]])
    loss(x, y)
    assert torch.isfinite(loss(x, y))


def relations(count: int) -> torch.Tensor:
    """Return random relations of all samples: 1, 0 and NaN, symmetric, with NaN on the diagonal."""
    kind = torch.randint(3, (count, count), generator=torch.Generator().manual_seed(0)).triu(1)
    return torch.tensor([0.0, 1.0, torch.nan])[kind + kind.T].fill_diagonal_(torch.nan)


@pytest.mark.parametrize("name", ["contrastive", "triplet", "supcon"])
def test_relations_between_the_batch_and_the_memory(name: str) -> None:
    base, relation = create(name), relations(30)
    loss = CrossBatchMemory(base, size=10, dim=4)
    order = torch.randint(30, (5, 6), generator=torch.Generator().manual_seed(1))
    past: list[tuple[torch.Tensor, torch.Tensor]] = []
    for ids, (x, _, _) in zip(order, batches(5), strict=True):
        expected = base(x, relation=relation[ids][:, ids])
        if past:
            rows, stored = (torch.cat([p[k] for p in past])[-10:] for k in range(2))
            expected = expected + base(x, relation=relation[ids][:, stored], ref_emb=rows)
        value = loss(x, ids, relation=lambda a, b: relation[a][:, b])
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        past.append((x, ids))


def test_relations_of_equal_labels_are_labels() -> None:
    with_labels, with_relation = (CrossBatchMemory(create("multi-similarity"), size=20, dim=4) for _ in range(2))
    for x, y, w in batches(4):
        value = with_relation(x, y, relation=lambda a, b: a[:, None] == b, weights=w)
        torch.testing.assert_close(value, with_labels(x, y, weights=w))


def test_a_relation_that_does_not_cover_the_memory_is_refused() -> None:
    loss = CrossBatchMemory(create("contrastive"), size=20, dim=4)
    x, y, _ = batches(1)[0]
    with pytest.raises(ValueError, match=r"relation must be a function of the ids .* got Tensor"):
        loss(x, y, relation=torch.eye(6))
    with pytest.raises(ValueError, match="labels must be a tensor of integer sample ids"):
        loss(x, list("abcdef"), relation=lambda a, b: a[:, None] == b)
    assert loss.progress == [0, 0, 0]


def test_bad_input() -> None:
    loss = CrossBatchMemory(create("contrastive"), size=5, dim=4)
    with pytest.raises(ValueError, match=r"embeddings of shape \[6, 4\] do not fit a memory of 5 embeddings"):
        loss(*batches(1)[0][:2])
    with pytest.raises(ValueError, match="labels of shape"):
        loss(torch.randn(2, 4), torch.eye(2).long())
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        CrossBatchMemory(create("contrastive"), size=0, dim=4)
    with pytest.raises(ValueError, match="loss must be a pair loss"):
        CrossBatchMemory(torch.nn.Identity(), size=5, dim=4)  # type: ignore[arg-type]
