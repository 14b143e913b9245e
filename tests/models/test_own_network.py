"""A network of the user as a backbone: what is found out about it, how it is named, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from nearfar import models
from nearfar.models import own_network
from nearfar.models.backbones import BACKBONES
from own_parts import Net, make_net


def test_a_module_becomes_an_embedder_with_its_own_attributes() -> None:
    net = Net()
    embedder = models.create_embedder(net, head="identity")
    assert (embedder.dim, embedder.channels, embedder.input_size) == (16, 1, 24)
    assert (embedder.mean, embedder.std) == ((0.2,), (0.3,))
    x = torch.rand(3, 1, 24, 24)
    torch.testing.assert_close(embedder(x), net(x), rtol=0, atol=0)
    assert embedder.config["backbone"] == "own_parts:Net"


def test_feature_maps_are_pooled_and_get_a_head() -> None:
    net = make_net()
    embedder = models.create_embedder(net, dim=5, pooling="max", input_size=32)
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(embedder.pool(x), net(x).amax((2, 3)))
    assert embedder(x).shape == (2, 5)


def test_children_of_a_sequential_are_blocks() -> None:
    embedder = models.create_embedder(make_net(), dim=5, input_size=32, train_from="2")
    assert [name for name, _ in embedder.backbone.named_layers()] == ["0", "1", "2", "3"]
    assert not embedder.backbone.network[0].weight.requires_grad
    assert embedder.backbone.network[2].weight.requires_grad


def test_vectors_and_the_probe_leave_no_trace() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    embedder = models.create_embedder(net, head="identity", inputs="vectors")
    assert (embedder.channels, embedder.dim, embedder.backbone.has_image_input) == (6, 4, False)
    assert net.training
    assert int(net[1].num_batches_tracked) == 0


@pytest.mark.parametrize("kind", ["dinov2", "clip", "vit"])
def test_models_of_transformers_from_a_configuration(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"image_size": 28, "patch_size": 14}
    config, network = {
        "dinov2": (transformers.Dinov2Config, transformers.Dinov2Model),
        "clip": (transformers.CLIPVisionConfig, transformers.CLIPVisionModel),
        "vit": (transformers.ViTConfig, transformers.ViTModel),
    }[kind]
    embedder = models.create_embedder(network(config(**shape)), head="identity")
    assert (embedder.dim, embedder.input_size, embedder.channels) == (16, 28, 3)
    assert embedder.eval()(torch.rand(2, 3, 28, 28)).shape == (2, 16)


def test_register_takes_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKBONES, "_entries", dict(BACKBONES._entries) if BACKBONES.names() else {})
    models.register("mine", make_net)
    assert models.create_embedder("mine", dim=4, channels=1, input_size=32)(torch.rand(2, 1, 32, 32)).shape == (2, 4)
    models.register("gray", Net)
    with pytest.raises(ValueError, match="'gray' has 1 input channel, but the data has 3"):
        models.create_embedder("gray", channels=3)


def test_module_and_function_are_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "users_net.py").write_text("from torch import nn\n\ndef make():\n    return nn.Conv2d(3, 7, 3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    monkeypatch.setattr(BACKBONES, "_entries", dict(BACKBONES._entries) if BACKBONES.names() else {})
    monkeypatch.setattr(own_network, "_trusted", set())
    assert not own_network.is_trusted("users_net:make")
    assert models.create("users_net:make", input_size=16).features == 7
    assert own_network.is_trusted("users_net:other")
    with pytest.raises(ValueError, match="has no function or class 'made'"):
        models.create("users_net:made")
    with pytest.raises(ValueError, match="'no_such_module' cannot be imported"):
        models.create("no_such_module:make")


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (nn.Linear(3, 4), {}, r"Linear cannot be applied to an input of shape \[2, 3, 224, 224\]"),
        (nn.Flatten(0), {"channels": 3}, r"must have shape \[B, features\]"),
        (nn.ReLU(), {"inputs": "vectors"}, "channels is missing"),
        (Net(), {"inputs": "text"}, "inputs must be one of"),
    ],
)
def test_networks_that_do_not_fit(network: nn.Module, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.create_embedder(network, **options)
