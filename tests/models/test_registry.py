from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nearfar import models
from nearfar.models import Backbone, WeightFile, backbones, create, create_embedder


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the backbones that a test registers."""
    models.names()
    monkeypatch.setattr(backbones.BACKBONES, "_entries", dict(backbones.BACKBONES._entries))
    monkeypatch.setattr(backbones, "_weights", dict(backbones._weights))


class OneConvolution(Backbone):
    def __init__(self, *, channels: int = 3) -> None:
        super().__init__(features=4, channels=channels, input_size=8)
        self.conv = nn.Conv2d(channels, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def test_a_registered_backbone_is_created_by_its_name() -> None:
    models.register("mine")(OneConvolution)
    assert "mine" in models.names()
    embedder = create_embedder("mine", dim=5, channels=2)
    assert embedder(torch.zeros(3, 2, 8, 8)).shape == (3, 5)
    assert create_embedder(**embedder.config).input_size == 8
    with pytest.raises(ValueError, match="backbone 'mine' has no public weights"):
        create("mine", pretrained=True)


def test_a_registered_weight_file_is_found_and_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = WeightFile(files=("mine.safetensors",), source="nowhere", rename=lambda name: f"conv.{name}")
    models.register("mine", weights=weights)(OneConvolution)
    tensors = {name.removeprefix("conv."): value for name, value in OneConvolution().state_dict().items()}
    (tmp_path / "checkpoints").mkdir()
    save_file(tensors, tmp_path / "checkpoints" / "mine.safetensors")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    backbone = create("mine", pretrained=True)
    assert isinstance(backbone, OneConvolution)
    assert torch.equal(backbone.conv.weight, tensors["weight"])


def test_a_name_is_taken_once() -> None:
    with pytest.raises(
        ValueError, match=r"backbone 'small' is already registered by nearfar\.models\.backbones\.small"
    ):
        models.register("small")(OneConvolution)


def test_a_new_backbone_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new_backbone.py").write_text(
        "from nearfar.models.backbones import register\n"
        "from nearfar.models.backbones.small import SmallConv\n"
        '@register("new")\n'
        "class NewBackbone(SmallConv): pass\n"
    )
    monkeypatch.setattr(backbones.BACKBONES, "_package", "nearfar.models.backbones")
    monkeypatch.setattr(backbones, "__path__", [*backbones.__path__, str(tmp_path)])
    assert type(create_embedder("new", dim=4).backbone).__name__ == "NewBackbone"
    sys.modules.pop("nearfar.models.backbones.new_backbone")
