import pytest
import torch

from nearfar.losses import create
from nearfar.mining import closest_negatives, create_miner, distance_weighted, hardest, multi_similarity, semi_hard
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs, pair_masks


def batch(n: int = 24, d: int = 6, classes: int = 5, seed: int = 0) -> Pairs:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    return Pairs(cosine_matrix(torch.randn(n, d, generator=g)), *pair_masks(labels))


def ranked(pairs: Pairs, i: int, mask: torch.Tensor, nearest: bool) -> list[int]:
    """Columns of a row's mask by similarity, ties by index."""
    return sorted(
        mask[i].nonzero().flatten().tolist(), key=lambda j: (-pairs.sim[i, j].item() * (1 if nearest else -1), j)
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 2, 3, 50])
def test_hardest(seed: int, k: int) -> None:
    pairs = batch(seed=seed)
    kept = hardest(pairs, k=k)
    for i in range(len(pairs.sim)):
        assert set(kept.same[i].nonzero().flatten().tolist()) == set(ranked(pairs, i, pairs.same, nearest=False)[:k])
        assert set(kept.diff[i].nonzero().flatten().tolist()) == set(ranked(pairs, i, pairs.diff, nearest=True)[:k])


@pytest.mark.parametrize("seed", range(5))
def test_closest_negatives_are_as_many_as_positives(seed: int) -> None:
    pairs = batch(seed=seed)
    kept = closest_negatives(pairs)
    assert torch.equal(kept.same, pairs.same)
    for i in range(len(pairs.sim)):
        wanted = ranked(pairs, i, pairs.diff, nearest=True)[: int(pairs.same[i].sum())]
        assert set(kept.diff[i].nonzero().flatten().tolist()) == set(wanted)


def test_ties_go_to_the_first() -> None:
    same, diff = pair_masks(torch.tensor([0, 0, 0, 1, 2, 3, 4]))
    pairs = Pairs(torch.zeros(7, 7), same, diff)
    assert closest_negatives(pairs).diff[0].nonzero().flatten().tolist() == [3, 4]
    assert hardest(pairs).diff[0].nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("seed", range(5))
def test_semi_hard_is_between_a_positive_and_its_margin(seed: int) -> None:
    pairs, margin = batch(seed=seed), 0.2
    kept = semi_hard(pairs, margin=margin)
    for i in range(len(pairs.sim)):
        positives = pairs.sim[i][pairs.same[i]].tolist()
        for j in pairs.diff[i].nonzero().flatten().tolist():
            s = pairs.sim[i, j].item()
            assert kept.diff[i, j].item() == any(p - margin < s < p for p in positives)


@pytest.mark.parametrize("seed", range(5))
def test_semi_hard_with_a_threshold_keeps_all_positives_and_as_many_negatives(seed: int) -> None:
    pairs = batch(seed=seed)
    kept = semi_hard(pairs, margin=0.2, threshold=0.5)
    assert torch.equal(kept.same, pairs.same)
    for i in range(len(pairs.sim)):
        candidates = [j for j in pairs.diff[i].nonzero().flatten().tolist() if 0.3 < pairs.sim[i, j] < 0.5]
        closest = sorted(candidates, key=lambda j, i=i: -pairs.sim[i, j])[: int(pairs.same[i].sum())]
        assert kept.diff[i].nonzero().flatten().tolist() == sorted(closest)


def test_the_semi_hard_baseline_of_dro_has_as_many_pairs_as_the_paper_says() -> None:
    """Section 4.2.3 of arXiv 1912.11194: 2,560 pairs at B = 640 with 5 samples per class, half of them positive."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(128, 6, generator=generator).repeat_interleave(5, 0)  # few dimensions: many close classes
    x = centers + 0.1 * torch.randn(640, 6, generator=generator)
    pairs = Pairs(cosine_matrix(x), *pair_masks(torch.arange(640) // 5))
    kept = semi_hard(pairs, margin=0.2, threshold=0.5)
    assert (int(kept.same.sum()), int(kept.diff.sum())) == (2560, 2560)  # ordered pairs: twice 1,280


def test_multi_similarity_sets_are_empty_together() -> None:
    for seed in range(20):
        kept = multi_similarity(batch(seed=seed, classes=9), epsilon=0.1)
        assert torch.equal(kept.same.any(1), kept.diff.any(1))


@pytest.mark.parametrize("dim", [3, 64, 512, 2048])
def test_distance_weighted_drops_no_anchor(dim: int) -> None:
    """The peer loses 20 to 40 per cent of the anchors at 512 dimensions."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(120) // 4
    x = torch.randn(120, dim, generator=g)
    x[1] = x[100] + 1e-4  # one very close negative pair must not take the others' chance
    kept = distance_weighted(Pairs(cosine_matrix(x), *pair_masks(labels)), dim=dim, generator=g)
    assert (kept.diff.sum(1) == 3).all()
    assert (kept.same.sum(1) == 3).all()


def test_distance_weighted_prefers_by_the_inverse_density() -> None:
    """Draw many times from one anchor's two negatives and compare with w1/(w1+w2)."""
    dim, cutoff = 8, 0.5
    sims = torch.tensor([0.9, 0.4, 0.1])
    same, diff = torch.tensor([[True, False, False]]), torch.tensor([[False, True, True]])
    d = (2 - 2 * sims[1:]).sqrt().clamp_min(cutoff)
    log_w = (2 - dim) * d.log() - (dim - 3) / 2 * torch.log(1 - d.square() / 4)
    expected = torch.softmax(log_w, 0)[0].item()
    g = torch.Generator().manual_seed(1)
    many = Pairs(sims.expand(20000, 3), same.expand(20000, 3), diff.expand(20000, 3))
    share = distance_weighted(many, dim=dim, cutoff=cutoff, generator=g).diff[:, 1].float().mean().item()
    assert share == pytest.approx(expected, abs=0.02)


def test_distance_weighted_wants_cosines_or_distances() -> None:
    pairs = batch()
    far = Pairs(-(2 - 2 * pairs.sim).clamp_min(0).sqrt() - 0.5, pairs.same, pairs.diff)
    with pytest.raises(ValueError, match="call distance_weighted with distances"):
        distance_weighted(far, dim=6)
    distances = (2 - 2 * pairs.sim).clamp_min(0).sqrt()
    a, b = (torch.Generator().manual_seed(0) for _ in range(2))
    ours = distance_weighted(pairs, dim=6, generator=a)
    theirs = distance_weighted(far, dim=6, distances=distances, generator=b)
    assert torch.equal(ours.diff, theirs.diff)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        hardest(batch(), k=0)
    with pytest.raises(ValueError, match="margin"):
        semi_hard(batch(), margin=-1)


def test_miners_by_name_have_their_options() -> None:
    pairs = batch(seed=3)
    named = create_miner({"name": "semi-hard", "threshold": 0.1, "margin": 0.3})(pairs)
    direct = semi_hard(pairs, threshold=0.1, margin=0.3)
    assert torch.equal(named.same, direct.same)
    assert torch.equal(named.diff, direct.diff)
    assert not torch.equal(named.diff, semi_hard(pairs).diff)
    torch.manual_seed(0)
    named = create_miner({"name": "distance-weighted", "dim": 6})(pairs)
    torch.manual_seed(0)
    assert torch.equal(named.diff, distance_weighted(pairs, dim=6).diff)


def test_a_loss_mines_by_name_with_options() -> None:
    x, labels = torch.randn(12, 6), torch.arange(12) % 3
    loss = create("pair-margin", mine={"name": "hardest", "k": 2})
    other = create("pair-margin")
    other.mine = lambda pairs: hardest(pairs, k=2)
    assert torch.equal(loss(x, labels), other(x, labels))


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        ("semihard", "did you mean 'semi-hard'"),
        ({"k": 2}, "mine must be one of"),
        ({"name": "hardest", "kk": 2}, "has no option 'kk'"),
        ({"name": "distance-weighted"}, "needs dim"),
        ({"name": "distance-weighted", "dim": 6, "generator": None}, "has no option 'generator'"),
    ],
)
def test_mistakes_in_a_miner_are_named(mine: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create("pair-margin", mine=mine)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["angular", "contrastive", "hap", "multi-similarity", "supcon", "triplet"])
def test_miners_work_with_references(name: str) -> None:
    g = torch.Generator().manual_seed(3)
    x, refs = torch.randn(6, 4, generator=g), torch.randn(9, 4, generator=g)
    labels, ref_labels = torch.arange(6) % 3, torch.arange(9) % 3
    full = create(name)(x, labels, ref_emb=refs, ref_labels=ref_labels)
    everything = create(name, mine={"name": "hardest", "k": 9})(x, labels, ref_emb=refs, ref_labels=ref_labels)
    hard = create(name, mine="hardest")(x, labels, ref_emb=refs, ref_labels=ref_labels)
    torch.testing.assert_close(everything, full)
    assert not torch.allclose(hard, full)
