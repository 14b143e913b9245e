"""An embedder that is split before a block is the composition of its frozen and its trained part."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from nearfar.models import Backbone, create, create_embedder, names
from nearfar.models.embedder import Embedder
from nearfar.models.heads import Head
from nearfar.models.pooling import create_pooling
from nearfar.models.train_from import TrainFrom, find_first_trained

BACKBONES = [name for name in names() if name != "features"]


def block_names(backbone: Backbone) -> list[str]:
    return list(dict.fromkeys(name for name, _ in backbone.named_layers()))


def images(embedder: Embedder) -> Tensor:
    side = min(embedder.input_size, 32)
    return torch.randn(2, embedder.channels, side, side)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_layers_of_a_backbone_hold_all_of_its_tensors(name: str) -> None:
    with torch.device("meta"):
        backbone = create(name)
    layers = [tensor for _, layer in backbone.named_layers() for tensor in layer.state_dict(keep_vars=True).values()]
    assert [id(x) for x in layers] == [id(x) for x in backbone.state_dict(keep_vars=True).values()]
    sequence = [block for block, _ in backbone.named_layers()]
    changes = sum(one != other for one, other in pairwise(sequence))
    assert len(block_names(backbone)) == changes + 1  # the layers of a block are consecutive


@pytest.mark.parametrize("name", BACKBONES)
def test_lower_and_upper_part_equal_the_whole(name: str) -> None:
    whole = create_embedder(name, dim=4).eval()
    x = images(whole)
    blocks = block_names(whole.backbone)
    for train_from in (blocks[1], len(blocks) // 2, 0.3, blocks[-1], "head"):
        split = create_embedder(name, dim=4, train_from=train_from).eval()
        split.load_state_dict(whole.state_dict())
        activations = split.lower(x)
        assert not activations.requires_grad
        torch.testing.assert_close(split.upper(activations), whole(x), rtol=1e-6, atol=1e-6)
        assert torch.equal(split(x), split.upper(activations))
        assert torch.equal(split.pool(x), split.pool_activations(activations))


@pytest.mark.parametrize("train_from", ["blocks.8", 9, 0.5, "head"])
def test_only_the_upper_part_is_trained(train_from: TrainFrom) -> None:
    embedder = create_embedder("efficientnet-lite0", dim=4, train_from=train_from)
    embedder.train()
    before = {name: value.clone() for name, value in embedder.state_dict().items()}
    embedder(images(embedder)).square().sum().backward()
    prefixes = ("backbone.stem.", *(f"backbone.blocks.{i}." for i in range(8)))
    frozen = {name for name in before if name.startswith("backbone." if train_from == "head" else prefixes)}
    assert set(embedder.frozen_state()) == frozen
    for name, parameter in embedder.named_parameters():
        assert (parameter.grad is None) == (name in frozen)
    for name, value in embedder.state_dict().items():
        if "running" in name:
            assert torch.equal(value, before[name]) == (name in frozen)
    trained = {id(p) for group in embedder.parameter_groups(0.1) for p in group["params"]}
    assert trained == {id(p) for name, p in embedder.named_parameters() if name not in frozen}
    assert {id(p) for p in embedder.trunk_parameters()}.isdisjoint(id(x) for x in embedder.frozen_state().values())


def test_a_pooling_with_parameters_is_above_the_head_split() -> None:
    fixed = create_embedder("small", dim=4, pooling="gem", train_from="head")
    trained = create_embedder("small", dim=4, pooling="gem-trainable", train_from="head")
    x = images(fixed)
    assert fixed.lower(x).shape == (2, 96)
    assert trained.lower(x).shape[:2] == (2, 96)
    assert trained.lower(x).ndim == 4
    assert [p.requires_grad for p in trained.pooling.parameters()] == [True]
    assert trained.upper(trained.lower(x)).shape == (2, 4)


class OneConvolution(Backbone):
    def __init__(self) -> None:
        super().__init__(features=4, input_size=8)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def test_a_backbone_without_blocks_can_only_be_split_below_the_head() -> None:
    embedder = Embedder(OneConvolution(), create_pooling("average"), Head(4, 2), dim=2)
    with pytest.raises(ValueError, match=r"train_from=0\.5 needs a backbone that is a sequence of blocks"):
        embedder.freeze_below(0.5)
    with pytest.raises(ValueError, match="the embedder has no frozen part"):
        embedder.lower(torch.zeros(1, 3, 8, 8))
    embedder.freeze_below("head")
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(embedder.upper(embedder.lower(x)), embedder(x))
    with pytest.raises(NotImplementedError, match="Backbone must define named_layers or forward"):
        Backbone(features=1)(x)


@pytest.mark.parametrize(
    ("train_from", "message"),
    [
        (
            "layr1.0",
            "train_from=layr1.0 is not a block; did you mean 'layer1.0'? Known: stem, layer1.0, layer2.0, head",
        ),
        ("x", "train_from=x is not a block. Known: stem"),
        (3, "train_from=3 must be at least 1 and below the number of blocks, 3"),
        (-1, "train_from=-1 must be at least 1 and below the number of blocks, 3"),
        (0, "train_from=0 freezes nothing: use null to train everything"),
        ("stem", "train_from=stem freezes nothing"),
        (0.99, "train_from=0.99 freezes nothing"),
        (1.5, "train_from=1.5 must be between 0 and 1"),
    ],
)
def test_errors_name_the_value_and_the_blocks(train_from: TrainFrom, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        find_first_trained(["stem", "layer1.0", "layer2.0"], train_from)


@pytest.mark.parametrize("train_from", [None, "blocks.8"])
def test_layer_decay_lowers_the_learning_rate_block_by_block(train_from: TrainFrom | None) -> None:
    embedder = create_embedder("efficientnet-lite0", dim=4, train_from=train_from)
    plain = embedder.parameter_groups(0.1, 2.0, decay_vectors=False)
    groups = embedder.parameter_groups(0.1, 2.0, decay_vectors=False, layer_decay=0.5)
    rates = {group["name"]: group["lr"] for group in groups}
    assert rates["trunk last"] == rates["trunk last vectors"] == 0.1
    assert rates["trunk blocks.15"] == 0.05
    assert rates["trunk blocks.8"] == pytest.approx(0.1 * 0.5**8)
    assert rates["head"] == 0.2
    assert ("trunk stem" in rates) == (train_from is None)
    one, other = ([id(p) for group in found for p in group["params"]] for found in (plain, groups))
    assert sorted(one) == sorted(other)
    assert [group["name"] for group in plain] == ["trunk", "trunk vectors", "head", "head vectors"]


def test_layer_decay_needs_blocks_and_a_fraction() -> None:
    embedder = Embedder(OneConvolution(), create_pooling("average"), Head(4, 2), dim=2)
    with pytest.raises(ValueError, match=r"layer_decay=0\.5 needs a backbone that is a sequence of blocks"):
        embedder.parameter_groups(0.1, layer_decay=0.5)
    with pytest.raises(ValueError, match=r"layer_decay must be above 0 and at most 1, got 1\.5"):
        embedder.parameter_groups(0.1, layer_decay=1.5)
