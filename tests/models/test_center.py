"""Centered embeddings: they change only in evaluation mode, and survive saving, truncation and interpolation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from nearfar.models import Embedder, create_embedder
from nearfar.models.center import Center
from nearfar.runs import load_embedder, save_embedder

X = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) + 2


def centered() -> tuple[Embedder, Embedder]:
    """Return an embedder with fitted center, and one with the same weights that has no center."""
    torch.manual_seed(1)
    embedder = create_embedder("features", channels=6, dim=4, init="random", center=True)
    plain = create_embedder("features", channels=6, dim=4, init="random")
    plain.load_state_dict({k: v for k, v in embedder.state_dict().items() if not k.startswith("center")})
    assert embedder.center is not None
    embedder.eval().center.fit(plain.eval()(X))
    return embedder, plain


@torch.no_grad()
def test_the_mean_of_the_normalized_embeddings_is_subtracted() -> None:
    embedder, plain = centered()
    rows = normalize(plain(X))
    torch.testing.assert_close(embedder(X), rows - rows.mean(0))
    torch.testing.assert_close(embedder(X).mean(0), torch.zeros(4), atol=1e-6, rtol=0)


@torch.no_grad()
def test_training_and_an_unfitted_center_do_not_change_cosines() -> None:
    embedder, plain = centered()
    assert torch.equal(embedder.train()(X), plain(X))
    new = create_embedder("features", channels=6, dim=4, init="random", center=True).eval()
    torch.testing.assert_close(new(X), normalize(new.train()(X)))


@torch.no_grad()
def test_a_saved_and_a_truncated_embedder_keep_the_mean(tmp_path: Path) -> None:
    embedder, _ = centered()
    save_embedder(embedder, tmp_path / "model.safetensors")
    loaded = load_embedder(tmp_path / "model.safetensors")
    assert torch.equal(loaded(X), embedder(X))
    assert torch.equal(embedder.truncate(2)(X), embedder(X)[:, :2])


def test_wrong_embeddings_are_refused() -> None:
    with pytest.raises(ValueError, match="embeddings"):
        Center(3).fit(torch.ones(2, 4))
