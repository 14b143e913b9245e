"""Where the formula is the same, so are pytorch-metric-learning's value and gradient: a check from outside."""

import pytest
import torch

from benchmarks.peers import peer
from benchmarks.speed import LOSSES, PER_CLASS
from benchmarks.timing import class_batch

pytest.importorskip(
    "pytorch_metric_learning", reason="pytorch-metric-learning is not installed: pip install -e '.[peers]'"
)

SAME = [
    "angular",  # on unit rows: the peer forgets to normalize its negatives
    "circle",
    "contrastive cosine",
    "contrastive distance",
    "fastap",
    "lifted",
    "multi-similarity",
    "multi-similarity unmined",
    "nt-xent",
    "snr",
    "supcon",
    "triplet",
    "triplet hard",
    "triplet smooth",
]


@pytest.mark.parametrize("label", SAME)
def test_value_and_gradient_are_the_peers(label: str) -> None:
    rows, labels = class_batch(40, 16, per_class=PER_CLASS.get(label, 5))
    results = []
    for loss in (LOSSES[label](), peer(label)):
        assert loss is not None
        x = torch.nn.functional.normalize(rows.double()).requires_grad_()
        # the normalization's own gradient projects away what one of the two may add along the rows
        value = loss(torch.nn.functional.normalize(x), labels)
        value.backward()
        results.append((value.detach(), x.grad))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-7)
