"""A loss of ours as pytorch-metric-learning's: the same value where the formula is the same, the same proxies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nearfar.compat.peer import Peer, ProxyPeer, peer_loss
from nearfar.compat.peer_table import PEERS
from nearfar.losses import ProxyLoss, create, loss_class

pytest.importorskip(
    "pytorch_metric_learning", reason="pytorch-metric-learning is not installed: pip install -e '.[peers]'"
)

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("arcface", {"angle": 20.0, "scale": 16.0}),
    ("circle", {"m": 0.3, "gamma": 20.0}),
    ("contrastive", {"form": "distance", "neg_margin": 1.2}),
    ("contrastive", {"form": "cosine", "pos_margin": 0.9}),
    ("cosface", {"margin": 0.2, "scale": 16.0}),
    ("fastap", {"bins": 7}),
    ("generalized-lifted", {"neg_margin": 1.2, "pos_margin": 0.1}),
    ("intra-pair-variance", {"eps_pos": 0.02, "eps_neg": 0.03}),
    ("large-margin-softmax", {"margin": 3, "scale": 2.0}),
    ("lifted", {"alpha": 1.5}),
    ("lifted", {"normalize": True}),
    ("multi-similarity", {"beta": 40.0, "epsilon": 0.2}),
    ("multi-similarity", {"epsilon": None, "threshold": 0.3}),
    ("n-pair", {"l2_reg": 0.0}),
    ("nca", {"scale": 2.0}),
    ("normalized-softmax", {"temperature": 0.2}),
    ("nt-xent", {"temperature": 0.2}),
    ("proxy-anchor", {"alpha": 16.0, "delta": 0.2}),
    ("proxy-nca", {"scale": 3.0, "positive_in_denominator": True}),
    ("proxy-nca", {"form": "cosine", "scale": 3.0, "positive_in_denominator": True}),
    ("snr", {"neg_margin": 1.5}),
    ("soft-triple", {"proxies_per_class": 3, "tau": 0.3, "reg_eps": 0.0}),
    ("soft-triple", {"proxies_per_class": 1}),
    ("sphereface", {"margin": 2, "scale": 3.0}),
    ("subcenter-arcface", {"proxies_per_class": 2, "scale": 16.0}),
    ("supcon", {"temperature": 0.2}),
    ("threshold-consistent-margin", {"pos_margin": 0.8, "neg_margin": 0.4, "weight_pos": 2.0, "weight_neg": 0.5}),
    ("triplet", {"margin": 0.1}),
    ("triplet", {"mining": "hard", "squared": False, "average": "nonzero"}),
    ("tuplet-margin", {"angle": 4.0, "scale": 20.0}),
]


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 10, generator=generator, dtype=torch.float64), torch.arange(16) // 2


def pair(name: str, options: dict[str, Any]) -> tuple[Any, Peer]:
    if issubclass(loss_class(name), ProxyLoss):
        options = {"classes": 8, "dim": 10, **options}
    torch.manual_seed(0)
    loss = create(name, **options)
    return loss, peer_loss(loss)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_the_same_value(name: str, options: dict[str, Any]) -> None:
    x, labels = batch()
    ours, theirs = pair(name, options)
    assert theirs.differs == ""
    torch.testing.assert_close(theirs(x, labels, weights=None), ours(x, labels), rtol=1e-6, atol=1e-7)


def test_every_loss_that_has_a_peer_is_looked_at() -> None:
    # the formulas of these losses differ whatever the options
    told = ["angular", "histogram", "margin", "p2sgrad", "pnp", "ranked-list", "smooth-ap"]
    assert {loss_class(name) for name in (*told, *(name for name, _ in OPTIONS))} == set(PEERS)
    for name in (*told, "n-pair", "proxy-nca", "soft-triple"):
        assert pair(name, {})[1].differs


@pytest.mark.parametrize("name", ["proxy-anchor", "arcface", "soft-triple", "subcenter-arcface"])
def test_proxies_are_ours_in_the_peers_memory(name: str) -> None:
    before = torch.get_rng_state()
    ours, theirs = pair(name, {})
    assert isinstance(theirs, ProxyPeer)
    torch.testing.assert_close(theirs.proxies.data, ours.proxies.data)
    with torch.no_grad():
        theirs.proxies[3] = 5.0
    (parameter,) = theirs.parameters()
    assert int((parameter == 5.0).sum()) == ours.proxies[3].numel()
    torch.manual_seed(0)
    create(name, classes=8, dim=10)
    after = torch.get_rng_state()
    pair(name, {})
    assert torch.equal(torch.get_rng_state(), after), "making a peer draws random numbers"
    torch.set_rng_state(before)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("binomial", {}, "no counterpart of BinomialDevianceLoss"),
        ("contrastive", {}, "no ContrastiveLoss with form='squared'"),
        ("triplet", {"mining": "semi-hard"}, "mining='semi-hard'"),
        ("multi-similarity", {"neg_threshold": 0.1}, "neg_threshold=0.1"),
        ("nt-xent", {"mine": "hardest"}, "no counterpart of mine="),
    ],
)
def test_no_peer(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        peer_loss(create(name, **options))


def test_weights_are_an_error() -> None:
    x, labels = batch()
    with pytest.raises(ValueError, match="weights was given to a loss of pytorch-metric-learning"):
        pair("nt-xent", {})[1](x, labels, weights=torch.ones(16))
