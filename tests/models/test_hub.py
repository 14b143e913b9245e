"""Backbones of other libraries: tiny saved models if transformers is installed, and error messages."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from nearfar.errors import NearfarError
from nearfar.models import create, create_embedder
from nearfar.runs import load_embedder, save_embedder
from small_transformers import saved_vision, transformers


def saved_vit(folder: Path, *, pooler: bool = True) -> Any:
    library = transformers()
    config = library.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, image_size=32, patch_size=16
    )
    model = library.ViTModel(config, add_pooling_layer=pooler).eval()
    model.save_pretrained(folder)
    settings = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model


@pytest.mark.parametrize("pooler", [True, False])
def test_a_saved_vision_model_is_a_backbone(tmp_path: Path, pooler: bool) -> None:
    model = saved_vit(tmp_path, pooler=pooler)
    embedder = create_embedder(f"transformers:{tmp_path}", dim=4, pretrained=True).eval()
    assert (embedder.input_size, embedder.channels, embedder.backbone.features) == (32, 3, 16)
    assert embedder.mean == (0.1, 0.2, 0.3)
    assert embedder.std == (0.4, 0.5, 0.6)
    x = torch.randn(2, 3, 32, 32)
    out = model(pixel_values=x)
    expected = out.pooler_output if pooler else out.last_hidden_state[:, 0]
    torch.testing.assert_close(embedder.backbone(x), expected)
    assert embedder(x).shape == (2, 4)


@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("train_from", ["layers.0", "layers.1", 0.5, "head"])
def test_a_vit_is_split_between_its_layers(tmp_path: Path, pooler: bool, train_from: str | float) -> None:
    saved_vit(tmp_path, pooler=pooler)
    whole = create_embedder(f"transformers:{tmp_path}", dim=4, pretrained=True).eval()
    split = create_embedder(f"transformers:{tmp_path}", dim=4, pretrained=True, train_from=train_from).eval()
    assert split.state_dict().keys() == whole.state_dict().keys()
    split.load_state_dict(whole.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(split.upper(split.lower(x)), whole(x))
    frozen = split.frozen_state()
    assert all(p.requires_grad == (name not in frozen) for name, p in split.named_parameters())
    assert frozen


@torch.no_grad()
@pytest.mark.parametrize(("kind", "prefix"), [("clip", 1), ("siglip", 0), ("dinov2", 1), ("registers", 4)])
def test_vision_models_are_split_and_pooled(tmp_path: Path, kind: str, prefix: int) -> None:
    model = saved_vision(tmp_path, kind)
    x = torch.randn(3, 3, 32, 32)
    out = model(pixel_values=x)
    name = f"transformers:{tmp_path}"
    whole = create_embedder(name, head="identity", pretrained=True).eval()
    torch.testing.assert_close(whole(x), out.pooler_output)
    tokens = out.last_hidden_state
    if kind == "clip":
        tokens = model.post_layernorm(tokens)  # CLIP normalizes only the token that it pools
    mean = create_embedder(name, head="identity", pretrained=True, pooling="mean").eval()
    torch.testing.assert_close(mean(x), tokens[:, prefix:].mean(1), rtol=1e-4, atol=1e-5)
    if kind == "siglip":
        with pytest.raises(ValueError, match="needs a model with a CLS token"):
            create_embedder(name, pretrained=True, pooling="cls")
    else:
        first = create_embedder(name, head="identity", pretrained=True, pooling="cls").eval()
        torch.testing.assert_close(first(x), tokens[:, 0], rtol=1e-4, atol=1e-5)
    for pooling in (None, "attention"):
        frozen = create_embedder(name, dim=4, pretrained=True, pooling=pooling, train_from="layers.1").eval()
        torch.testing.assert_close(frozen.upper(frozen.lower(x)), frozen(x))
        assert not any(p.requires_grad for n, p in frozen.named_parameters() if "embeddings" in n)
        groups = frozen.parameter_groups(1.0, layer_decay=0.5)
        trained = [p for p in frozen.parameters() if p.requires_grad]
        assert sum(len(group["params"]) for group in groups) == len(trained) > 0


@torch.no_grad()
@pytest.mark.parametrize("kind", ["clip", "siglip", "dinov2"])
def test_a_saved_vision_embedder_needs_no_model_directory(tmp_path: Path, kind: str) -> None:
    saved_vision(tmp_path / "model", kind)
    embedder = create_embedder(f"transformers:{tmp_path / 'model'}", dim=4, pretrained=True, pooling="mean").eval()
    save_embedder(embedder, tmp_path / "m.safetensors")
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(load_embedder(tmp_path / "m.safetensors")(x), embedder(x))


def test_pickled_weights_are_refused_and_the_named_command_converts_them(tmp_path: Path) -> None:
    model = saved_vit(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(NearfarError, match="only has pickled weights") as caught:
        create(f"transformers:{tmp_path}", pretrained=True)
    assert "\n" not in str(caught.value)
    code = str(caught.value).partition('-c "')[2].partition('"')[0]
    exec(code.replace("'NEW'", repr(str(tmp_path / "new"))))
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(create(f"transformers:{tmp_path / 'new'}", pretrained=True)(x), model(x).pooler_output)


def test_convolutional_models_output_vectors(tmp_path: Path) -> None:
    library = transformers()
    config = library.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
    library.ResNetModel(config).save_pretrained(tmp_path)
    assert create(f"transformers:{tmp_path}", pretrained=True)(torch.randn(2, 3, 64, 64)).shape == (2, 8)


def test_an_absent_model_is_not_downloaded(tmp_path: Path) -> None:
    transformers()
    with pytest.raises(NearfarError, match="no model 'nobody/nothing' on this machine"):
        create("transformers:nobody/nothing", pretrained=True)


@pytest.mark.parametrize(("library", "cure"), [("transformers", r"pip install .*hub"), ("timm", "matches this torch")])
def test_a_library_that_cannot_be_imported_says_what_to_do(
    library: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(NearfarError, match=f"{library} cannot be imported .*{cure}"):
        create(f"{library}:some_model")


def test_a_torchvision_that_fails_on_import_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(NearfarError, match=r"timm cannot be imported \(operator torchvision::nms does not exist\)"):
        create("timm:resnet18")


class FakeTimmModel(nn.Module):
    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        self.pretrained_cfg = {
            "input_size": (3, 40, 40),
            "mean": (0.1, 0.2, 0.3),
            "std": (0.4, 0.5, 0.6),
            "classifier": "fc",
        }
        self.body = nn.Linear(3, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x.mean((2, 3)))
        return y


def test_timm_models_and_their_weight_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replacement for timm, which cannot be imported with a CPU build of torch."""

    def create_model(name: str, *, pretrained: bool, num_classes: int) -> nn.Module:
        assert not pretrained
        assert num_classes == 0
        if name != "known":
            raise RuntimeError(f"Unknown model ({name})")
        return FakeTimmModel()

    fake = SimpleNamespace(create_model=create_model, list_models=lambda pattern: ["known"])
    monkeypatch.setitem(sys.modules, "timm", fake)  # type: ignore[arg-type]
    embedder = create_embedder("timm:known", dim=4)
    assert embedder(torch.zeros(2, 3, 40, 40)).shape == (2, 4)
    assert (embedder.input_size, embedder.mean) == (40, (0.1, 0.2, 0.3))
    weights = {**FakeTimmModel().state_dict(), "fc.weight": torch.zeros(2, 6)}
    torch.save(weights, tmp_path / "timm.pth")
    loaded = create("timm:known", pretrained=tmp_path / "timm.pth")
    assert torch.equal(loaded.state_dict()["model.body.weight"], weights["body.weight"])
    with pytest.raises(ValueError, match=r"no model 'unknown'; similar names: known"):
        create("timm:unknown")
    with pytest.raises(ValueError, match="does not download timm weights"):
        create("timm:known", pretrained=True)
    with pytest.raises(ValueError, match="has 3 channels, got channels=1"):
        create("timm:known", channels=1)
