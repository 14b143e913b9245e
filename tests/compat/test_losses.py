"""The losses of nearfar.compat have pytorch-metric-learning's values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nearfar import compat
from nearfar.compat import distances, losses, miners, reducers, regularizers

pml = pytest.importorskip(
    "pytorch_metric_learning", reason="pytorch-metric-learning is not installed: pip install -e '.[peers]'"
)
import pytorch_metric_learning.distances as peer_distances  # noqa: E402
import pytorch_metric_learning.losses as peer_losses  # noqa: E402
import pytorch_metric_learning.miners as peer_miners  # noqa: E402
import pytorch_metric_learning.reducers as peer_reducers  # noqa: E402
import pytorch_metric_learning.regularizers as peer_regularizers  # noqa: E402

C, D = 6, 12
Make = Callable[[Any, Any, Any], Any]  # from the modules losses, distances, reducers

PAIRS: dict[str, Make] = {
    "angular": lambda z, d, r: z.AngularLoss(),
    "angular 30": lambda z, d, r: z.AngularLoss(alpha=30, distance=d.LpDistance()),
    "circle": lambda z, d, r: z.CircleLoss(),
    "circle soft mean": lambda z, d, r: z.CircleLoss(m=0.25, gamma=8, reducer=r.MeanReducer()),
    "contrastive": lambda z, d, r: z.ContrastiveLoss(),
    "contrastive mean": lambda z, d, r: z.ContrastiveLoss(0.2, 1.3, reducer=r.MeanReducer()),
    "contrastive threshold": lambda z, d, r: z.ContrastiveLoss(reducer=r.ThresholdReducer(low=0.05, high=1.1)),
    "contrastive sum": lambda z, d, r: z.ContrastiveLoss(reducer=r.SumReducer()),
    "contrastive cosine": lambda z, d, r: z.ContrastiveLoss(1, 0, distance=d.CosineSimilarity()),
    "contrastive squared": lambda z, d, r: z.ContrastiveLoss(0.1, 1.5, distance=d.LpDistance(power=2)),
    "contrastive raw": lambda z, d, r: z.ContrastiveLoss(0, 6, distance=d.LpDistance(normalize_embeddings=False)),
    "fastap": lambda z, d, r: z.FastAPLoss(),
    "fastap 17": lambda z, d, r: z.FastAPLoss(num_bins=17, reducer=r.SumReducer()),
    "lifted": lambda z, d, r: z.LiftedStructureLoss(),
    "lifted raw": lambda z, d, r: z.LiftedStructureLoss(2, 0.3, distance=d.LpDistance(normalize_embeddings=False)),
    "lifted cosine": lambda z, d, r: z.LiftedStructureLoss(0.1, 0.9, distance=d.CosineSimilarity()),
    "margin": lambda z, d, r: z.MarginLoss(),
    "margin learned": lambda z, d, r: z.MarginLoss(margin=0.1, nu=0.01, beta=1.1, learn_beta=True),
    "margin classes": lambda z, d, r: z.MarginLoss(learn_beta=True, num_classes=C),
    "margin cosine": lambda z, d, r: z.MarginLoss(0.1, 0, 0.2, distance=d.CosineSimilarity()),
    "multi-similarity": lambda z, d, r: z.MultiSimilarityLoss(),
    "multi-similarity nonzero": lambda z, d, r: z.MultiSimilarityLoss(1, 20, 0.3, reducer=r.AvgNonZeroReducer()),
    "multi-similarity distance": lambda z, d, r: z.MultiSimilarityLoss(2, 10, 0.9, distance=d.LpDistance()),
    "n-pairs": lambda z, d, r: z.NPairsLoss(),
    "n-pairs raw": lambda z, d, r: z.NPairsLoss(distance=d.DotProductSimilarity(normalize_embeddings=False)),
    "n-pairs distance": lambda z, d, r: z.NPairsLoss(distance=d.LpDistance(), reducer=r.SumReducer()),
    "nt-xent": lambda z, d, r: z.NTXentLoss(),
    "nt-xent distance": lambda z, d, r: z.NTXentLoss(0.2, distance=d.LpDistance()),
    "nt-xent threshold": lambda z, d, r: z.NTXentLoss(0.3, reducer=r.ThresholdReducer(low=0.5)),
    "snr": lambda z, d, r: z.SignalToNoiseRatioContrastiveLoss(),
    "snr raw": lambda z, d, r: z.SignalToNoiseRatioContrastiveLoss(
        pos_margin=0.1, neg_margin=2, distance=d.SNRDistance(normalize_embeddings=False)
    ),
    "supcon": lambda z, d, r: z.SupConLoss(),
    "supcon mean": lambda z, d, r: z.SupConLoss(0.5, reducer=r.MeanReducer()),
    "supcon distance": lambda z, d, r: z.SupConLoss(distance=d.LpDistance()),
    "contrastive lp": lambda z, d, r: z.ContrastiveLoss(distance=d.LpDistance(p=1, power=2)),
    "contrastive per anchor": lambda z, d, r: z.ContrastiveLoss(reducer=r.PerAnchorReducer()),
    "contrastive class weights": lambda z, d, r: z.ContrastiveLoss(
        reducer=r.ClassWeightedReducer(torch.arange(C).double() / 3)
    ),
    "generalized lifted": lambda z, d, r: z.GeneralizedLiftedStructureLoss(0.6, 0.1),
    "generalized lifted cosine": lambda z, d, r: z.GeneralizedLiftedStructureLoss(distance=d.CosineSimilarity()),
    "intra-pair variance": lambda z, d, r: z.IntraPairVarianceLoss(0.05, 0.1),
    "intra-pair variance distance": lambda z, d, r: z.IntraPairVarianceLoss(distance=d.LpDistance()),
    "margin classes learned": lambda z, d, r: z.MarginLoss(nu=0.3, learn_beta=True, num_classes=C),
    "fastap class weights": lambda z, d, r: z.FastAPLoss(reducer=r.ClassWeightedReducer(torch.arange(C).double() / 3)),
    "n-pairs class weights": lambda z, d, r: z.NPairsLoss(reducer=r.ClassWeightedReducer(torch.arange(C).double() / 3)),
    "margin mean": lambda z, d, r: z.MarginLoss(reducer=r.MeanReducer()),
    "nca": lambda z, d, r: z.NCALoss(softmax_scale=3),
    "triplet swap": lambda z, d, r: z.TripletMarginLoss(swap=True),
    "triplet sum": lambda z, d, r: z.TripletMarginLoss(reducer=r.SumReducer()),
    "tuplet margin": lambda z, d, r: z.TupletMarginLoss(scale=8),
    "threshold consistent": lambda z, d, r: z.ThresholdConsistentMarginLoss(margin_plus=0.7, margin_minus=0.1),
    "triplet": lambda z, d, r: z.TripletMarginLoss(),
    "triplet mean": lambda z, d, r: z.TripletMarginLoss(margin=0.3, reducer=r.MeanReducer()),
    "triplet threshold": lambda z, d, r: z.TripletMarginLoss(0.2, reducer=r.ThresholdReducer(low=0)),
    "triplet smooth": lambda z, d, r: z.TripletMarginLoss(smooth_loss=True, distance=d.LpDistance(power=2)),
    "triplet cosine": lambda z, d, r: z.TripletMarginLoss(0.2, distance=d.CosineSimilarity()),
}
PROXIES: dict[str, Make] = {
    "arcface": lambda z, d, r: z.ArcFaceLoss(C, D),
    "arcface 60": lambda z, d, r: z.ArcFaceLoss(C, D, margin=60, scale=8),
    "large margin": lambda z, d, r: z.LargeMarginSoftmaxLoss(C, D, margin=3),
    "sphereface": lambda z, d, r: z.SphereFaceLoss(C, D, scale=0.5),
    "cosface": lambda z, d, r: z.CosFaceLoss(C, D, margin=0.1, scale=16, reducer=r.SumReducer()),
    "normalized softmax": lambda z, d, r: z.NormalizedSoftmaxLoss(C, D),
    "normalized softmax cosine": lambda z, d, r: z.NormalizedSoftmaxLoss(C, D, 0.3, distance=d.CosineSimilarity()),
    "proxy-anchor": lambda z, d, r: z.ProxyAnchorLoss(C, D),
    "proxy-anchor soft": lambda z, d, r: z.ProxyAnchorLoss(C, D, margin=0.2, alpha=4),
    "proxy-nca": lambda z, d, r: z.ProxyNCALoss(C, D),
    "proxy-nca cosine": lambda z, d, r: z.ProxyNCALoss(C, D, softmax_scale=9, distance=d.CosineSimilarity()),
    "soft-triple": lambda z, d, r: z.SoftTripleLoss(C, D),
    "soft-triple 3": lambda z, d, r: z.SoftTripleLoss(C, D, centers_per_class=3, la=5, gamma=0.5, margin=0.2),
    "sub-center arcface": lambda z, d, r: z.SubCenterArcFaceLoss(num_classes=C, embedding_size=D, scale=10),
}
MINED: dict[str, Callable[[], Any]] = {
    "all": lambda: None,
    "multi-similarity": lambda: peer_miners.MultiSimilarityMiner(0.3),
    "hard": lambda: peer_miners.BatchHardMiner(),
    "triplets": lambda: peer_miners.TripletMarginMiner(0.1),  # pairs are named many times
    "pairs": lambda: peer_miners.PairMarginMiner(1.3, 1.3),  # anchors without negatives, and without positives
    "histogram": lambda: peer_miners.UniformHistogramMiner(5, 4, 4),  # pairs are named twice, in pairs
}


def batch(seed: int = 0, rows: int = 21) -> tuple[Tensor, Tensor]:
    """Raw rows of any length in noisy classes of several sizes, in no order; one class has a single sample."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(C - 1, (rows,), generator=generator)
    labels[rows // 2] = C - 1
    centers = torch.randn(C, D, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, D, generator=generator, dtype=torch.float64)
    return (centers[labels] + noise) * (0.5 + torch.rand(rows, 1, generator=generator)), labels


def both(make: Make) -> tuple[Any, Any]:
    """Ours and the peer's, from the same seed, in float64."""
    found = []
    for parts in ((losses, distances, reducers), (peer_losses, peer_distances, peer_reducers)):
        torch.manual_seed(3)
        found.append(make(*parts).double())
    return found[0], found[1]


def check_same(make: Make, x: Tensor, *others: Any, **named: Any) -> None:
    ours, theirs = both(make)
    results = []
    for loss in (ours, theirs):
        rows = x.clone().requires_grad_()
        value = loss(rows, *others, **named)
        value.backward()
        results.append((value.detach(), rows.grad, {name: p.grad for name, p in loss.named_parameters()}))
    assert results[0][2].keys() == results[1][2].keys()
    # a loss there may be float32 inside, with float64 rows
    exact = {"rtol": 1e-9, "atol": 1e-9, "check_dtype": False}
    torch.testing.assert_close(results[0][0], results[1][0].reshape(()), **exact)
    torch.testing.assert_close(results[0][1], results[1][1], **exact)
    for name, gradient in results[1][2].items():
        if gradient is None and results[0][2][name] is not None:  # without triplets, the gradient here is 0
            gradient = torch.zeros_like(results[0][2][name])
        torch.testing.assert_close(results[0][2][name], gradient, **exact)


@pytest.mark.parametrize("mined", MINED)
@pytest.mark.parametrize("name", [*PAIRS, *PROXIES])
def test_values_and_gradients_are_the_peers(name: str, mined: str) -> None:
    x, labels = batch()
    if name.startswith("angular"):
        x = torch.nn.functional.normalize(x)  # the peer forgets to normalize its negatives
    miner = MINED[mined]()
    torch.manual_seed(0)
    indices = None if miner is None else miner(x, labels)
    if name.startswith("angular") and mined in ("triplets", "histogram"):
        with pytest.raises(ValueError, match="names a positive pair more than once"):
            PAIRS[name](losses, distances, reducers)(x, labels, indices)
        return
    make = {**PAIRS, **PROXIES}[name]
    if name.startswith("angular"):  # there, the gradient along a row is missing its normalization's part
        check_same(lambda *parts: Normalized(make(*parts)), x, labels, indices)
    else:
        check_same(make, x, labels, indices)


class Normalized(torch.nn.Module):
    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, x: Tensor, *others: Any) -> Tensor:
        value: Tensor = self.loss(torch.nn.functional.normalize(x), *others)
        return value


REFERENCED = [
    "generalized lifted",
    "intra-pair variance",
    "lifted",
    "nca",
    "tuplet margin",
    "contrastive",
    "circle",
    "margin classes",
    "multi-similarity",
    "nt-xent",
    "supcon",
    "triplet",
    "snr",
]


@pytest.mark.parametrize("name", REFERENCED)
def test_references(name: str) -> None:
    x, labels = batch(1)
    refs, ref_labels = batch(2, rows=13)
    check_same(PAIRS[name], x, labels, None, refs, ref_labels)
    indices = peer_miners.MultiSimilarityMiner(0.3)(x, labels, refs, ref_labels)
    check_same(PAIRS[name], x, labels, indices, refs, ref_labels)
    # two views of a batch share their labels tensor: then the i-th of each are no pair there
    check_same(PAIRS[name], x, labels, None, x.flip(1), labels)
    check_same(PAIRS[name], x, labels, None, x, labels)


@pytest.mark.parametrize(
    "name", ["contrastive", "lifted", "margin", "multi-similarity", "nt-xent", "supcon", "triplet"]
)
def test_indices_need_no_labels(name: str) -> None:
    x, labels = batch()
    check_same(PAIRS[name], x, None, peer_miners.BatchHardMiner()(x, labels))


@pytest.mark.parametrize("name", [*PAIRS, *PROXIES])
def test_batches_with_nothing_to_compare(name: str) -> None:
    make = {**PAIRS, **PROXIES}[name]
    check_same(make, torch.randn(4, D, dtype=torch.float64), torch.zeros(4, dtype=torch.int64))
    ours, _ = both(make)
    empty = torch.zeros(0, dtype=torch.int64)
    x = torch.randn(4, D, dtype=torch.float64, requires_grad=True)
    ours(x, torch.arange(4), (empty,) * 4).backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", ["contrastive", "multi-similarity", "nt-xent", "supcon", "triplet", "margin"])
def test_one_pair_of_each(name: str) -> None:
    x, labels = batch()
    first = torch.zeros(1, dtype=torch.int64)
    other = (labels != labels[0]).nonzero()[0]
    same = (labels == labels[0]).nonzero()[1]
    check_same(PAIRS[name], x, labels, (first, same, first, other))
    check_same(PAIRS[name], x, labels, (first, same, other))


def test_smooth_ap_is_the_peers_where_that_is_right() -> None:
    labels = torch.arange(16) // 4  # as many classes as samples a class, sorted
    x = torch.randn(16, D, dtype=torch.float64)
    indices = peer_miners.MultiSimilarityMiner(0.2)(x, labels)
    for chosen in (None, indices):
        ours, theirs = both(lambda z, d, r: z.SmoothAPLoss(temperature=0.05))
        rows = [x.clone().requires_grad_() for _ in range(2)]
        values = [loss(each, labels, chosen) for loss, each in zip((ours, theirs), rows, strict=True)]
        for value in values:
            value.backward()
        torch.testing.assert_close(values[0], values[1], rtol=1e-6, atol=1e-6, check_dtype=False)  # float32 there
        torch.testing.assert_close(rows[0].grad, rows[1].grad, rtol=1e-5, atol=1e-7)
    # and in any order of the same samples it stays what it was
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x[order], labels[order]), ours(x, labels))


@pytest.mark.parametrize("name", PROXIES)
def test_state_and_start_are_the_peers(name: str) -> None:
    ours, theirs = both(PROXIES[name])
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())


def test_weight_init_func_fills_the_parameter() -> None:
    loss = losses.ArcFaceLoss(C, D, weight_init_func=torch.nn.init.ones_)
    assert (loss.W == 1).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: losses.AngularLoss(reducer=reducers.SumReducer()), r"reducer=SumReducer\(\) .* MeanReducer"),
        (
            lambda: losses.CircleLoss(distance=distances.LpDistance()),
            "CircleLoss: distance=LpDistance.* use the default",
        ),
        (lambda: losses.FastAPLoss(distance=distances.LpDistance()), "distance=LpDistance.*power=2"),
        (lambda: losses.ProxyNCALoss(C, D, distance=distances.LpDistance()), "distance=LpDistance.*power=2"),
        (lambda: losses.NTXentLoss(distance=peer_distances.LpDistance()), "from nearfar.compat.distances"),
        (lambda: losses.NTXentLoss(reducer=peer_reducers.MeanReducer()), "from nearfar.compat.reducers"),
        (lambda: losses.ContrastiveLoss(embedding_regularizer=abs), "embedding_regularizer=<built-in.* use one from"),
        (lambda: losses.SoftTripleLoss(C, D, weight_regularizer=abs), "weight_regularizer=<built-in"),
        (lambda: distances.CosineSimilarity(p=1), "p=1 .* use p=2"),
    ],
)
def test_what_cannot_be_honored_is_an_error(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as told:
        make()
    assert "use pytorch_metric_learning" in str(told.value)
    assert "\n" not in str(told.value)


def test_what_is_off_may_be_said() -> None:
    losses.ContrastiveLoss(embedding_regularizer=None, embedding_reg_weight=2, collect_stats=False)


def test_a_typing_mistake_is_named() -> None:
    with pytest.raises(TypeError, match="NTXentLoss has no argument reducr, got None; did you mean 'reducer'"):
        losses.NTXentLoss(reducr=None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="NTXentLoss has no argument weight_init_func, got"):
        losses.NTXentLoss(weight_init_func=torch.nn.init.ones_)  # type: ignore[call-arg]


def test_names_that_are_not_here_say_what_to_keep() -> None:
    with pytest.raises(AttributeError, match=r"no 'FancyLoss'.* use pytorch_metric_learning.losses for others"):
        _ = losses.FancyLoss  # type: ignore[attr-defined]
    for module in (losses, miners, distances, reducers):
        for name in module.__all__:
            assert hasattr(getattr(pml, module.__name__.rpartition(".")[2]), name), name
    assert compat.__doc__


def test_wrong_calls() -> None:
    x, labels = batch()
    with pytest.raises(ValueError, match="NTXentLoss requires labels, got None"):
        losses.NTXentLoss()(x)
    with pytest.raises(ValueError, match="NTXentLoss: ref_emb was given without ref_labels"):
        losses.NTXentLoss()(x, labels, None, x.clone())
    with pytest.raises(ValueError, match="MarginLoss requires labels, got None"):
        losses.MarginLoss(num_classes=C)(x, None, (labels, labels, labels))
    with pytest.raises(ValueError, match="FastAPLoss: ref_emb was given"):
        losses.FastAPLoss()(x, labels, None, x.clone(), labels)
    with pytest.raises(ValueError, match="ArcFaceLoss: the proxies are the references"):
        losses.ArcFaceLoss(C, D)(x, labels, None, x.clone(), labels)
    with pytest.raises(ValueError, match=r"indices_tuple must be .* got 2 parts"):
        losses.NTXentLoss()(x, labels, (labels, labels))
    zero = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"indices_tuple has \[0, 0\] both as a positive and as a negative pair"):
        losses.AngularLoss()(x, labels, (zero, zero, zero))


@pytest.mark.parametrize(
    "make",
    [
        lambda z, d, r: z.RankedListLoss(margin=0.4, Tn=2.0, Tp=1.0),
        lambda z, d, r: z.PNPLoss(variant="Dq", anneal=0.1),
        lambda z, d, r: z.PNPLoss(variant="Ib", anneal=0.1),
        lambda z, d, r: z.InstanceLoss(gamma=3),
    ],
)
def test_losses_without_miners(make: Make) -> None:
    check_same(make, *batch(4))


def test_regularizers_are_the_peers() -> None:
    x, labels = batch(5)
    for make in (
        lambda z, g: z.ContrastiveLoss(embedding_regularizer=g.LpRegularizer(p=3, power=2), embedding_reg_weight=0.3),
        lambda z, g: z.ArcFaceLoss(C, D, embedding_regularizer=g.ZeroMeanRegularizer()),
        lambda z, g: z.ArcFaceLoss(C, D, weight_regularizer=g.RegularFaceRegularizer(), weight_reg_weight=2),
        lambda z, g: z.CosFaceLoss(C, D, weight_regularizer=g.CenterInvariantRegularizer()),
        lambda z, g: z.SoftTripleLoss(C, D, 3, weight_regularizer=g.SparseCentersRegularizer(C, 3)),
    ):
        check_same(lambda z, d, r, make=make: make(z, regularizers if z is losses else peer_regularizers), x, labels)


@pytest.mark.parametrize("name", ["contrastive", "supcon", "triplet", "margin", "multi-similarity", "nca", "lifted"])
def test_memory_is_the_peers(name: str) -> None:
    """Over several batches, and after the queue has wrapped around."""
    memories = both(lambda *parts: parts[0].CrossBatchMemory(PAIRS[name](*parts), D, 50))
    for seed in range(4):
        x, labels = batch(seed)
        found = []
        for memory in memories:
            rows = x.clone().requires_grad_()
            value = memory(rows, labels)
            value.backward()
            found.append((value.detach(), rows.grad))
        torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9, check_dtype=False)
    assert memories[0].queue_idx == memories[1].queue_idx == 34


def test_the_default_contrastive_loss_lists_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("the pairs are reduced one by one")

    monkeypatch.setattr("nearfar.compat.pair_based.reduce_matrix", refuse)
    x, y = torch.randn(8, D, requires_grad=True), torch.arange(8) // 2
    losses.ContrastiveLoss()(x, y).backward()
    losses.CrossBatchMemory(losses.ContrastiveLoss(), D, 16)(x, y).backward()
    own = {"pos_loss": reducers.AvgNonZeroReducer(), "neg_loss": reducers.MeanReducer()}
    with pytest.raises(AssertionError, match="one by one"):
        losses.ContrastiveLoss(reducer=reducers.MultipleReducers(own))(x, y)


def test_angles_of_the_tuplet_margin_loss_are_the_peers() -> None:
    x, labels = batch()
    ours, theirs = losses.TupletMarginLoss(collect_stats=True), peer_losses.TupletMarginLoss(collect_stats=True)
    assert ours.avg_pos_angle == 0
    for loss in (ours, theirs):
        loss(x, labels)
    assert ours.avg_pos_angle == pytest.approx(theirs.avg_pos_angle)
    assert ours.avg_neg_angle == pytest.approx(theirs.avg_neg_angle)


def test_do_nothing_returns_the_terms_of_the_margin_loss() -> None:
    x, labels = batch()
    ours, theirs = (
        z.MarginLoss(reducer=r.DoNothingReducer())(x, labels)
        for z, r in ((losses, reducers), (peer_losses, peer_reducers))
    )
    assert ours.keys() == theirs.keys()
    assert ours["margin_loss"]["losses"].sum() == pytest.approx(float(theirs["margin_loss"]["losses"].sum()))


def test_one_sample_with_two_positives_in_the_memory() -> None:
    x, labels = torch.randn(2, D, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    values = []
    for z in (losses, peer_losses):
        memory = z.CrossBatchMemory(z.ContrastiveLoss(), D, memory_size=2)
        memory.embedding_memory = memory.embedding_memory.double()
        memory(x, labels)
        values.append(float(memory(x[:1] + 1, labels[:1], enqueue_mask=torch.tensor([False]))))
    assert values[0] == pytest.approx(values[1])
    assert values[0] > 0


@pytest.mark.parametrize("stored", [True, False])
def test_memory_with_nothing_to_compare_is_zero(stored: bool) -> None:
    """All samples of the first batch are only stored, or none is, so that the queue is empty."""
    for z in (losses, peer_losses):
        x = torch.randn(6, D, requires_grad=True)
        memory = z.CrossBatchMemory(z.NTXentLoss(), D, memory_size=10)
        value = memory(x, torch.arange(6) // 2, enqueue_mask=torch.full((6,), stored))
        value.backward()
        assert value == 0
        assert memory.queue_idx == (6 if stored else 0)
        assert x.grad is not None
        assert not x.grad.any()


def test_labels_may_be_floats_and_must_not_be_a_column() -> None:
    x, labels = batch()
    for loss in (losses.MultiSimilarityLoss(), losses.ProxyAnchorLoss(C, D)):
        torch.testing.assert_close(loss(x, labels.float()), loss(x, labels))
        with pytest.raises(ValueError, match="labels has shape"):
            loss(x, (labels > 1).long()[:, None])


def test_histogram_is_the_peers() -> None:
    x, labels = batch(6)
    triplets = peer_miners.TripletMarginMiner(0.1)(x, labels)
    for indices in (None, triplets):
        ours, theirs = (loss(x, labels, indices) for loss in both(lambda z, d, r: z.HistogramLoss(n_bins=11)))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)  # the peer computes a part in float32
