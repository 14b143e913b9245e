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
